"""Workers with memories and commands in order, shared and durable storage, and a virtual clock."""

from __future__ import annotations

import functools
import heapq
import itertools
import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hopfleet.domain import messages as m
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.trial import Trial
from hopfleet.domain.version_ref import VersionRef
from hopfleet.simulation.backend import START
from tests.helpers.virtual.settings import Setting
from tests.helpers.virtual.versions import Model, VirtualVersions

UNIT_SECONDS = (0.0, 0.25, 1.0, 2.0, 7.0)
PATIENCE = 5.0
"""Seconds until a worker is taken for dead that does not hear or is not heard."""


@functools.cache
def train_sums(trial: str, epoch: int, partition: int) -> dict[str, RowSum]:
    return {"train_loss": RowSum.of(number(trial, epoch, "train", partition), partition + 1)}


@functools.cache
def valid_sums(trial: str, epoch: int, partition: int) -> dict[str, RowSum]:
    return {"loss": RowSum.of(number(trial, epoch, "valid", partition), partition + 1)}


def number(*what: object) -> float:
    """Some number between 0 and 1 that depends on nothing else."""
    return zlib.crc32(repr(what).encode()) / 2**32


@dataclass
class FakeWorker:
    name: str
    partitions: tuple[int, ...] | None
    valid: tuple[int, ...] | None = None
    commands: deque[m.Command] = field(default_factory=deque)
    running: list[m.RunUnit] = field(default_factory=list)
    crew: list[m.RunUnit] = field(default_factory=list)  #: what is to run with what comes next
    memory: dict[str, Model] = field(default_factory=dict)
    saves_end: float = 0.0  #: when its last save will be done; saves are done in order
    alive: bool = True
    hears: bool = True  #: commands reach it
    heard: bool = True  #: its reports get through
    late: bool = False  #: they take their time, each its own; those of units keep their order
    reported: float = 0.0  #: when the last report of a unit arrives, if it is late
    lost: m.WorkerLost | None = None  #: what tells the controller that it is dead


class Fleet:
    """Workers with memories and commands in order, shared and durable storage, a virtual clock."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rng = random.Random(setting.seed)
        self.clock = START
        self.workers: dict[str, FakeWorker] = {}
        self.versions = VirtualVersions()
        self.failing: set[int] = set()  #: attempts that will raise
        self.given_up: set[int] = set()  #: attempts that are dropped before their end
        self.unsavable: set[str] = set()
        self.unloadable: set[str] = set()  #: trials from whose files no model can be made
        self.deadly: set[str] = set()  #: trials whose saves end their worker
        self.refusals = 0  #: so many partitions cannot be placed where they should
        #: Who made each attempt, and which model came out.
        self.authors: dict[int, tuple[FakeWorker, Model]] = {}
        self._names = itertools.count(1)
        self._order = itertools.count()
        self._queue: list[tuple[float, int, FakeWorker | None, Callable[[], m.Event | None]]] = []

    @property
    def storage(self) -> dict[VersionRef, tuple[Model, bool]]:
        return self.versions.storage

    def start(self) -> None:
        evaluators = self.setting.evaluators or [None] * len(self.setting.workers)
        for partitions, valid in zip(self.setting.workers, evaluators, strict=True):
            self.join(partitions, valid)

    def join(
        self, partitions: tuple[int, ...] | None, valid: tuple[int, ...] | None = None, delay: float = 0.0
    ) -> None:
        worker = FakeWorker(f"w{next(self._names)}", partitions, valid)

        def joined() -> m.Event:
            self.workers[worker.name] = worker
            return m.WorkerJoined(worker.name, Placement.on("fake"), partitions, valid)

        self.later(self.clock + delay, joined)

    def later(self, when: float, happen: Callable[[], m.Event | None], worker: FakeWorker | None = None) -> None:
        """What happens in a ``worker`` may happen after its controller's end, all the rest goes with that."""
        heapq.heappush(self._queue, (when, next(self._order), worker, happen))

    def report(self, event: m.Event) -> None:
        self.later(self.clock, lambda: event)

    def receive(self, moment: float | None = None) -> list[m.Event]:
        """What happens next, and all that follows it within a moment; nothing if nothing will ever happen any more."""
        events: list[m.Event] = []
        until = 0.0
        while self._queue and (not events or (moment is not None and self._queue[0][0] <= until)):
            self.clock, _, _, happen = heapq.heappop(self._queue)
            event = happen()
            if event is not None:
                until = until if events else self.clock + (moment or 0.0)
                events.append(event)
        return events

    def now(self) -> float:
        return self.clock

    def say(self, worker: FakeWorker, event: m.Event) -> None:
        self.later(self.clock, lambda: self.emit(worker, event), worker)

    def emit(self, worker: FakeWorker, event: m.Event) -> m.Event | None:
        """A report of a worker, if it gets through now."""
        if worker.heard and not worker.late:
            return event
        if worker.heard:
            when = self.clock + self.rng.choice([0.0, 0.5, 3.0, 9.0])
            if isinstance(event, m.UnitFinished | m.UnitFailed | m.UnitStopped):
                when = worker.reported = max(when, worker.reported)
            self.later(when, lambda: event, worker)
        return None

    # ----------------------------------------------------------------------------------- calls of the driver

    def send(self, command: m.RunUnit | m.SaveVersion, trial: Trial) -> None:
        worker = self.workers.get(command.worker)
        if worker is not None and worker.hears:
            worker.commands.append(command)
            self._go_on(worker)

    def add(self, count: int) -> None:
        for _ in range(count):
            self.join(None)

    def retire(self, worker: str) -> None:
        """Do nothing: a fault decides whether a lost worker is replaced."""

    def release(self, worker: str) -> None:
        if worker in self.workers:
            self.die(self.workers[worker], replaced=False)

    def stop(self, worker: str) -> None:
        if worker in self.workers:
            self.die(self.workers[worker], replaced=True)

    def give_up(self, worker: str, attempt: int) -> None:
        if self.rng.random() < 0.5:
            self.given_up.add(attempt)
        else:
            self.stop(worker)

    def place(self, worker: str, partition: int, *, valid: bool = False) -> None:
        self.later(self.clock + self.rng.choice([0.0, 0.5, 3.0]), lambda: self.placed(worker, partition, valid))

    def placed(self, name: str, partition: int, valid: bool) -> m.Event | None:
        worker = self.workers.get(name)
        if worker is None:
            return None
        if self.refusals:
            self.refusals -= 1
            return m.PartitionUnavailable(name, partition, "no room", valid)
        held = worker.valid if valid else worker.partitions
        assert held is not None and partition not in held
        if valid:
            worker.valid = (*held, partition)
        else:
            worker.partitions = (*held, partition)
        return m.PartitionPlaced(name, partition, valid)

    # ----------------------------------------------------------------------------------- workers come and go

    def die(self, worker: FakeWorker, *, replaced: bool, alive: bool = False) -> None:
        """Take a worker for dead; if it is ``alive`` it goes on with what it was told, and with what it says."""
        worker.alive = alive
        del self.workers[worker.name]

        def lost() -> m.Event:
            worker.lost = m.WorkerLost(worker.name, "killed", replaced=replaced)
            return worker.lost

        self.later(self.clock, lost)
        if replaced:
            self.join(worker.partitions, worker.valid, self.rng.choice([0.0, 0.5, 3.0]))

    def lose_later(self, worker: FakeWorker) -> None:
        """Take a worker for dead after a while, unless it is dead by then. It lives on."""

        def losing() -> None:
            if self.workers.get(worker.name) is worker:
                self.die(worker, replaced=True, alive=True)

        self.later(self.clock + PATIENCE, losing)

    def all_die(self, *, durable_only: bool, zombies: bool = False) -> None:
        """The end of every process, and of shared memory too when the machine is switched off.

        The controller's end may leave ``zombies``, who finish what they do. Names begin anew, so they have namesakes.
        """
        for worker in self.workers.values():
            worker.lost, worker.alive = m.WorkerLost(worker.name, "left behind"), zombies and not durable_only
        self.workers.clear()
        self._queue = [entry for entry in self._queue if entry[2] is not None]
        heapq.heapify(self._queue)
        self._names = itertools.count(1)
        if durable_only:
            self.versions.release()

    # ---------------------------------------------------------------------------------------------- a worker

    def _go_on(self, worker: FakeWorker) -> None:
        while worker.commands and not worker.running:
            match worker.commands.popleft():
                case m.SaveVersion() as command:
                    self._save(worker, command)
                case command:
                    worker.crew.append(command)
                    if not command.more:
                        crew, worker.crew = worker.crew, []
                        self._set_out(worker, crew)

    def _save(self, worker: FakeWorker, command: m.SaveVersion) -> None:
        ref, earlier = command.ref, command.ref._replace(attempt=command.saved)
        model = worker.memory.get(ref.trial)
        if (model is None or len(model) != ref.version) and earlier in self.storage:
            model = self.storage[earlier][0]
        if model is None or len(model) != ref.version:
            self.say(worker, m.VersionLost(earlier, "not held", worker.name, ref.attempt or 0))
            return
        worker.saves_end = max(worker.saves_end, self.clock) + self.rng.uniform(0, self.setting.save_seconds)

        def saved() -> m.Event | None:
            if not worker.alive:
                return None
            if ref.trial in self.unsavable:
                return self.emit(worker, m.SaveFailed(ref, "unsavable", "traceback"))
            if ref.trial in self.deadly:
                worker.alive = False
                if self.workers.get(worker.name) is worker:
                    self.die(worker, replaced=True)
                return None
            self.versions.put(ref, model, durable=command.durable)
            return self.emit(worker, m.VersionSaved(ref, command.durable, "", 0))

        self.later(worker.saves_end, saved, worker)

    def _set_out(self, worker: FakeWorker, crew: list[m.RunUnit]) -> None:
        """Units over the same rows, one or several. Their reports come one by one."""
        models = [(command, *found) for command in crew if (found := self._load(worker, command)) is not None]
        # A model that is being saved must not be trained meanwhile.
        started = max(self.clock, worker.saves_end)
        seconds = sum(1.0 if self.setting.steady else self.rng.choice(UNIT_SECONDS) for _ in models)
        ended = started + seconds / (20 if self.setting.brisk else 1)
        worker.running = [command for command, *_ in models]
        for command, model, hopped in models:
            done = partial(self._done, worker, command, model, hopped, started, ended, len(models))
            self.later(ended, done, worker)

    def _load(self, worker: FakeWorker, command: m.RunUnit) -> tuple[Model, bool] | None:
        """The model of a unit, and whether it hopped; None if it is nowhere."""
        trial, version = command.trial, command.model.version
        held = worker.memory.pop(trial, None)
        if held is not None and len(held) == version:
            return held, False
        if version == 0:
            return (), False
        intact = trial in self.unloadable
        if command.model in self.storage and not intact:
            return self.storage[command.model][0], True
        self.say(worker, m.VersionLost(command.model, "not found", worker.name, command.attempt, intact))
        return None

    def _done(
        self,
        worker: FakeWorker,
        command: m.RunUnit,
        model: Model,
        hopped: bool,
        started: float,
        ended: float,
        members: int,
    ) -> m.Event | None:
        if not worker.alive:
            return None
        worker.running.remove(command)
        unit, trial, share = command.unit, command.trial, 1 / members
        where, version = (worker.name, unit, command.attempt), command.model.version
        if command.attempt in self.failing:
            event: m.Event = m.UnitFailed(*where, started, ended, "ValueError: injected", "traceback")
        elif command.attempt in self.given_up:
            event = m.UnitStopped(*where, started, ended)
        elif unit.trains:
            worker.memory[trial] = (*model, (unit.epoch, unit.partition))
            self.authors[command.attempt] = worker, worker.memory[trial]
            sums = train_sums(trial, unit.epoch, unit.partition)
            event = m.UnitFinished(*where, version + 1, started, ended, hopped, sums, share=share)
        else:
            worker.memory[trial] = model
            assert worker.valid is None or unit.partition in worker.valid, "evaluated where the rows are not"
            covered = range(self.setting.valid) if self.setting.whole else [unit.partition]
            sums = add(valid_sums(trial, unit.epoch, partition) for partition in covered)
            whole = self.setting.whole
            event = m.UnitFinished(*where, version, started, ended, sums=sums, share=share, whole=whole)
        self._go_on(worker)
        return self.emit(worker, event)
