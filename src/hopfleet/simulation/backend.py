"""Simulated workers in virtual time: whole experiments in milliseconds, with the real controller.

Nothing is trained. The caller gives the times of units, and metrics for searches that read them.
"""

from __future__ import annotations

import dataclasses
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
    UnitStopped,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.placement import SINGLE, Placement, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.store.versions.local import Versions
from hopfleet.worker.spec import Profile, WorkerSpec

Seconds = Callable[[RunUnit, Trial], float]
Together = Callable[[Sequence[RunUnit], Sequence[float]], float]
Fails = Callable[[RunUnit, Trial], bool]
Metrics = Callable[[Trial, int], Mapping[str, float]]
Fetch = Callable[[str, int], float | None]

START = 1.7e9
"""The time of day when virtual time starts, in seconds since the epoch: as large as in a real run, so that code which
takes it for the seconds since the start shows its mistake in simulations, too."""

Report = UnitFinished | UnitFailed | UnitStopped | PartitionPlaced | PartitionUnavailable
"""Events that a lost worker can no longer report."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The loss of a worker ``time`` seconds after the start.

    The worker comes back at ``back`` with an empty memory; None means never.
    """

    time: float
    worker: str
    back: float | None = None
    reason: str = field(default="simulated failure", kw_only=True)


class Simulated:
    """A backend whose workers exist in virtual time only.

    ``seconds`` returns the time of each unit and evaluation, ``metrics`` the metrics of a trial after an epoch.
    ``partitions`` lists the training partitions that each worker can read (None: all), ``valid`` the validation
    partitions; a worker that is added later reads none at first, or all if the list is None. ``failures`` are the
    losses of workers. ``together`` returns the time of a flotilla, given the time of each member alone; the default is
    their sum. ``fails`` tells whether the user's code raises in a unit. ``fetch`` returns the seconds that a worker
    takes to fetch a partition, or None if it cannot. ``teams`` are the shapes of the first workers, in turn;
    ``placement`` tells ``seconds`` what a worker has. ``clock`` is the time of day at the start.
    """

    name = "simulated"
    form_seconds = 0.0

    def __init__(
        self,
        seconds: Seconds = lambda command, trial: 1.0,
        metrics: Metrics = lambda trial, epoch: {"loss": 1.0 / epoch},
        *,
        partitions: Sequence[Sequence[int] | None] | None = None,
        valid: Sequence[Sequence[int] | None] | None = None,
        failures: Sequence[Failure] = (),
        together: Together = lambda commands, seconds: sum(seconds),
        fails: Fails = lambda command, trial: False,
        fetch: Fetch = lambda worker, partition: 0.0,
        clock: float = START,
        teams: Sequence[TeamShape] = (SINGLE,),
    ) -> None:
        self._seconds = seconds
        self._metrics = metrics
        self._partitions = partitions
        self._valid = valid
        self._failures = failures
        self._together = together
        self._fails = fails
        #: Commands of incomplete flotillas, with their trials.
        self._members: list[tuple[RunUnit, Trial]] = []
        self._fetch = fetch
        self._teams = teams
        #: When each worker will have finished all its units, and its last unit of each trial.
        self._free: dict[str, float] = {}
        self._done: dict[tuple[str, str], float] = {}
        #: The worker that has made the newest version of each trial.
        self.makers: dict[str, str] = {}
        self._start = clock
        #: The virtual seconds since the start, and until the end of the last unit that was reported.
        self._clock = self.makespan = 0.0
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
            shape = self._teams[number % len(self._teams)]
            valid = None if self._valid is None else self._valid[number]
            self._join(self._partitions[number] if self._partitions is not None else None, shape, valid=valid)
        for failure in self._failures:
            self._later(failure.time, failure)

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        return Profile(metrics=tuple(self._metrics(trial, 1)))

    def send(self, command: Command, trial: Trial) -> None:
        match command:
            case RunUnit():
                self._members.append((command, trial))
                if not command.more:
                    members, self._members = self._members, []
                    self._work(members)
            case SaveVersion(worker=worker):
                if worker in self._alive:
                    made = max(self._clock, self._done.get((worker, command.trial), 0.0))
                    self._later(made, VersionSaved(command.ref, command.durable, "", 0))
            case CopyVersion():
                self._later(self._clock, VersionSaved(command.ref, True, "", 0))
            case _:
                raise AssertionError(f"not for a worker: {command}")

    def _work(self, members: Sequence[tuple[RunUnit, Trial]]) -> None:
        """Schedule the end of a unit, or of the units of a flotilla."""
        alone = [self._seconds(command, trial) for command, trial in members]
        worker = members[0][0].worker
        began = max(self._clock, self._free.get(worker, 0.0))
        ended = began + (alone[0] if len(members) == 1 else self._together([each for each, _ in members], alone))
        self._free[worker] = ended
        for (command, trial), seconds in zip(members, alone, strict=True):
            self._done[worker, trial.id] = ended
            share = seconds / (sum(alone) or 1.0)
            unit, where = command.unit, (command.worker, command.unit, command.attempt)
            times = self._start + began, self._start + ended
            values = self._metrics(trial, unit.epoch)
            if self._fails(command, trial):
                self._later(ended, UnitFailed(*where, *times, "simulated failure"))
            else:
                prefix = "train_" if unit.trains else ""
                sums = {f"{prefix}{name}": RowSum.of(value, 1) for name, value in values.items()}
                version = command.model.version + unit.trains
                self._later(ended, UnitFinished(*where, version, *times, sums=sums, share=share))

    def add(self, count: int) -> None:
        for _ in range(count):
            self._join(None if self._partitions is None else (), valid=None if self._valid is None else ())

    def teams_blocker(self, device: str, threads: int) -> str:
        return ""

    def form_teams(
        self, shapes: Sequence[TeamShape], seconds: float = 0.0, partitions: Sequence[Sequence[int] | None] = ()
    ) -> None:
        """Let teams join in ``seconds`` seconds; each reads the ``partitions`` that are listed for it, or all."""
        for number, shape in enumerate(shapes):
            self._join(partitions[number] if partitions else None, shape, seconds)

    @property
    def present(self) -> list[str]:
        """The workers that have joined and are not gone."""
        return sorted(self._alive)

    def placement(self, worker: str) -> Placement:
        """Return the devices and the strategy of a worker that is here or was."""
        return self._joined[worker].placement

    def retire(self, worker: str) -> None:
        self._retired.add(worker)

    def release(self, worker: str) -> None:
        self._later(self._clock, Failure(self._clock, worker, reason=RELEASED))

    def stop(self, worker: str) -> None:
        self._later(self._clock, Failure(self._clock, worker, self._clock))

    def give_up(self, worker: str, attempt: int) -> None:
        for when, order, event in self._queue:
            if isinstance(event, UnitFinished | UnitFailed) and (event.worker, event.attempt) == (worker, attempt):
                self._queue.remove((when, order, event))
                heapq.heapify(self._queue)
                began = min(event.started, self.now())
                self._later(self._clock, UnitStopped(worker, event.unit, attempt, began, self.now()))
                return

    def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
        seconds = self._fetch(worker, partition)
        if seconds is None:
            self._later(self._clock, PartitionUnavailable(worker, partition, "simulated", valid))
        else:
            self._later(self._clock + seconds, PartitionPlaced(worker, partition, valid))

    def receive(self, timeout: float) -> list[Event]:
        """Return all events of the next moment."""
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
            elif isinstance(event, UnitFinished) and event.unit.trains:
                hopped = self.makers.get(event.trial, event.worker) != event.worker
                self.makers[event.trial] = event.worker
                event = dataclasses.replace(event, hopped=hopped)
            if isinstance(event, UnitFinished | UnitFailed | UnitStopped):
                self.makespan = self._clock
            events.append(event)
        if not events:
            time.sleep(timeout)  # nothing happens until a command arrives
        return events

    def _forget(self, worker: str) -> None:
        """Discard the units of a lost worker: they never end, even if the worker comes back."""
        self._free.pop(worker, None)
        self._done = {key: done for key, done in self._done.items() if key[0] != worker}
        self._queue = [
            entry for entry in self._queue if not (isinstance(entry[2], Report) and entry[2].worker == worker)
        ]
        heapq.heapify(self._queue)

    def now(self) -> float:
        return self._start + self._clock

    @property
    def elapsed(self) -> float:
        """The virtual seconds since the start."""
        return self._clock

    def close(self, *, kill: bool = False) -> None:
        self._queue.clear()

    def _join(
        self,
        partitions: Sequence[int] | None,
        shape: TeamShape = SINGLE,
        seconds: float = 0.0,
        *,
        valid: Sequence[int] | None = None,
    ) -> None:
        name = f"w{next(self._names)}"
        place = Placement(("simulated",) * shape.devices, shape.strategy)
        held, evaluated = (None if some is None else tuple(some) for some in (partitions, valid))
        joined = WorkerJoined(name, place, held, evaluated)
        self._joined[name] = joined
        self._later(self._clock + seconds, joined)

    def _later(self, when: float, event: Event | Failure) -> None:
        heapq.heappush(self._queue, (when, next(self._order), event))
