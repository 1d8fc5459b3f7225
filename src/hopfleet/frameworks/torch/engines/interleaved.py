"""A flotilla in PyTorch: each batch is read, transformed and moved to the device once, and every member trains on it in
turn.

Members must not feel each other. Three things could tie them together, and each is watched:

* *Random streams* belong to the process. With the first batch every member gets its own ones, and it shows which of
  them it draws from; from then on only those are exchanged. The others must not move.
* *The batch* is the same object for all: a member that writes into its tensors would change what the next one sees.
* *The task's attributes* (config, optimizer) are set before each step.

If one of the first two is broken, nobody's result can be trusted, and Entangled says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from hopfleet.domain.rowsum import RowSum
from hopfleet.frameworks.base import Batch, Batches, Flotilla, IsolationError, Result
from hopfleet.frameworks.torch import randomness
from hopfleet.frameworks.torch.engines.joint_optimizer import Joint, admits
from hopfleet.frameworks.torch.steps import Steps
from hopfleet.frameworks.torch.task import TorchSession, process_settings, summed

LATE = "a trial drew from a random stream that it had left alone in its first batch"
WRITTEN = "the task writes into the tensors of its batch; let it make new ones"


class Member:
    """One session in a flotilla, during one unit."""

    def __init__(
        self,
        session: TorchSession,
        random: Mapping[str, Any],
        work: Callable[[Batch], object],
        turn: Callable[[], object] = lambda: None,
    ) -> None:
        self.session = session
        self._turn = turn
        self.work = work
        #: Its random streams, and the names of those that are put in place for it.
        self.random = randomness.settled(random, session.device)
        self.draws = randomness.names(session.device)
        self.result: Result = {}
        self.seconds = 0.0

    @property
    def aboard(self) -> bool:
        return not isinstance(self.result, Exception)

    def do(self, work: Callable[[], object]) -> object:
        """Some of its work, with its own attributes and random streams in place. What it raises is its result."""
        self._turn()
        self.session.activate()
        if self.draws:
            randomness.put(self.random, self.session.device, self.draws)
        began = time.perf_counter()
        try:
            return work()
        except Exception as error:
            self.result = error
            return None
        finally:
            self.seconds += time.perf_counter() - began
            if self.draws:
                self.random |= randomness.current(self.session.device, self.draws)

    def end(self, close: Callable[[], dict[str, Any]]) -> None:
        """Its result, if nothing has gone wrong before and nothing goes wrong now."""
        if self.aboard:
            sums = self.do(close)
            if isinstance(sums, dict):
                self.result = sums


class Measures:
    """An evaluation of one trial, batch by batch. Its methods are called while the trial is at work."""

    def __init__(self, session: TorchSession) -> None:
        self._session = session
        self._found: list[tuple[Mapping[str, Any], int]] = []

    def __call__(self, batch: Batch) -> None:
        self._found.append(self._session.measure(batch))

    def take(self, batch: Batch) -> Mapping[str, Any]:
        """The metrics of a batch."""
        return self._session.measure(batch)[0]

    def note(self, metrics: Mapping[str, Any], *rows: int) -> None:
        """Take down the metrics of some batches."""
        columns = {name: values.tolist() for name, values in metrics.items()}
        for number, count in enumerate(rows):
            self._found.append(({name: values[number] for name, values in columns.items()}, count))

    def result(self) -> dict[str, RowSum]:
        return summed(self._found)


class Eager(Flotilla):
    """Members step one after another on the batch that they share."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self.sessions = sessions

    def train(self, batches: Batches, *, last: Sequence[bool]) -> list[Result]:
        def close(session: TorchSession, steps: Steps, over: bool) -> Callable[[], dict[str, Any]]:
            return lambda: session.end_unit(steps.result(), batches.rows, last=over)

        steps = [Steps(session) for session in self.sessions]
        with process_settings(self.sessions[0]):
            members = [
                Member(session, session.random, step, partial(self.turn, number))
                for number, (session, step) in enumerate(zip(self.sessions, steps, strict=True))
            ]
            for session in self.sessions:
                session.model.train()
            self._go(members, batches)
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
                self._go(members, batches)
            for member, measure in zip(members, measures, strict=True):
                member.end(measure.result)
        return self._results(members)

    def _go(self, members: Sequence[Member], batches: Batches) -> None:
        """Every member's work on every batch."""
        device = self.sessions[0].device
        everything, quick = randomness.names(device), randomness.names(device) & randomness.QUICK
        still = randomness.current(device, everything)
        self._joint: Joint | None = None
        for number, batch in enumerate(batches):
            marks = _marks(batch)
            rest = self._launch([member for member in members if member.aboard], batch)
            if number == 0:
                self._begin(rest, batch)
                touched = everything
            else:
                touched = frozenset().union(*(member.draws for member in rest))
                self._step(rest, batch)
            if _marks(batch) != marks:
                raise IsolationError(WRITTEN)
            randomness.put(still, device, touched)
            if randomness.changed(still, randomness.current(device, quick - touched)):
                raise IsolationError(LATE)
        if randomness.changed(still, randomness.current(device, everything)):
            raise IsolationError(LATE)
        if self._joint is not None:
            self._joint.settle()

    def _begin(self, members: Sequence[Member], batch: Batch) -> None:
        """Members' first batch. Those who have trained before can share its update."""
        able = _able(members)
        for member in members:
            self._try(member, batch, shares=member in able)
        aboard = [member for member in members if member.aboard]
        if crew := [member for member in aboard if member in able]:
            self._joint = self._updated(Joint([member.session for member in crew]), crew, [])
        if len(able) < len(members):
            if self._joint is not None:
                self._joint.settle()
                self._joint = None
            self._watch(aboard, batch)

    def _try(self, member: Member, batch: Batch, *, shares: bool) -> None:
        """A member's first batch, which shows from which random streams it draws."""
        before = dict(member.random)
        work: Any = member.work
        member.do(partial(work.all_but_update if shares else work, dict(batch)))
        member.draws = randomness.changed(before, member.random)

    def _step(self, members: Sequence[Member], batch: Batch) -> None:
        """Members' work on a batch, with gradients and an update at once for all who can have them."""
        joint = self._joint
        at_once = not any(member.draws for member in members)
        losses: list[Any] = []
        for member in members:
            work: Any = member.work
            if joint is None or member.session not in joint:
                member.do(partial(work, dict(batch)))
            elif not at_once:
                member.do(partial(work.all_but_update, dict(batch)))
            elif (loss := member.do(partial(work.loss, dict(batch)))) is not None:
                losses.append(loss)
        if joint is not None:
            self._joint = self._updated(joint, [m for m in members if m.aboard and m.session in joint], losses)

    def _updated(self, joint: Joint, crew: Sequence[Member], losses: Sequence[Any]) -> Joint | None:
        """Make the update that these members share, from losses or from gradients; returns who makes the next one."""
        began = time.perf_counter()
        if len(crew) < len(joint.sessions):
            joint.settle()
            if not crew:
                return None
            joint = Joint([member.session for member in crew])
        if losses:
            joint.backward(losses)
        goes_on = joint.step()
        spent, total = time.perf_counter() - began, sum(member.seconds for member in crew)
        for member in crew:
            member.seconds += spent * member.seconds / total
            if member.session.schedulers:
                member.do(member.work.step_schedule)  # type: ignore[attr-defined]
        return joint if goes_on else None

    def _launch(self, members: list[Member], batch: Batch) -> list[Member]:
        """Let some members step in a quicker way; returns the others."""
        return members

    def _watch(self, members: list[Member], batch: Batch) -> None:
        """Called when members have taken their first step, so that a quicker way may be found for them."""
        if able := _able(members):
            self._joint = Joint([member.session for member in able])
            self._joint.forget_gradients()

    def _results(self, members: Sequence[Member]) -> list[Result]:
        total = sum(member.seconds for member in members) or 1.0
        self.shares = [member.seconds / total for member in members]
        return [member.result for member in members]


def _able(members: Sequence[Member]) -> list[Member]:
    """Those who can share their updates, because they have made some already; nobody can alone."""
    able = [member for member in members if isinstance(member.work, Steps) and admits(member.session)]
    return able if len(able) > 1 else []


def _marks(batch: Batch) -> list[int]:
    """How often each tensor of a batch was written into."""
    columns = [value if isinstance(value, list) else [value] for value in batch.values()]
    return [value._version for column in columns for value in column if torch.is_tensor(value)]
