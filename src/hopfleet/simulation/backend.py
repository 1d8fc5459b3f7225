"""Simulated workers in virtual time: whole experiments in milliseconds, with the real controller.

Nothing is trained. The caller gives the times of units, and metrics for searches that read them. Workers execute their
commands in order, keep models in their memory and save them to a store in memory.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hopfleet.domain.messages import (
    RELEASED,
    Command,
    Event,
    PartitionPlaced,
    PartitionUnavailable,
    RunUnit,
    SaveVersion,
    UnitFailed,
    UnitFinished,
    UnitStopped,
    VersionLost,
    VersionSaved,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.placement import SINGLE, Placement, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.simulation.store import MemoryVersions, Model
from hopfleet.store.base import VersionStore
from hopfleet.worker.spec import Profile, WorkerSpec

Seconds = Callable[[RunUnit, Trial], float]
Together = Callable[[Sequence[RunUnit], Sequence[float]], float]
Fails = Callable[[RunUnit, Trial], bool]
Metrics = Callable[[Trial, int], Mapping[str, float]]
Fetch = Callable[[str, int], float | None]
Happen = Callable[[], Event | None]

START = 1.7e9
"""The time of day when virtual time starts, in seconds since the epoch: as large as in a real run, so that code which
takes it for the seconds since the start shows its mistake in simulations, too."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The loss of a worker ``time`` seconds after the start.

    The worker comes back at ``back`` with an empty memory; None means never.
    """

    time: float
    worker: str
    back: float | None = None
    reason: str = field(default="simulated failure", kw_only=True)


@dataclass(eq=False)
class SimulatedWorker:
    """A worker that executes one command after another."""

    joined: WorkerJoined
    commands: deque[tuple[Command, Trial]] = field(default_factory=deque)
    #: Commands of an incomplete flotilla.
    members: list[tuple[RunUnit, Trial]] = field(default_factory=list)
    #: Running units by attempt: when each began, and its end in the queue.
    running: dict[int, _Running] = field(default_factory=dict)
    #: The newest model of each trial that it has had, which is kept until a newer one is needed.
    memory: dict[str, Model] = field(default_factory=dict)
    #: When its last save will be done. A model that is being saved must not be trained meanwhile.
    saves_end: float = 0.0

    @property
    def name(self) -> str:
        return self.joined.worker


_Entry = tuple[float, int, SimulatedWorker | None, Happen]


@dataclass(slots=True)
class _Running:
    command: RunUnit
    began: float
    end: _Entry


class Simulated:
    """A backend whose workers exist in virtual time only.

    ``seconds`` returns the time of each unit and evaluation, ``metrics`` the metrics of a trial after an epoch.
    ``partitions`` lists the training partitions that each worker can read (None: all), ``valid`` the validation
    partitions; a worker that is added later reads none at first, or all if the list is None. ``failures`` are the
    losses of workers. ``together`` returns the time of a flotilla, given the time of each member alone; the default is
    their sum. ``fails`` tells whether the user's code raises in a unit. ``fetch`` returns the seconds that a worker
    takes to fetch a partition, or None if it cannot. ``teams`` are the shapes of the first workers, in turn; further
    teams form in ``form_seconds``. ``placement`` tells ``seconds`` what a worker has. ``size`` returns the bytes of a
    trial's model. ``clock`` is the time of day at the start.
    """

    name = "simulated"
    #: Seconds within which events are received together with the first; a negative number: one by one.
    moment = 0.0

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
        form_seconds: float = 0.0,
        size: Callable[[Trial], int] = lambda trial: 0,
    ) -> None:
        self._seconds = seconds
        self._metrics = metrics
        self._partitions = partitions
        self._valid = valid
        self._failures = failures
        self._together = together
        self._fails = fails
        self._fetch = fetch
        self._teams = teams
        self._size = size
        self.form_seconds = form_seconds
        self.saved = MemoryVersions()
        #: Workers that are here.
        self.workers: dict[str, SimulatedWorker] = {}
        #: The worker that has made the newest version of each trial.
        self.makers: dict[str, str] = {}
        self._start = clock
        #: The virtual seconds since the start, and until the end of the last unit that was reported.
        self.elapsed = self.makespan = 0.0
        self._order = itertools.count()
        self._queue: list[_Entry] = []
        self._retired: set[str] = set()
        self._joined: dict[str, WorkerJoined] = {}
        self._names = itertools.count(1)

    # -------------------------------------------------------------------------------------------- virtual time

    def later(self, when: float, happen: Happen, worker: SimulatedWorker | None = None) -> _Entry:
        """Let something happen ``when`` seconds after the start, unless its ``worker`` is lost before."""
        entry = when, next(self._order), worker, happen
        heapq.heappush(self._queue, entry)
        return entry

    def report(self, event: Event) -> None:
        """Report an event at the present moment."""
        self.later(self.elapsed, lambda: event)

    def receive(self, timeout: float) -> list[Event]:
        """Return all events of the next moment."""
        events: list[Event] = []
        until = 0.0
        while self._queue and (not events or self._queue[0][0] <= until):
            self.elapsed, _, _, happen = heapq.heappop(self._queue)
            event = happen()
            if event is not None:
                until = until if events else self.elapsed + self.moment
                events.append(event)
        if not events:
            time.sleep(timeout)  # nothing happens until a command arrives
        return events

    def now(self) -> float:
        return self._start + self.elapsed

    # ------------------------------------------------------------------------------------------ calls of the driver

    def versions(self, checkpoints: Path) -> VersionStore:
        return self.saved

    def start(self, spec: WorkerSpec | None, workers: int) -> None:
        for number in range(workers):
            shape = self._teams[number % len(self._teams)]
            valid = None if self._valid is None else self._valid[number]
            self.join(self._partitions[number] if self._partitions is not None else None, shape, valid=valid)
        failures, self._failures = self._failures, ()
        for failure in failures:
            self.later(failure.time, partial(self._lose, failure))

    def probe(self, trial: Trial, batches: int = 0) -> Profile:
        return Profile(metrics=tuple(self._metrics(trial, 1)))

    def send(self, command: Command, trial: Trial) -> None:
        assert isinstance(command, RunUnit | SaveVersion), f"not for a worker: {command}"
        worker = self.workers.get(command.worker)
        if worker is not None:
            worker.commands.append((command, trial))
            self._continue(worker)

    def add(self, count: int) -> None:
        for _ in range(count):
            self.join(None if self._partitions is None else (), valid=None if self._valid is None else ())

    def teams_blocker(self, device: str, threads: int) -> str:
        return ""

    def form_teams(self, shapes: Sequence[TeamShape], partitions: Sequence[Sequence[int] | None] = ()) -> None:
        """Let teams join in ``form_seconds``; each reads the ``partitions`` that are listed for it, or all."""
        for number, shape in enumerate(shapes):
            self.join(partitions[number] if partitions else None, shape, self.form_seconds)

    def placement(self, worker: str) -> Placement:
        """Return the devices and the strategy of a worker that is here or was."""
        return self._joined[worker].placement

    def retire(self, worker: str) -> None:
        self._retired.add(worker)

    def release(self, worker: str) -> None:
        self.later(self.elapsed, partial(self._lose, Failure(self.elapsed, worker, reason=RELEASED)))

    def stop(self, worker: str) -> None:
        self.later(self.elapsed, partial(self._lose, Failure(self.elapsed, worker, self.elapsed)))

    def give_up(self, worker: str, attempt: int) -> None:
        busy = self.workers.get(worker)
        unit = None if busy is None else busy.running.pop(attempt, None)
        if busy is None or unit is None:
            return
        self._queue.remove(unit.end)
        heapq.heapify(self._queue)
        stopped = UnitStopped(worker, unit.command.unit, attempt, self._start + unit.began, self.now())
        self.later(self.elapsed, partial(self._ended, busy, stopped), busy)

    def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
        seconds, where = self._fetch(worker, partition), self.workers.get(worker)
        if where is None:
            return
        if seconds is None:
            event: Event = PartitionUnavailable(worker, partition, "simulated", valid)
            self.later(self.elapsed, lambda: event, where)
        else:
            self.later(self.elapsed + seconds, partial(self._placed, where, partition, valid))

    def close(self, *, kill: bool = False) -> None:
        self._queue.clear()

    # ------------------------------------------------------------------------------------------ workers come and go

    def join(
        self,
        partitions: Sequence[int] | None,
        shape: TeamShape = SINGLE,
        seconds: float = 0.0,
        *,
        valid: Sequence[int] | None = None,
    ) -> None:
        """Let a new worker join in some seconds."""
        name = f"w{next(self._names)}"
        place = Placement((self.name,) * shape.devices, shape.strategy)
        held, evaluated = (None if some is None else tuple(some) for some in (partitions, valid))
        joined = self._joined[name] = WorkerJoined(name, place, held, evaluated)
        self.later(self.elapsed + seconds, partial(self._join, joined))

    def end(self, *, durable_only: bool = True) -> None:
        """End the run's process and all workers; with ``durable_only``, the machine with its shared memory, too."""
        self.workers.clear()
        self.makers.clear()
        self._queue.clear()
        self._names = itertools.count(1)
        if durable_only:
            self.saved.release()

    def _join(self, joined: WorkerJoined) -> Event:
        self.workers[joined.worker] = SimulatedWorker(joined)
        return joined

    def _lose(self, failure: Failure) -> Event | None:
        """Lose a worker with all that it was about to report."""
        worker = self.workers.pop(failure.worker, None)
        if worker is None:
            return None
        self._queue = [entry for entry in self._queue if entry[2] is not worker]
        heapq.heapify(self._queue)
        back = failure.back if failure.worker not in self._retired else None
        if back is not None:
            self.later(max(back, self.elapsed), partial(self._join, worker.joined))
        return WorkerLost(failure.worker, failure.reason, replaced=back is not None)

    def _placed(self, worker: SimulatedWorker, partition: int, valid: bool) -> Event | None:
        here = self.workers.get(worker.name) is worker
        return PartitionPlaced(worker.name, partition, valid) if here else None

    # -------------------------------------------------------------------------------------------------- a worker

    def _continue(self, worker: SimulatedWorker) -> None:
        """Let a worker execute what it was sent, until it is busy."""
        while worker.commands and not worker.running:
            command, trial = worker.commands.popleft()
            if isinstance(command, RunUnit):
                worker.members.append((command, trial))
                if not command.more:
                    members, worker.members = worker.members, []
                    self._work(worker, members)
            elif isinstance(command, SaveVersion):
                self._save(worker, command, trial)

    def _work(self, worker: SimulatedWorker, members: Sequence[tuple[RunUnit, Trial]]) -> None:
        """Begin a unit, or the units of a flotilla, whose reports come one by one."""
        loaded = [(*each, *found) for each in members if (found := self._load(worker, each[0])) is not None]
        alone = [self._seconds(command, trial) for command, trial, *_ in loaded]
        began = max(self.elapsed, worker.saves_end)
        ended = began + (alone[0] if len(alone) == 1 else self._together([each[0] for each in loaded], alone))
        for (command, trial, model, hopped), seconds in zip(loaded, alone, strict=True):
            share, sums = self._share(seconds, alone), self._sums(command, trial)
            finish = partial(self._finish, worker, command, trial, model, (began, ended), hopped, share, sums)
            worker.running[command.attempt] = _Running(command, began, self.later(ended, finish, worker))

    def _finish(
        self,
        worker: SimulatedWorker,
        command: RunUnit,
        trial: Trial,
        model: Model,
        span: tuple[float, float],
        hopped: bool,
        share: float,
        sums: Mapping[str, RowSum],
    ) -> Event | None:
        """End a unit."""
        del worker.running[command.attempt]
        unit, (began, ended) = command.unit, span
        where, times = (worker.name, unit, command.attempt), (self._start + began, self._start + ended)
        if self._fails(command, trial):
            return self._ended(worker, UnitFailed(*where, *times, "simulated failure"))
        if unit.trains:
            model = (*model, (unit.epoch, unit.partition))
            self.makers[unit.trial] = worker.name
        worker.memory[unit.trial] = model
        return self._ended(worker, UnitFinished(*where, len(model), *times, hopped, sums, share=share))

    def _ended(self, worker: SimulatedWorker, event: Event) -> Event | None:
        self.makespan = self.elapsed
        self._continue(worker)
        return self._emit(worker, event)

    def _load(self, worker: SimulatedWorker, command: RunUnit) -> tuple[Model, bool] | None:
        """Return the model of a unit, and whether another worker made it; None if it is nowhere."""
        trial, version = command.trial, command.model.version
        hopped = command.unit.trains and self.makers.get(trial, worker.name) != worker.name
        held = worker.memory.pop(trial, None)
        if held is not None and len(held) == version:
            return held, hopped
        found = self.saved.model(command.model) if version else ()
        if found is None:
            self._say(worker, VersionLost(command.model, "not found", worker.name, command.attempt))
            return None
        return found, hopped

    def _save(self, worker: SimulatedWorker, command: SaveVersion, trial: Trial) -> None:
        ref, earlier = command.ref, command.ref._replace(attempt=command.saved)
        model = worker.memory.get(ref.trial)
        if model is None or len(model) != ref.version:
            model = self.saved.model(earlier)
        if model is None or len(model) != ref.version:
            self._say(worker, VersionLost(earlier, "not held", worker.name, ref.attempt or 0))
            return
        worker.saves_end = max(worker.saves_end, self.elapsed) + self._save_seconds()
        self.later(worker.saves_end, partial(self._finish_save, worker, command, trial, model), worker)

    def _finish_save(self, worker: SimulatedWorker, command: SaveVersion, trial: Trial, model: Model) -> Event | None:
        size = self._size(trial)
        self.saved.put(command.ref, model, durable=command.durable, size=size)
        return self._emit(worker, VersionSaved(command.ref, command.durable, "", size))

    def _say(self, worker: SimulatedWorker, event: Event) -> None:
        self.later(self.elapsed, partial(self._emit, worker, event), worker)

    # What a fleet with faults does in another way.

    def _emit(self, worker: SimulatedWorker, event: Event) -> Event | None:
        """Return a report of a worker that gets through now."""
        return event

    def _save_seconds(self) -> float:
        return 0.0

    def _share(self, seconds: float, alone: Sequence[float]) -> float:
        """Return a member's part of the time of its flotilla."""
        return seconds / (sum(alone) or 1.0)

    def _sums(self, command: RunUnit, trial: Trial) -> Mapping[str, RowSum]:
        prefix = "train_" if command.unit.trains else ""
        values = self._metrics(trial, command.unit.epoch)
        return {f"{prefix}{name}": RowSum.of(value, 1) for name, value in values.items()}
