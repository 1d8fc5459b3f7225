"""Trials that train on the same batches: one after another, or as one program over their stacked states."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch, Batches, Flotilla, Result
from hopfleet.frameworks.jax.programs import State, kind_of, on_host, split
from hopfleet.frameworks.jax.session import JaxSession, Measures, Row, Steps, rows_of
from hopfleet.support.logging import messages
from hopfleet.support.user_code import interrupts

Work = Steps | Measures

CHUNK, CHUNK_BYTES = 32, 1 << 24
"""The most batches, and about the most bytes, that a stack takes with one call of its program."""

SPARE = 1.5
"""A stack with fewer members uses a program that was compiled for up to this many times as many."""

Failures = dict[int, BaseException]
"""The exceptions of members that failed, by number."""

BLOCK = 4
"""Members of a stack on a CPU. Larger stacks gain little there, and each other number has to be compiled."""

SMALL = 1 << 17
"""Bytes of a state up to which a stack of ``BLOCK`` rows takes hardly longer on a CPU than one of two."""


class InTurn(Flotilla):
    """Members that step one after another on each batch. Their programs run alone, so the bits are those of alone."""

    def __init__(self, sessions: Sequence[JaxSession]) -> None:
        self.sessions = sessions
        self.shares = [1 / len(sessions)] * len(sessions)

    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        works = [Steps(session) for session in self.sessions]
        with self.sessions[0].environment(0):
            failed = self._run(works, batches)
        closes = [partial(work.result, last=over) for work, over in zip(works, last, strict=True)]
        return self._results(failed, closes)

    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        works = [Measures(session) for session in self.sessions]
        with self.sessions[0].environment(seed):
            failed = self._run(works, batches)
        return self._results(failed, [work.result for work in works])

    def _run(self, works: Sequence[Work], batches: Batches) -> Failures:
        """Let members work on all batches; return the exceptions of those that failed, by number."""
        failed: Failures = {}
        for batch in batches:
            over = {*failed, *self.given_up()}
            self._take(works, batch, [number for number in range(len(works)) if number not in over], failed)
        return failed

    def _take(self, works: Sequence[Work], batch: Batch, numbers: list[int], failed: Failures) -> None:
        for number in numbers:
            self.turn(number)
            try:
                works[number](batch)
            except BaseException as error:
                if interrupts(error):
                    raise
                failed[number] = error

    def _results(self, failed: Failures, closes: Sequence[Callable[[], dict[str, RowSum]]]) -> list[Result]:
        results: list[Result] = []
        for number, close in enumerate(closes):
            try:
                results.append(failed[number] if number in failed else close())
            except BaseException as error:
                if interrupts(error):
                    raise
                results.append(error)
        return results


class Chunk:
    """Batches of one shape, stacked along a new first axis, and padded to the number that its shape allows."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        first = batches[0]
        self.kind = _most(first), _shapes(first)
        padded = [*batches, *[batches[-1]] * (_most(first) - len(batches))]
        self.columns = _stacked(padded)


def _stacked(trees: Sequence[Any]) -> Any:
    """Stack pytrees of arrays on one device along a new first axis."""
    leaves = jax.tree.leaves(trees[0])
    if all(on_host(leaf) for leaf in leaves):
        return jax.tree.map(lambda *own: jax.device_put(np.stack(own), own[0].device), *trees)
    return _stacked_on_device(trees)


@jax.jit  # type: ignore[untyped-decorator]
def _stacked_on_device(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _shapes(batch: Batch) -> Hashable:
    return tuple((name, column.shape, str(column.dtype)) for name, column in batch.items())


def _most(batch: Batch) -> int:
    """Return how many batches like this one make a chunk."""
    size = sum(column.nbytes for column in batch.values())
    return int(max(1, min(CHUNK, CHUNK_BYTES // max(1, size))))


class Stack:
    """Members of a group whose states are stacked along a new first axis and step as one program.

    The parts of a group share their program and run at the same time, in as many threads as the worker has. A stack has
    ``size`` rows; without it, as many as members, or as a program was compiled for.
    """

    def __init__(
        self, works: Sequence[Work], numbers: Sequence[int], group: Sequence[int], threads: int, size: int = 0
    ) -> None:
        self.numbers = list(numbers)
        self._works = [works[number] for number in numbers]
        work = "step" if isinstance(self._works[0], Steps) else "measure"
        sessions = [work.session for work in self._works]
        self._graph = sessions[0].graph
        #: The losses or metrics of each chunk, and the rows of its batches.
        self._found: list[tuple[Any, list[int]]] = []
        configs = [works[number].session.config for number in group]
        first = sessions[0]
        self._program = first.programs.of_stack(work, first.task, configs, threads, first.settings_number)
        count = len(sessions)
        sizes = [size for size in self._program.sizes() if count <= size <= SPARE * count]
        #: Rows of the stack; those beyond the members repeat the last one, and their results are not used.
        self._size = size or min(sizes, default=count)
        self._states = _states(sessions, self._size)
        sessions += [sessions[-1]] * (self._size - count)
        own = [split(session.config)[0] for session in sessions]
        self._own = {name: jnp.asarray([numbers[name] for numbers in own]) for name in self._program.names}

    def compiled(self, chunk: Chunk) -> bool:
        """Whether the program has been compiled for such a chunk."""
        return (self._size, chunk.kind) in self._program.compiled

    def take(self, chunk: Chunk) -> None:
        """Let all members step on each batch of a chunk."""
        found = self._program.run(self._graph, self._states, chunk.columns, len(chunk.batches), self._own)
        jax.block_until_ready(found)
        self._program.compiled.add((self._size, chunk.kind))
        if self._program.work == "step":
            self._states, found = found
        self._found.append((found, [rows_of(batch) for batch in chunk.batches]))

    def settle(self) -> None:
        """Give each member its part of the states and values."""
        for found, counts in self._found:
            values = jax.tree.map(np.asarray, found)
            for batch, rows in enumerate(counts):
                for row, work in enumerate(self._works):
                    if isinstance(work, Steps):
                        work.note(values[batch, row], rows)
                    else:
                        work.note(jax.tree.map(itemgetter((batch, row)), values), rows)
        for row, work in enumerate(self._works):
            self._program.tell(work.session.config)
            if isinstance(work, Steps) and self._found:
                work.session.put(Row(self._states, row))
        self._found.clear()


class Stacked(InTurn):
    """Members with the same program as one, and the others in turn. Rounding may differ from training alone.

    Stacks take several batches at once, while the next ones are read.
    """

    _pool: Executor

    def _run(self, works: Sequence[Work], batches: Batches) -> Failures:
        groups: dict[Hashable, list[int]] = {}
        for number, work in enumerate(works):
            groups.setdefault(_kind(work.session), []).append(number)
        self._stacks = [stack for group in groups.values() if len(group) > 1 for stack in _parts(works, group)]
        self._waiting: list[Batch] = []
        self._running: tuple[Chunk, list[Future[None]]] | None = None
        with ThreadPoolExecutor(works[0].session.threads) as self._pool:
            failed = super()._run(works, batches)
            self._start(works, failed)
            self._finish(works, failed)
        for stack in self._stacks:
            stack.settle()
        return failed

    def _take(self, works: Sequence[Work], batch: Batch, numbers: list[int], failed: Failures) -> None:
        if self._stacks:
            first = self._waiting[0] if self._waiting else batch
            if len(self._waiting) == _most(first) or _shapes(first) != _shapes(batch):
                self._start(works, failed)
        if self._stacks:
            self._waiting.append(batch)
        stacked = {number for stack in self._stacks for number in stack.numbers}
        super()._take(works, batch, [number for number in numbers if number not in stacked], failed)

    def _start(self, works: Sequence[Work], failed: Failures) -> None:
        """Let stacks take the batches that wait, after those that they work on."""
        self._finish(works, failed)
        if not self._waiting:
            return
        chunk = Chunk(self._waiting)
        self._waiting = []
        futures: list[Future[None]] = []
        self._running = chunk, futures
        for stack in self._stacks:
            compiled = stack.compiled(chunk)
            futures.append(self._pool.submit(stack.take, chunk))
            if not compiled:
                wait(futures)  # the next stack finds the program compiled

    def _finish(self, works: Sequence[Work], failed: Failures) -> None:
        """Wait for the stacks. Members of one that fails go on in turn, from the batches that it failed with."""
        if self._running is None:
            return
        (chunk, futures), self._running = self._running, None
        for stack, future in zip(list(self._stacks), futures, strict=True):
            if (error := future.exception()) is None:
                continue
            messages().info("trials train in turn: %s", describe(error))
            stack.settle()
            self._stacks.remove(stack)
            for batch in (*chunk.batches, *self._waiting):
                super()._take(works, batch, [number for number in stack.numbers if number not in failed], failed)
        if not self._stacks:
            self._waiting = []


def _parts(works: Sequence[Work], group: Sequence[int]) -> list[Stack]:
    """Divide members of one kind into stacks.

    On a CPU the stacks have at most ``BLOCK`` members, so that few sizes are compiled, or fewer, but at least two, if
    the worker has more threads than that makes stacks. Those of small models all have ``BLOCK`` rows.
    """
    session = works[group[0]].session
    if session.device.platform != "cpu":
        return [Stack(works, group, group, session.threads)]
    small = session.size <= SMALL
    count = max(-(-len(group) // BLOCK), 1 if small else min(session.threads, len(group) // 2))
    bounds = [len(group) * part // count for part in range(count + 1)]
    threads = max(1, session.threads // count)
    return [Stack(works, group[a:b], group, threads, BLOCK if small else 0) for a, b in pairwise(bounds)]


def _kind(session: JaxSession) -> Hashable:
    """Return what two trials have in common if their states can be stacked."""
    place = session.place
    stacked = isinstance(place, Row)
    leaves, structure = jax.tree.flatten(place.states if isinstance(place, Row) else place)
    shapes = tuple((leaf.shape[stacked:], str(leaf.dtype)) for leaf in leaves)
    kind = kind_of(session.task, session.config, "", session.threads, session.settings_number)
    return kind, session.graph, structure, shapes


def _states(sessions: Sequence[JaxSession], size: int) -> State:
    """Stack the states of trials, unless they are stacked from an earlier unit; the last one fills up the rows."""
    places = [session.place for session in sessions]
    if isinstance(first := places[0], Row) and len(first.states.count) == size:
        rows = [place for place in places if isinstance(place, Row) and place.states is first.states]
        if [row.number for row in rows] == list(range(len(places))):
            return first.states
    own = [session.live for session in sessions]
    return _stacked([*own, *own[-1:] * (size - len(own))])  # type: ignore[no-any-return]
