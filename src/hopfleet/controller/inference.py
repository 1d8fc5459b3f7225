"""The controller of work with trained models on new data: each model passes over every partition, on any idle worker.

Its messages are those of a run, so a journal of them tells what is left to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from hopfleet.domain.messages import (
    Event,
    Message,
    RunUnit,
    UnitFailed,
    UnitFinished,
    VersionLost,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef

MAX_LOSSES = 3
"""Workers that may be lost over one unit."""


@dataclass
class Candidate:
    """A trial whose model passes over the data, and what is known of its metrics so far."""

    trial: Trial
    model: VersionRef
    digest: str
    sums: dict[str, RowSum] = field(default_factory=dict)

    def unit(self, partition: int) -> Unit:
        return Unit(self.trial.id, self.trial.epochs, partition, Work.EVALUATE)


class InferenceController:
    """Gives idle workers what is left to do, until everything is done or ``error`` says why it cannot be."""

    def __init__(self, candidates: Sequence[Candidate], partitions: int) -> None:
        self._candidates = {candidate.trial.id: candidate for candidate in candidates}
        self._waiting = deque(each.unit(part) for part in range(partitions) for each in candidates)
        self._left = set(self._waiting)
        self._idle: list[str] = []
        #: The partitions that are at hand for each worker; None stands for all.
        self._held: dict[str, Collection[int] | None] = {}
        #: The attempt and the unit of each busy worker.
        self._running: dict[str, tuple[int, Unit]] = {}
        self._losses: dict[Unit, int] = {}
        self._attempts = 0
        self.error = ""

    @property
    def finished(self) -> bool:
        return not self._left or bool(self.error)

    @property
    def schedule(self) -> InferenceController:
        return self

    def find(self, trial: str) -> Candidate | None:
        return self._candidates.get(trial)

    def restore(self, messages: Iterable[Message], kept: Callable[[Unit], bool]) -> None:
        """Take over the units that a journal has as finished, as far as their results are ``kept``."""
        for message in messages:
            if isinstance(message, RunUnit):
                self._attempts = max(self._attempts, message.attempt)
            elif isinstance(message, UnitFinished) and message.unit in self._left and kept(message.unit):
                self._finish(message)
        self._waiting = deque(unit for unit in self._waiting if unit in self._left)

    def take(self, events: Iterable[Event], now: float = 0.0) -> list[Message]:
        """Return the events that count, followed by the commands that they lead to, whatever the time."""
        messages: list[Message] = [event for event in events if self._counts(event)]
        while self._idle and self._waiting and not self.error:
            worker = self._idle.pop(0)
            unit = self._take_unit(worker)
            candidate = self._candidates[unit.trial]
            self._attempts += 1
            self._running[worker] = (self._attempts, unit)
            messages.append(RunUnit(worker, unit, self._attempts, candidate.model, digest=candidate.digest))
        return messages

    def _take_unit(self, worker: str) -> Unit:
        """Return the next unit for a worker, on a partition that is at hand; others are fetched when they are read."""
        held = self._held[worker]
        unit = next((unit for unit in self._waiting if held is None or unit.partition in held), self._waiting[0])
        self._waiting.remove(unit)
        return unit

    def _counts(self, event: Event) -> bool:
        """Take in an event. Return whether it changed anything."""
        match event:
            case WorkerJoined():
                self._idle.append(event.worker)
                self._held[event.worker] = event.valid
            case WorkerLost():
                self._lose(event)
            case UnitFinished() if self._ends(event.worker, event.attempt):
                self._finish(event)
            case UnitFailed() if self._ends(event.worker, event.attempt):
                self.error = f"{event.unit.trial} failed: {event.error}\n\n{event.traceback}".rstrip()
            case VersionLost() if event.worker and self._ends(event.worker, event.attempt):
                self.error = f"{event.ref.trial} failed: {event.reason}"
            case _:
                return False
        return True

    def _finish(self, event: UnitFinished) -> None:
        """Add the metrics of a partition; those of an evaluation of all partitions take the place of the others."""
        candidate = self._candidates[event.unit.trial]
        if event.whole:
            candidate.sums = dict(event.sums)
            self._left = {unit for unit in self._left if unit.trial != event.unit.trial}
            self._waiting = deque(unit for unit in self._waiting if unit in self._left)
        elif event.unit in self._left:
            self._left.remove(event.unit)
            candidate.sums = add([candidate.sums, event.sums])

    def _ends(self, worker: str, attempt: int | None) -> bool:
        """Whether this is the end of a running attempt; its worker is idle then."""
        if worker not in self._running or self._running[worker][0] != attempt:
            return False
        del self._running[worker]
        self._idle.append(worker)
        return True

    def _lose(self, lost: WorkerLost) -> None:
        self._idle = [worker for worker in self._idle if worker != lost.worker]
        if lost.worker not in self._running:
            return
        _, unit = self._running.pop(lost.worker)
        if unit not in self._left:
            return
        self._losses[unit] = self._losses.get(unit, 0) + 1
        if self._losses[unit] == MAX_LOSSES:
            self.error = f"{unit.trial} failed: {MAX_LOSSES} workers were lost; the last one: {lost.reason}"
        self._waiting.appendleft(unit)
