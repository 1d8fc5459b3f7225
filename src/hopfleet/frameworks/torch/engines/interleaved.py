"""A flotilla whose members train in turn: each batch is read, transformed and moved to the device once for all of them.

Members must not affect each other. Two things could connect them, and both are watched:

* *Random streams* belong to the process. With the first batch, each member gets all of its own streams, which shows
  from which of them its code draws. From then on only those are exchanged, and the others must not move.
* *The batch* is the same object for all members: a member that writes into its tensors would change what the next
  member sees.

If either rule is broken, no result can be trusted, and IsolationError is raised.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch

from hopfleet.domain.rowsum import RowSum
from hopfleet.frameworks.base import Batch, Batches, Flotilla, GivenUp, IsolationError, Result
from hopfleet.frameworks.torch import _compat, randomness
from hopfleet.frameworks.torch.engines import rates
from hopfleet.frameworks.torch.engines.capture_backend import OnLane
from hopfleet.frameworks.torch.engines.joint_optimizer import JointOptimizer, admits
from hopfleet.frameworks.torch.randomness import Stream
from hopfleet.frameworks.torch.session import TorchSession, process_settings
from hopfleet.frameworks.torch.steps import Steps, on_host, summed
from hopfleet.frameworks.torch.trial import Metrics
from hopfleet.support.user_code import interrupts

LATE = "a trial drew from a random stream that it had not used in its first batch"
WRITTEN = "the task writes into the tensors of its batch; make new tensors instead"

Found = TypeVar("Found")

Work = Generator[None, None, list[Result]]
"""The training of a sub-epoch, with a pause after each batch and one before the end."""


class Measures:
    """The evaluation of one trial, batch by batch. Call its methods only while the trial's streams are in place."""

    def __init__(self, session: TorchSession) -> None:
        self._session = session
        self._found: list[tuple[Metrics, int]] = []

    def __call__(self, batch: Batch) -> None:
        """Evaluate a batch and note its metrics."""
        self._found.append(on_host(self._session.measure(batch)))

    def take(self, batch: Batch) -> Metrics:
        """Return the metrics of a batch."""
        return self._session.measure(batch)[0]

    def note(self, metrics: Metrics, *rows: int) -> None:
        """Note the metrics of some batches and the rows of each."""
        columns = {name: values.tolist() for name, values in metrics.items()}
        for number, count in enumerate(rows):
            self._found.append(({name: values[number] for name, values in columns.items()}, count))

    def result(self) -> dict[str, RowSum]:
        """Return the sums over all batches."""
        return summed(self._found)


class Member:
    """One session in a flotilla, during one unit."""

    def __init__(
        self,
        session: TorchSession,
        random: Mapping[str, Stream],
        work: Steps | Measures,
        turn: Callable[[], object] = lambda: None,
    ) -> None:
        self.session = session
        self._turn = turn
        self.work = work
        #: The random streams of the member, and the names of those that are put in place while its code runs.
        self.random = randomness.settled(random, session.device)
        self.draws = randomness.names(session.device)
        #: Names of the streams that were drawn from before the first batch, to look at the batches of an update.
        self.drawn: frozenset[str] = frozenset()
        self.result: Result = {}
        self.seconds = 0.0

    @property
    def steps(self) -> Steps:
        """The member's work in training."""
        assert isinstance(self.work, Steps)
        return self.work

    @property
    def ahead(self) -> int:
        """The batches that the member looks at before an update."""
        return self.work.ahead if isinstance(self.work, Steps) else 1

    @property
    def active(self) -> bool:
        """Whether the member's code has not raised so far."""
        return not isinstance(self.result, BaseException)

    def do(self, work: Callable[[], object]) -> object:
        """Run some work of the member with its random streams in place. An exception becomes the member's result."""
        self._turn()
        if self.draws:
            randomness.put(self.random, self.session.device, self.draws)
        began = time.perf_counter()
        try:
            return work()
        except BaseException as error:
            if interrupts(error):
                raise
            self.result = error
            return None
        finally:
            self.seconds += time.perf_counter() - began
            if self.draws:
                self.random |= randomness.current(self.session.device, self.draws)

    def end(self, close: Callable[[], dict[str, RowSum]]) -> None:
        """Close the unit and keep its sums, unless the member's code raised before or raises now."""
        if self.active:
            sums = self.do(close)
            if isinstance(sums, dict):
                self.result = sums


class Interleaved(Flotilla):
    """Members that step one after another on the batch that they share."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self.sessions = sessions

    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        with process_settings(self.sessions[0]):
            return finished(self.training(batches, last=last))

    def train_mixed(self, streams: Sequence[Batches], of: Sequence[int], *, last: Sequence[bool]) -> list[Result]:
        numbers = [[number for number, stream in enumerate(of) if stream == each] for each in range(len(streams))]
        parts = [self._part(some) for some in numbers]
        begun = [Begun(batches) for batches in streams]
        with process_settings(self.sessions[0]), self._abreast(len(parts)) as on_lane:
            work = [
                part.training(batches, last=[last[number] for number in some])
                for part, batches, some in zip(parts, begun, numbers, strict=True)
            ]
            found, seconds = in_step(work, [len(batches) for batches in streams], on_lane)
        results: dict[int, tuple[Result, float]] = {}
        for part, some, of_part, whole in zip(parts, numbers, found, self._weights(parts, seconds), strict=True):
            weights = (whole * share for share in part.shares)
            results |= zip(some, zip(of_part, weights, strict=True), strict=True)
        self.shares = [results[number][1] for number in range(len(of))]
        return [results[number][0] for number in range(len(of))]

    def _part(self, numbers: Sequence[int]) -> Interleaved:
        """Return a flotilla of some members, given by their numbers."""
        part = type(self)([self.sessions[number] for number in numbers])
        part.turn = lambda number: self.turn(numbers[number])
        part.given_up = lambda: [place for place, number in enumerate(numbers) if number in self.given_up()]
        part.repeats = self.repeats
        return part

    def _weights(self, parts: Sequence[Interleaved], seconds: Sequence[float]) -> list[float]:
        """Return the share of each part of a flotilla in its time, given the seconds that the host spent on each."""
        return rates.shares(seconds)

    @contextlib.contextmanager
    def _abreast(self, parts: int) -> Iterator[OnLane]:
        """Let the work of several parts run side by side, where the device can do that."""
        yield lambda number: contextlib.nullcontext()

    def training(self, batches: Batches, *, last: Sequence[bool]) -> Work:
        """Train one sub-epoch, with a pause after each batch and one before the end.

        The settings of the process must be those of the trials.
        """

        def close(session: TorchSession, steps: Steps, over: bool) -> Callable[[], dict[str, RowSum]]:
            return lambda: session.end_unit(steps.result(), batches.rows, last=over)

        steps = [Steps(session) for session in self.sessions]
        members = [
            Member(session, session.random, step, partial(self.turn, number))
            for number, (session, step) in enumerate(zip(self.sessions, steps, strict=True))
        ]
        for session in self.sessions:
            session.model.train()
            session.begin_log()
        yield from self._run(members, batches)
        yield  # what closes the unit may draw random numbers: first, all parts of a flotilla check theirs
        for member, step, over in zip(members, steps, last, strict=True):
            member.end(close(member.session, step, over))
            member.session.random = member.random
        return self._results(members)

    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        measures = [Measures(session) for session in self.sessions]
        random = randomness.seeded(seed)
        with process_settings(self.sessions[0]), torch.no_grad():
            members = [
                Member(session, random, measure, partial(self.turn, number))
                for number, (session, measure) in enumerate(zip(self.sessions, measures, strict=True))
            ]
            for session in self.sessions:
                session.model.eval()
            with contextlib.ExitStack() as stack:
                for session in self.sessions:
                    stack.enter_context(session.averaged())
                finished(self._run(members, batches))
            for member, measure in zip(members, measures, strict=True):
                member.end(measure.result)
        return self._results(members)

    def _run(self, members: Sequence[Member], batches: Batches) -> Generator[None]:
        """Let every member work on every batch, with a pause after each."""
        device = self.sessions[0].device
        everything, quick = randomness.names(device), randomness.names(device) & randomness.QUICK
        untouched = randomness.current(device, everything)
        self._joint: JointOptimizer | None = None
        for number, upcoming in enumerate(_windows(batches, max(member.ahead for member in members))):
            self._number, batch = number, upcoming[0]
            for left in self.given_up():
                members[left].result = GivenUp()
            writes = list(map(_writes, upcoming))
            self._foresee(members, upcoming)
            rest = self._launch([member for member in members if member.active], batch)
            if number == 0:
                self._begin(rest, batch)
                touched = everything
            else:
                touched = frozenset().union(*(member.draws for member in rest))
                self._step(rest, batch)
            if list(map(_writes, upcoming)) != writes:
                raise IsolationError(WRITTEN)
            randomness.put(untouched, device, touched)
            if randomness.changed(untouched, randomness.current(device, quick - touched)):
                raise IsolationError(LATE)
            yield
        if randomness.changed(untouched, randomness.current(device, everything)):
            raise IsolationError(LATE)
        if self._joint is not None:
            self._joint.settle()

    def _foresee(self, members: Sequence[Member], batches: Sequence[Batch]) -> None:
        """Let members look at the batches of the update that they begin with the first one."""
        for member in members:
            if member.active and member.ahead > 1:
                before = dict(member.random)
                member.do(partial(member.steps.foresee, [dict(batch) for batch in batches]))
                member.drawn |= randomness.changed(before, member.random)

    def _begin(self, members: Sequence[Member], batch: Batch) -> None:
        """Let members work on their first batch. Those that have trained before can share its update."""
        able = _able(members)
        for member in members:
            self._try(member, batch, shares=member in able)
        active = [member for member in members if member.active]
        if joined := [member for member in active if member in able]:
            self._joint = self._updated(JointOptimizer([member.session for member in joined]), joined, [])
        if len(able) < len(members):
            if self._joint is not None:
                self._joint.settle()
                self._joint = None
            self._watch(active, batch)

    def _try(self, member: Member, batch: Batch, *, shares: bool) -> None:
        """Let a member work on its first batch, which shows from which random streams its code draws."""
        before = dict(member.random)
        member.do(partial(member.steps.all_but_update if shares else member.work, dict(batch)))
        member.draws = randomness.changed(before, member.random) | member.drawn

    def _step(self, members: Sequence[Member], batch: Batch) -> None:
        """Let members work on a batch, with one backward pass and one update for all that can share them."""
        joint = self._joint
        at_once = not any(member.draws for member in members)
        losses: list[torch.Tensor] = []
        for member in members:
            if joint is None or member.session not in joint:
                member.do(partial(member.work, dict(batch)))
            elif not at_once:
                member.do(partial(member.steps.all_but_update, dict(batch)))
            elif isinstance(loss := member.do(partial(member.steps.loss, dict(batch))), torch.Tensor):
                losses.append(loss)
        if joint is not None:
            self._joint = self._updated(joint, [m for m in members if m.active and m.session in joint], losses)

    def _updated(
        self, joint: JointOptimizer, members: Sequence[Member], losses: Sequence[torch.Tensor]
    ) -> JointOptimizer | None:
        """Make the update that members share, from losses or gradients; return the optimizer of the next update."""
        began = time.perf_counter()
        if len(members) < len(joint.sessions):
            joint.settle()
            if not members:
                return None
            joint = JointOptimizer([member.session for member in members])
        if losses:
            joint.backward(losses)
        continues = joint.step()
        spent, total = time.perf_counter() - began, sum(member.seconds for member in members)
        for member in members:
            member.seconds += spent * member.seconds / total
            if member.session.schedulers:
                member.do(member.steps.step_schedule)
        return joint if continues else None

    def _launch(self, members: list[Member], batch: Batch) -> list[Member]:
        """Let some members step in a faster way; return the others."""
        return members

    def _timed(self, members: Sequence[Member]) -> contextlib.AbstractContextManager[None]:
        """Return a context for work that is queued for some members, whose time on the device may be measured."""
        return contextlib.nullcontext()

    def _watch(self, members: list[Member], batch: Batch) -> None:
        """Look for a faster way for members that have just taken their first step."""
        if able := _able(members):
            self._joint = JointOptimizer([member.session for member in able])
            self._joint.clear_gradients()

    def _results(self, members: Sequence[Member]) -> list[Result]:
        self.shares = rates.shares([member.seconds for member in members])
        return [member.result for member in members]


class Begun:
    """Batches whose first one is being prepared already."""

    def __init__(self, batches: Batches) -> None:
        self.rows = batches.rows
        self._length = len(batches)
        self._iterator = iter(batches)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return self._iterator


def _windows(batches: Batches, size: int) -> Iterator[list[Batch]]:
    """Yield each batch with those that follow it, at most ``size`` in all."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if len(window) == size:
            yield [*window]
            del window[0]
    for number in range(len(window)):
        yield window[number:]


def finished(work: Generator[None, None, Found]) -> Found:
    """Do the rest of some work without a pause; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: Found = end.value
            return found


def in_step(work: Sequence[Work], lengths: Sequence[int], on_lane: OnLane) -> tuple[list[list[Result]], list[float]]:
    """Do several pieces of work in turn, so that all of them end together: always the one that is behind the others.

    ``lengths`` are the numbers of their batches. Return the results of each piece, and the seconds that it took.
    """
    done, seconds = [0] * len(work), [0.0] * len(work)
    while left := [number for number, length in enumerate(lengths) if done[number] <= length]:
        behind = min(left, key=lambda number: done[number] / max(1, lengths[number]))
        began = time.perf_counter()
        with on_lane(behind):
            next(work[behind])
        seconds[behind] += time.perf_counter() - began
        done[behind] += 1
    found = []
    for number, piece in enumerate(work):
        with on_lane(number):
            found.append(finished(piece))
    return found, seconds


def _able(members: Sequence[Member]) -> list[Member]:
    """Return the members that can share updates, because they have made some already; none if there is only one."""
    able = [member for member in members if isinstance(member.work, Steps) and admits(member.session)]
    return able if len(able) > 1 else []


def _writes(batch: Batch) -> list[int]:
    """Count the writes into each tensor of a batch so far."""
    columns = [value if isinstance(value, list) else [value] for value in batch.values()]
    return [_compat.written(value) for column in columns for value in column if torch.is_tensor(value)]
