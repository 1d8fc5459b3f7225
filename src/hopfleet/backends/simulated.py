"""Workers that only pretend, in virtual time: whole experiments in milliseconds, with the real controller.

Unit times are given; nothing is trained. Metrics may be given too, for searches that look at them.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hopfleet.domain.messages import (
    RELEASED,
    Command,
    CopyVersion,
    Event,
    PartitionPlaced,
    PartitionUnavailable,
    RunUnit,
    SaveVersion,
    UnitFailed,
    UnitFinished,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.store.versions.local import Versions
from hopfleet.worker.spec import Profile, WorkerSpec

Seconds = Callable[[RunUnit, Trial], float]
Together = Callable[[Sequence[RunUnit], Sequence[float]], float]
Fails = Callable[[RunUnit, Trial], bool]
Metrics = Callable[[Trial, int], Mapping[str, float]]
Fetch = Callable[[str, int], float | None]

Report = UnitFinished | UnitFailed | PartitionPlaced | PartitionUnavailable
"""What a lost worker says no more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that is lost at a time, and comes back empty-handed at another, or never."""

    time: float
    worker: str
    back: float | None = None
    reason: str = field(default="simulated failure", kw_only=True)


class Simulated:
    """``seconds`` gives the time of each unit and evaluation, ``metrics`` the result of a trial after an epoch.

    ``partitions`` gives, for each worker, the partitions that it can read (None: all); those that are added later can
    read none at first, or all if all can. ``failures`` tell when a worker is lost and when, if ever, it comes back;
    ``together`` tells what a flotilla takes, given the time of each member alone: by default their sum;
    ``fails`` tells whether the user's code would raise; ``fetch`` how long a worker takes to get hold of another
    partition, or None if it cannot.
    """

    name = "simulated"

    def __init__(
        self,
        seconds: Seconds = lambda command, trial: 1.0,
        metrics: Metrics = lambda trial, epoch: {"loss": 1.0 / epoch},
        *,
        partitions: Sequence[Sequence[int] | None] | None = None,
        failures: Sequence[Failure] = (),
        together: Together = lambda commands, seconds: sum(seconds),
        fails: Fails = lambda command, trial: False,
        fetch: Fetch = lambda worker, partition: 0.0,
        clock: float = 0.0,
    ) -> None:
        self._seconds = seconds
        self._metrics = metrics
        self._partitions = partitions
        self._failures = failures
        self._together = together
        self._fails = fails
        #: Commands of incomplete flotillas, with their trials.
        self._crew: list[tuple[RunUnit, Trial]] = []
        self._fetch = fetch
        #: When each worker will be done with what it was told, and with each trial of it.
        self._free: dict[str, float] = {}
        self._done: dict[tuple[str, str], float] = {}
        self._clock = clock
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Event | Failure]] = []
        self._alive: set[str] = set()
        self._retired: set[str] = set()
        self._joined: dict[str, WorkerJoined] = {}
        self._names = itertools.count(1)

    def versions(self, checkpoints: Path) -> Versions:
        return Versions(checkpoints)

    def start(self, spec: WorkerSpec | None, workers: int) -> None:
        for number in range(workers):
            self._join(self._partitions[number] if self._partitions is not None else None)
        for failure in self._failures:
            self._later(failure.time, failure)

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        return Profile(metrics=tuple(self._metrics(trial, 1)))

    def send(self, command: Command, trial: Trial) -> None:
        match command:
            case RunUnit():
                self._crew.append((command, trial))
                if not command.more:
                    crew, self._crew = self._crew, []
                    self._work(crew)
            case SaveVersion(worker=worker):
                if worker in self._alive:
                    made = max(self._clock, self._done.get((worker, command.trial), 0.0))
                    self._later(made, VersionSaved(command.ref, command.durable, "", 0))
            case CopyVersion():
                self._later(self._clock, VersionSaved(command.ref, True, "", 0))
            case _:
                raise AssertionError(f"not for a worker: {command}")

    def _work(self, crew: Sequence[tuple[RunUnit, Trial]]) -> None:
        alone = [self._seconds(command, trial) for command, trial in crew]
        worker = crew[0][0].worker
        began = max(self._clock, self._free.get(worker, 0.0))
        ended = began + (alone[0] if len(crew) == 1 else self._together([each for each, _ in crew], alone))
        self._free[worker] = ended
        for (command, trial), seconds in zip(crew, alone, strict=True):
            self._done[worker, trial.id] = ended
            share = seconds / (sum(alone) or 1.0)
            unit, where = command.unit, (command.worker, command.unit, command.attempt)
            values = self._metrics(trial, unit.epoch)
            if self._fails(command, trial):
                self._later(ended, UnitFailed(*where, began, ended, "simulated failure"))
            else:
                prefix = "train_" if unit.trains else ""
                sums = {f"{prefix}{name}": RowSum.of(value, 1) for name, value in values.items()}
                version = command.model.version + unit.trains
                self._later(ended, UnitFinished(*where, version, began, ended, sums=sums, share=share))

    def add(self, count: int) -> None:
        for _ in range(count):
            self._join(None if self._partitions is None else ())

    def retire(self, worker: str) -> None:
        self._retired.add(worker)

    def release(self, worker: str) -> None:
        self._later(self._clock, Failure(self._clock, worker, reason=RELEASED))

    def stop(self, worker: str) -> None:
        self._later(self._clock, Failure(self._clock, worker, self._clock))

    def place(self, worker: str, partition: int) -> None:
        seconds = self._fetch(worker, partition)
        if seconds is None:
            self._later(self._clock, PartitionUnavailable(worker, partition, "simulated"))
        else:
            self._later(self._clock + seconds, PartitionPlaced(worker, partition))

    def receive(self, timeout: float) -> list[Event]:
        """All that happens at the next moment."""
        events: list[Event] = []
        while self._queue and (not events or self._queue[0][0] == self._clock):
            self._clock, _, event = heapq.heappop(self._queue)
            if isinstance(event, Failure):
                if event.worker not in self._alive:
                    continue
                self._alive.remove(event.worker)
                self._forget(event.worker)
                back = event.back is not None and event.worker not in self._retired
                if event.back is not None and back:
                    self._later(max(event.back, self._clock), self._joined[event.worker])
                event = WorkerLost(event.worker, event.reason, replaced=back)
            elif isinstance(event, WorkerJoined):
                self._alive.add(event.worker)
            elif isinstance(event, Report) and event.worker not in self._alive:
                continue
            events.append(event)
        if not events:
            time.sleep(timeout)  # nothing happens until a command arrives
        return events

    def _forget(self, worker: str) -> None:
        """What a lost worker was doing never ends, also if it comes back."""
        self._free.pop(worker, None)
        self._done = {key: done for key, done in self._done.items() if key[0] != worker}
        self._queue = [
            entry for entry in self._queue if not (isinstance(entry[2], Report) and entry[2].worker == worker)
        ]
        heapq.heapify(self._queue)

    def now(self) -> float:
        return self._clock

    def close(self, *, kill: bool = False) -> None:
        self._queue.clear()

    def _join(self, partitions: Sequence[int] | None) -> None:
        name = f"w{next(self._names)}"
        joined = WorkerJoined(name, Placement.on("simulated"), None if partitions is None else tuple(partitions))
        self._joined[name] = joined
        self._later(self._clock, joined)

    def _later(self, when: float, event: Event | Failure) -> None:
        heapq.heappush(self._queue, (when, next(self._order), event))
