"""The schedule as policies see it: all live trials and workers, and questions about them.

Policies read this class and never change it; ``Schedule`` adds the transitions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.allocations import Allocations
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.progress import Progress, Save
from hopfleet.scheduler.ready import Ready
from hopfleet.scheduler.slots import Slot
from hopfleet.scheduler.speeds import SAMPLE, Classes


class ScheduleView:
    """All live trials and all workers of an experiment."""

    def __init__(self, partitions: int, valid_partitions: int, estimates: Estimates | None = None) -> None:
        self.partitions = partitions
        #: The time of the latest events, in seconds since the run started; 0 while a journal is read.
        self.now = 0.0
        self.estimates = estimates or Estimates([1] * partitions)
        self.valid_partitions = valid_partitions
        #: Whether an evaluation covered all validation partitions; others will do so, too.
        self.gathers = False
        #: Trials that train, or will as soon as they can.
        self.trials: dict[str, Progress] = {}
        #: Trials that are paused or have ended.
        self.parked: dict[str, Progress] = {}
        self.slots: dict[str, Slot] = {}
        #: Workers that are about to join.
        self.starting = 0
        #: How many times faster a team of some devices is than one device, as far as known.
        self.speed: Callable[[int], float] = lambda devices: 1.0
        #: Devices of workers that leave, or have left, to make room for teams; 0 if none do.
        self.regrouping = 0
        #: Teams that form now and have not joined.
        self.forming = 0
        #: Devices that no team could use.
        self.spare = 0
        #: The devices that trials were given, and whether trials train on no other number of devices.
        self.allocations = Allocations()
        self.allocated = False
        #: Counts units that ended, in whatever way.
        self.ends = 0
        #: Counts changes in which workers can read which partitions.
        self.layouts = 0
        #: Trials whose next unit may start now. Always {t: may_train(t)}.
        self.ready: dict[str, Progress] = {}
        #: The same, by the workers that can take them and by remaining work.
        self._ready = Ready()
        #: Trials with validation partitions that no worker evaluates yet.
        self.awaiting: dict[str, Progress] = {}
        #: Saves that a disk refuses for now, and the workers that wait for it; None for a copy, which no worker makes.
        self.delayed: dict[int, str | None] = {}
        #: Saves that wait on the disks of their nodes for a storage that refuses them, and the workers that send them.
        self.unsent: dict[int, str | None] = {}
        #: Whether hops cost, so that trials stay with the workers that hold their models; see ``sticks``.
        self.sticky = False
        #: Whether partitions are copied evenly, and the count of layouts when that was found.
        self._even: tuple[int, bool] = (-1, True)
        #: Epochs that all trials together may begin, None for no limit, and those that they have begun.
        self.epoch_limit: int | None = None
        self.epochs_begun = 0
        #: Whether an unknown number of trials will be added as others end.
        self.more_to_come = False
        #: Trials that the search may still suggest, at most.
        self.suggestions_left = 0
        #: Whether some trials wait for others at the end of their epochs.
        self.chained = False
        #: Trials with a level above 0; some may have ended.
        self.urgent: set[str] = set()
        #: Workers that run nothing; see ``supposing``.
        self.idle: dict[str, Slot] = {}
        #: Training units that all live trials still owe to each partition.
        self.owed: list[int] = [0] * partitions
        self._replicas: list[int] = [0] * partitions
        #: The classes of workers, and the basis that they were found on.
        self._classes: tuple[object, Classes] = (None, ())
        #: Bytes of the largest saved model; 0 before the first.
        self.model_bytes = 0
        #: Measured time of all units that finished, and their number.
        self.seconds = 0.0
        self.measured = 0
        #: The longest of them, and the longest evaluation; 0 if there was none.
        self.longest_seconds = 0.0
        self.evaluation_seconds = 0.0

    # -------------------------------------------------------------------------------------------- questions

    def find(self, trial: str) -> Progress | None:
        """Return a trial, whatever its state."""
        return self.trials.get(trial) or self.parked.get(trial)

    @property
    def devices(self) -> int:
        """The number of devices of all workers, and of those that no team could use."""
        return sum(slot.devices for slot in self.slots.values()) + self.spare

    @property
    def epochs_left(self) -> float:
        """The number of epochs that may still begin."""
        return math.inf if self.epoch_limit is None else max(0, self.epoch_limit - self.epochs_begun)

    @property
    def overspent(self) -> str:
        """Why no epoch may begin; empty if there is no limit, or if some are left."""
        return "" if self.epochs_left else f"the budget of {self.epoch_limit} epochs is spent"

    def may_train(self, progress: Progress) -> bool:
        """Whether a trial's next unit may start, as far as the trial and the limit on epochs are concerned."""
        return progress.can_train and (self.epoch_limit is None or self.epochs_left > 0 or not progress.begins_epoch)

    def affordable(self, units: Iterable[Unit]) -> list[Unit]:
        """Return those of the units that can start together without exceeding the limit on epochs."""
        left, chosen = self.epochs_left, list[Unit]()
        for unit in units:
            begins = unit.trains and self.trials[unit.trial].begins_epoch
            if not begins or left > 0:
                chosen.append(unit)
                left -= begins
        return chosen

    def options(self, progress: Progress, slot: Slot) -> Collection[int]:
        """Return the partitions that a trial may train on next at ``slot``; none if the model cannot get there."""
        return progress.owed_to(slot.partitions) if progress.loadable_by(slot.worker) else ()

    def suits(self, progress: Progress, slot: Slot) -> bool:
        """Whether a worker has the number of devices that a trial was given, if trials are given any."""
        return not self.allocated or self.allocations.devices(progress) == slot.devices

    def longest(self, slot: Slot) -> Progress | None:
        """Return the ready trial with options at ``slot`` that has the most work left.

        Ties go to a trial whose model the worker holds, then to the one that has been ready for the longest time.
        """
        if self.allocated:
            return max(
                self.able(slot), key=lambda each: (self.remaining(each), each.holder == slot.worker), default=None
            )
        return self._ready.longest(slot.worker, self._mean_seconds)

    def longest_held(self, slot: Slot) -> Progress | None:
        """Return the same among the trials whose models the worker holds."""
        if self.allocated:
            held = [progress for progress in self.able(slot) if progress.holder == slot.worker]
            return max(held, key=self.remaining, default=None)
        return self._ready.longest_held(slot.worker)

    def draw(self, slot: Slot, rng: random.Random) -> Progress | None:
        """Draw one of the ready trials with options at ``slot``, each with the same chance."""
        if self.allocated:
            able = self.able(slot)
            return rng.choice(able) if able else None
        return self._ready.draw(slot.worker, rng)

    def able(self, slot: Slot) -> list[Progress]:
        """Return all ready trials with options at ``slot``, in arbitrary order."""
        found = self._ready.able(slot.worker)
        return [progress for progress in found if self.suits(progress, slot)] if self.allocated else found

    def unevaluated(self, progress: Progress) -> Iterator[int]:
        """Yield the validation partitions that still need an evaluation.

        Where an evaluation is expected to cover all of them, the others wait for its report.
        """
        if self.gathers and progress.evaluates_on and not progress.evaluated:
            return
        for partition in range(self.valid_partitions):
            if partition not in progress.evaluated and partition not in progress.evaluates_on:
                yield partition

    def can_evaluate(self, slot: Slot, partition: int) -> bool:
        """Whether a worker can read a validation partition, and all others where an evaluation covers all of them."""
        return slot.valid is None or (partition in slot.valid and not self.gathers)

    def evaluations(self, progress: Progress, slot: Slot, *, elsewhere: bool = False) -> Iterator[int]:
        """Yield the validation partitions that a worker should evaluate a trial on, once it can load the model.

        Partitions that the worker with the model in memory can read are left to it, unless ``elsewhere`` is true.
        """
        holder = self.slots.get(progress.holder or "", slot)
        leaves = holder is not slot and not elsewhere
        for partition in self.unevaluated(progress):
            if self.can_evaluate(slot, partition) and not (leaves and self.can_evaluate(holder, partition)):
                yield partition

    def unit_seconds(self, progress: Progress) -> float:
        """Return the expected time of a unit of this trial: its own mean, the overall mean, or 1."""
        return progress.unit_seconds if progress.known else self._mean_seconds

    @property
    def _mean_seconds(self) -> float:
        return self.seconds / self.measured if self.measured else 1.0

    def remaining(self, progress: Progress) -> float:
        """Return the expected time of all units that a trial still has to train, on the devices that it was given."""
        units = self.allocations.units_left(progress) if self.allocated else progress.units_left
        return self.unit_seconds(progress) * units

    def expected(self, progress: Progress, worker: str, partition: int) -> float:
        """Return the expected time of one unit of a trial on one worker."""
        return self.estimates.expected(progress.trial.id, progress.trial.number, worker, partition)

    def load(self, slot: Slot) -> float:
        """Return the number of units that wait for a worker; replicas of a partition share its units evenly."""
        mine = range(self.partitions) if slot.partitions is None else slot.partitions
        return sum(self.owed[partition] / self._replicas[partition] for partition in mine)

    def replicas(self, partition: int) -> int:
        """Count the workers in use that can read a training partition."""
        return self._replicas[partition]

    @property
    def sticks(self) -> bool:
        """Whether a trial stays with the worker that holds its model for as long as it owes anything there."""
        return self.sticky and self.even

    @property
    def even(self) -> bool:
        """Whether no worker would keep trials from others that read less, if trials stayed where they are.

        So it is if no partition is on two workers, or all workers read as many, and each partition is as often there.
        """
        if self._even[0] != self.layouts:
            inside = [slot.partitions for slot in self.slots.values() if not slot.retired]
            reads = {self.partitions if some is None else len(some) for some in inside}
            even = max(self._replicas) <= 1 or len(reads) == len(set(self._replicas)) == 1
            self._even = self.layouts, even
        return self._even[1]

    @property
    def classes(self) -> Classes:
        """The workers in use by speed, the fastest first; one class if all are about equally fast."""
        sample = tuple(islice(self.trials, SAMPLE))
        basis = self.layouts, self.measured, sample
        if basis != self._classes[0]:
            workers = [slot.worker for slot in self.slots.values() if not slot.retired]
            numbers = [self.trials[trial].trial.number for trial in sample]
            self._classes = basis, self.estimates.classes(workers, numbers)
        return self._classes[1]

    def keeps(self, slot: Slot) -> bool:
        """Whether a trial may go on where it is now."""
        if any(True for progress in self.awaiting.values() for _ in self.evaluations(progress, slot)):
            return True
        return any(
            self.trials[unit.trial].goes_on(slot.partitions, unit.partition if unit.trains else None)
            for unit in slot.units
        )

    @contextmanager
    def supposing(self, idle: dict[str, Slot]) -> Iterator[None]:
        """Let policies see exactly these workers as idle."""
        before, self.idle = self.idle, idle
        try:
            yield
        finally:
            self.idle = before

    @property
    def under_way(self) -> bool:
        """Whether a unit runs, a model is being saved or a team is forming, which is all that a policy may wait for."""
        if self.regrouping or (self.forming and self.starting) or any(slot.units for slot in self.slots.values()):
            return True
        saves = (each for progress in self.trials.values() for each in progress.saves.items())
        return any(not save.waits and attempt not in self.unsent for attempt, save in saves)

    def accepts(self, worker: str, unit: Unit, attempt: int) -> bool:
        """Whether a report about ``unit`` comes from its current attempt."""
        slot = self.slots.get(worker)
        return slot is not None and slot.told.get(unit) == attempt

    def runs(self, worker: str | None, attempt: int) -> bool:
        """Whether ``worker`` was told to run ``attempt`` and has not ended it."""
        slot = self.slots.get(worker or "")
        return slot is not None and attempt in slot.told.values()

    def refers(self, ref: VersionRef) -> bool:
        """Whether a file is the current one of its version, or is still to be dropped."""
        trial, version, attempt = ref
        progress = self.find(trial)
        if progress is None:
            return False
        saved = progress.saved.get(version)
        return (saved is not None and saved.attempt == attempt) or (version, attempt) in progress.stale

    def saved_by(self, worker: str) -> list[tuple[Progress, Save]]:
        """Return the newest save of each trial that a worker writes or is to write, unless a disk delays any."""
        found: list[tuple[Progress, Save]] = []
        for progress in self.trials.values():
            saves = {number: save for number, save in progress.saves.items() if save.worker == worker}
            if saves and (self.delayed.keys() | self.unsent.keys()).isdisjoint(saves):
                found.append((progress, [*saves.values()][-1]))
        return found

    @property
    def stuck(self) -> set[str | None]:
        """Return the workers with saves that a disk or a storage refuses for now; None stands for copies."""
        return {*self.delayed.values(), *self.unsent.values()}

    def files(self) -> Iterator[VersionRef]:
        """Yield every version file that may still be needed."""
        for name, progress in [*self.trials.items(), *self.parked.items()]:
            for version, saved in progress.saved.items():
                yield VersionRef(name, version, saved.attempt)
