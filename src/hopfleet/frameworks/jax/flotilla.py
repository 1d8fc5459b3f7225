"""Trials that train on the same batches: one after another, or as one program over their stacked states."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch, Batches, Flotilla, Result
from hopfleet.frameworks.jax.programs import State, kind_of, split
from hopfleet.frameworks.jax.session import JaxSession, Measures, Row, Steps, rows_of
from hopfleet.support.logging import messages

Work = Steps | Measures


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

    def _run(self, works: Sequence[Work], batches: Batches) -> dict[int, Exception]:
        """Let members work on all batches; return the exceptions of those that failed, by number."""
        failed: dict[int, Exception] = {}
        for batch in batches:
            over = {*failed, *self.given_up()}
            self._take(works, batch, [number for number in range(len(works)) if number not in over], failed)
        return failed

    def _take(self, works: Sequence[Work], batch: Batch, numbers: list[int], failed: dict[int, Exception]) -> None:
        for number in numbers:
            self.turn(number)
            try:
                works[number](batch)
            except Exception as error:
                failed[number] = error

    def _results(self, failed: dict[int, Exception], closes: Sequence[Callable[[], dict[str, RowSum]]]) -> list[Result]:
        results: list[Result] = []
        for number, close in enumerate(closes):
            try:
                results.append(failed[number] if number in failed else close())
            except Exception as error:
                results.append(error)
        return results


class Stack:
    """Members whose states are stacked along a new first axis and step as one program."""

    def __init__(self, works: Sequence[Work], numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)
        self._works = [works[number] for number in numbers]
        work = "step" if isinstance(self._works[0], Steps) else "measure"
        sessions = [work.session for work in self._works]
        self._graph = sessions[0].graph
        #: The losses or metrics of each batch, and its rows.
        self._found: list[tuple[Any, int]] = []
        self._states = _states(sessions)
        configs = [session.config for session in sessions]
        self._program = sessions[0].programs.of_stack(work, sessions[0].task, configs, sessions[0].threads)
        own = [split(config)[0] for config in configs]
        self._own = {name: jnp.asarray([numbers[name] for numbers in own]) for name in self._program.names}

    def take(self, batch: Batch) -> None:
        """Let all members step on a batch."""
        found = self._program.run(self._graph, self._states, batch, self._own)
        if self._program.work == "step":
            self._states, found = found
        self._found.append((found, rows_of(batch)))

    def settle(self) -> None:
        """Give each member its part of the states and values."""
        for found, rows in self._found:
            values = jax.tree.map(np.asarray, found)
            for row, work in enumerate(self._works):
                if isinstance(work, Steps):
                    work.note(values[row], rows)
                else:
                    work.note({name: vector[row] for name, vector in values.items()}, rows)
        for row, work in enumerate(self._works):
            self._program.tell(work.session.config)
            if isinstance(work, Steps) and self._found:
                work.session.put(Row(self._states, row))
        self._found.clear()


class Stacked(InTurn):
    """Members with the same program as one, and the others in turn. Rounding may differ from training alone."""

    def _run(self, works: Sequence[Work], batches: Batches) -> dict[int, Exception]:
        groups: dict[Hashable, list[int]] = {}
        for number, work in enumerate(works):
            groups.setdefault(_kind(work.session), []).append(number)
        self._stacks = [Stack(works, group) for group in groups.values() if len(group) > 1]
        failed = super()._run(works, batches)
        for stack in self._stacks:
            stack.settle()
        return failed

    def _take(self, works: Sequence[Work], batch: Batch, numbers: list[int], failed: dict[int, Exception]) -> None:
        for stack in list(self._stacks):
            try:
                stack.take(batch)
            except Exception as error:
                messages().info("trials train in turn: %s", describe(error))
                stack.settle()
                self._stacks.remove(stack)
        stacked = {number for stack in self._stacks for number in stack.numbers}
        super()._take(works, batch, [number for number in numbers if number not in stacked], failed)


def _kind(session: JaxSession) -> Hashable:
    """Return what two trials have in common if their states can be stacked."""
    place = session.place
    stacked = isinstance(place, Row)
    leaves, structure = jax.tree.flatten(place.states if isinstance(place, Row) else place)
    shapes = tuple((leaf.shape[stacked:], str(leaf.dtype)) for leaf in leaves)
    return kind_of(session.config, "", session.threads), session.graph, structure, shapes


def _states(sessions: Sequence[JaxSession]) -> State:
    """Stack the states of trials, unless they are stacked from an earlier unit."""
    places = [session.place for session in sessions]
    if isinstance(first := places[0], Row) and len(first.states.count) == len(places):
        rows = [place for place in places if isinstance(place, Row) and place.states is first.states]
        if [row.number for row in rows] == list(range(len(places))):
            return first.states
    states = [session.live for session in sessions]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)  # type: ignore[no-any-return]
