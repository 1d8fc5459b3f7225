"""Simulated workers that fail in every way they may."""

from __future__ import annotations

import functools
import heapq
import itertools
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.version_ref import VersionRef
from hopfleet.simulation.backend import START, Simulated, SimulatedWorker
from hopfleet.simulation.driver import AtOnce
from hopfleet.simulation.store import MemoryVersions, Model
from tests.helpers.virtual.settings import Setting

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


@dataclass(eq=False)
class FaultyWorker(SimulatedWorker):
    alive: bool = True
    hears: bool = True  #: commands reach it
    heard: bool = True  #: its reports get through
    late: bool = False  #: they take their time, each its own; those of units keep their order
    reported: float = 0.0  #: when the last report of a unit arrives, if it is late
    lost: m.WorkerLost | None = None  #: what tells the controller that it is dead


class NotedVersions(MemoryVersions):
    """Versions that note which went with the end of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.released: set[VersionRef] = set()

    def release(self) -> None:
        self.released |= {ref for ref, (_, durable) in self.files.items() if not durable}
        super().release()


class Fleet(Simulated):
    """Workers whose units take any time, and all that can go wrong with them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rng = random.Random(setting.seed)
        seconds, pace = (1.0,) if setting.steady else UNIT_SECONDS, 20 if setting.brisk else 1
        super().__init__(
            lambda command, trial: (seconds[0] if setting.steady else self.rng.choice(seconds)) / pace,
            partitions=setting.workers,
            valid=setting.evaluators or None,
            fails=lambda command, trial: command.attempt in self.failing,
            fetch=lambda worker, partition: self.rng.choice([0.0, 0.5, 3.0]),
            clock=0.0,
        )
        self.elapsed = START  # the time of day, so that reports are rounded as those of real runs
        self.moment = -1.0 if setting.moment is None else setting.moment
        self.saved = NotedVersions()
        self.failing: set[int] = set()  #: attempts that will raise
        self.given_up: set[int] = set()  #: attempts that are dropped before their end
        self.unsavable: set[str] = set()
        self.unloadable: set[str] = set()  #: trials from whose files no model can be made
        self.deadly: set[str] = set()  #: trials whose saves end their worker
        self.refusals = 0  #: number of partitions that cannot be placed where they should
        #: Who made each attempt, and which model came out.
        self.authors: dict[int, tuple[FaultyWorker, Model]] = {}

    # ----------------------------------------------------------------------------------- calls of the driver

    def send(self, command, trial):
        worker = self.workers.get(command.worker)
        if worker is not None and worker.hears:
            super().send(command, trial)

    def add(self, count):
        for _ in range(count):
            self.join(None)

    def retire(self, worker):
        """Do nothing: a fault decides whether a lost worker is replaced."""

    def release(self, worker):
        if worker in self.workers:
            self.die(self.workers[worker], replaced=False)

    def stop(self, worker):
        if worker in self.workers:
            self.die(self.workers[worker], replaced=True)

    def give_up(self, worker, attempt):
        if self.rng.random() < 0.5:
            self.given_up.add(attempt)
        else:
            self.stop(worker)

    def _placed(self, worker, partition, valid):
        placed = super()._placed(worker, partition, valid)
        if placed is not None and self.refusals:
            self.refusals -= 1
            return m.PartitionUnavailable(worker.name, partition, "no room", valid)
        if placed is not None:
            held = worker.joined.valid if valid else worker.joined.partitions
            assert held is not None and partition not in held
            worker.joined = replace(worker.joined, **{"valid" if valid else "partitions": (*held, partition)})
        return placed

    # ----------------------------------------------------------------------------------- workers come and go

    def _join(self, joined):
        self.workers[joined.worker] = FaultyWorker(joined)
        return joined

    def die(self, worker: FaultyWorker, *, replaced: bool, alive: bool = False) -> None:
        """Take a worker for dead; if it is ``alive`` it goes on with what it was told, and with what it says."""
        worker.alive = alive
        del self.workers[worker.name]

        def lost() -> m.Event:
            worker.lost = m.WorkerLost(worker.name, "killed", replaced=replaced)
            return worker.lost

        self.later(self.elapsed, lost)
        if replaced:
            joined, seconds = worker.joined, self.rng.choice([0.0, 0.5, 3.0])
            self.join(joined.partitions, seconds=seconds, valid=joined.valid)

    def lose_later(self, worker: FaultyWorker) -> None:
        """Take a worker for dead after a while, unless it is dead by then. It lives on."""

        def losing() -> None:
            if self.workers.get(worker.name) is worker:
                self.die(worker, replaced=True, alive=True)

        self.later(self.elapsed + PATIENCE, losing)

    def end(self, *, durable_only: bool = True, zombies: bool = False) -> None:
        """The end of every process, which may leave ``zombies``, who finish what they do and have namesakes then."""
        for worker in self.workers.values():
            worker.lost, worker.alive = m.WorkerLost(worker.name, "left behind"), zombies and not durable_only
        theirs = [entry for entry in self._queue if entry[2] is not None]
        super().end(durable_only=durable_only)
        self._queue = theirs
        heapq.heapify(self._queue)

    # ---------------------------------------------------------------------------------------------- a worker

    def _emit(self, worker, event):
        if worker.heard and not worker.late:
            return event
        if worker.heard:
            when = self.elapsed + self.rng.choice([0.0, 0.5, 3.0, 9.0])
            if isinstance(event, m.UnitFinished | m.UnitFailed | m.UnitStopped):
                when = worker.reported = max(when, worker.reported)
            self.later(when, lambda: event, worker)
        return None

    def _load(self, worker, command):
        version = command.model.version
        stays = version == 0 or len(worker.memory.get(command.trial, ())) == version
        if not stays and command.trial in self.unloadable:
            worker.memory.pop(command.trial, None)
            self._say(worker, m.VersionLost(command.model, "not found", worker.name, command.attempt, intact=True))
            return None
        found = super()._load(worker, command)
        return None if found is None else (found[0], command.unit.trains and not stays)

    def _save_seconds(self):
        return self.rng.uniform(0, self.setting.save_seconds)

    def _finish_save(self, worker, command, trial, model):
        if not worker.alive:
            return None
        if command.trial in self.unsavable:
            return self._emit(worker, m.SaveFailed(command.ref, "unsavable", "traceback"))
        if command.trial in self.deadly:
            worker.alive = False
            if self.workers.get(worker.name) is worker:
                self.die(worker, replaced=True)
            return None
        return super()._finish_save(worker, command, trial, model)

    def _finish(self, worker, command, trial, model, span, *rest):
        if not worker.alive:
            return None
        if command.attempt in self.given_up - self.failing:
            del worker.running[command.attempt]
            return self._ended(worker, m.UnitStopped(worker.name, command.unit, command.attempt, *span))
        return super()._finish(worker, command, trial, model, span, *rest)

    def _ended(self, worker, event):
        if isinstance(event, m.UnitFinished) and event.unit.trains:
            self.authors[event.attempt] = worker, worker.memory[event.trial]
        elif isinstance(event, m.UnitFinished):
            held = worker.joined.valid
            assert held is None or event.unit.partition in held, "evaluated where the rows are not"
            event = replace(event, whole=self.setting.whole)
        return super()._ended(worker, event)

    def _share(self, seconds, alone):
        return 1 / len(alone)

    def _sums(self, command, trial):
        unit = command.unit
        if unit.trains:
            return train_sums(unit.trial, unit.epoch, unit.partition)
        covered = range(self.setting.valid) if self.setting.whole else [unit.partition]
        return add(valid_sums(unit.trial, unit.epoch, partition) for partition in covered)


class MortalChores(AtOnce):
    """Chores that run at once, or are left undone by a process that dies."""

    def __init__(self) -> None:
        self.lost = False

    def add(self, job):
        if not self.lost:
            job()


class SlowCopies(AtOnce):
    """Copies that are made after some time; ``later`` takes the seconds. A process that dies leaves them undone."""

    DELAYS = (0.0, 0.5, 0.0, 3.0)

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._later = later
        self._delays = itertools.cycle(self.DELAYS)

    def add(self, copy):
        self._later(next(self._delays), copy)
