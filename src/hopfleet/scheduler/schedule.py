"""The state machine of units: who may run what, and what follows when it ends.

    waiting --start--> running --finish--> done
       ^                  |
       +------abandon-----+     the worker was lost, or the model could not be loaded: it did not happen

Every transition checks, in constant time, that it breaks none of the four invariants of model hopping, and raises
InvariantBroken with the trial's story if it would. Policies read this class and never change it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.progress import Outcome, Progress, Readable, Save, Saved
from hopfleet.scheduler.ready import Ready

TINY = 1e-6
"""No unit counts as having taken less, whatever a clock that was set back may say."""


@dataclass(slots=True)
class Slot:
    """One worker, as the scheduler sees it."""

    worker: str
    partitions: Readable
    #: What it runs now, and under which attempt numbers: one unit, or those of a flotilla.
    units: dict[Unit, int] = field(default_factory=dict)
    flotilla: int = 0
    #: The same for the units that come next.
    lookahead: dict[Unit, int] = field(default_factory=dict)
    lookahead_flotilla: int = 0
    #: The schedule's time when it began what it runs, as far as anybody knows.
    started: float = 0.0
    #: The training partition that it read last.
    warm: int | None = None
    #: It gets nothing more to do.
    retired: bool = False
    #: It was told that it may go.
    released: bool = False
    #: Why what it runs is given up, if it is: it takes too long.
    overdue: str = ""

    @property
    def unit(self) -> Unit | None:
        """What it runs: one unit, or the first of a flotilla, whose members have all but the trial in common."""
        return next(iter(self.units), None)

    @property
    def attempt(self) -> int:
        """The number of that unit; 0 if it runs none."""
        return next(iter(self.units.values()), 0)

    @property
    def told(self) -> dict[Unit, int]:
        """All that it was told to do and nobody has ended, what it runs first."""
        return self.units | self.lookahead if self.lookahead else self.units

    def unit_of(self, trial: str) -> Unit:
        """The unit of a trial here; without a trial, the first."""
        return next(unit for unit in self.told if trial in ("", unit.trial))


@dataclass(frozen=True, slots=True)
class Assignment:
    """A policy's answer: this unit on this worker."""

    worker: str
    unit: Unit


class Schedule:
    """All live trials and all workers of an experiment."""

    def __init__(self, partitions: int, valid_partitions: int, estimates: Estimates | None = None) -> None:
        self.partitions = partitions
        #: The latest time that an event has told.
        self.now = 0.0
        self.estimates = estimates or Estimates([1] * partitions)
        self.valid_partitions = valid_partitions
        #: Trials that train, or will as soon as they can.
        self.trials: dict[str, Progress] = {}
        #: Trials that are paused or have ended.
        self.parked: dict[str, Progress] = {}
        self.slots: dict[str, Slot] = {}
        #: Grows when it changes who can read what.
        self.layouts = 0
        #: Trials whose next unit may start now. Always {t: can_train}.
        self.ready: dict[str, Progress] = {}
        #: The same, by who can take them and by what they have left.
        self._ready = Ready()
        #: Trials with validation partitions that nobody evaluates yet.
        self.awaiting: dict[str, Progress] = {}
        #: Saves that a disk does not take for now, and the workers that wait for it.
        self.delayed: dict[int, str] = {}
        #: Whether a trial stays with the worker that holds its model for as long as it owes anything there: hops cost.
        self.sticky = False
        #: Whether trials will be added as others end, nobody knows how many.
        self.more_to_come = False
        #: Trials with a level above 0; some may have ended.
        self.urgent: set[str] = set()
        #: Workers that run nothing; see ``supposing``.
        self.idle: dict[str, Slot] = {}
        #: Training units that all live trials still owe to each partition.
        self.owed: list[int] = [0] * partitions
        self._replicas: list[int] = [0] * partitions
        #: The most that a saved model took; 0 while nobody knows.
        self.model_bytes = 0
        #: Measured time of all units that finished, and their number.
        self.seconds = 0.0
        self.measured = 0
        #: The longest of them, and the longest evaluation; 0 if there was none.
        self.longest_seconds = 0.0
        self.evaluation_seconds = 0.0

    # -------------------------------------------------------------------------------------------- questions

    def find(self, trial: str) -> Progress | None:
        """A trial, whatever its state."""
        return self.trials.get(trial) or self.parked.get(trial)

    def options(self, progress: Progress, slot: Slot) -> Collection[int]:
        """The partitions that ``progress`` may train on next at ``slot``; none if it cannot get the model there."""
        return progress.owed_to(slot.partitions) if progress.loadable_by(slot.worker) else ()

    def longest(self, slot: Slot) -> Progress | None:
        """The ready trial with options at ``slot`` that has the most left.

        Ties go to a trial whose model the worker holds, then to the one that has been ready for the longest time.
        """
        return self._ready.longest(slot.worker, self._mean_seconds)

    def longest_held(self, slot: Slot) -> Progress | None:
        """The same, among the trials whose models its worker holds."""
        return self._ready.longest_held(slot.worker)

    def draw(self, slot: Slot, rng: random.Random) -> Progress | None:
        """Each ready trial with options at ``slot`` with the same chance."""
        return self._ready.draw(slot.worker, rng)

    def able(self, slot: Slot) -> list[Progress]:
        """All ready trials with options at ``slot``, in no order that means anything."""
        return self._ready.able(slot.worker)

    def unevaluated(self, progress: Progress) -> Iterator[int]:
        """Validation partitions that still need somebody to evaluate them."""
        return (
            partition
            for partition in range(self.valid_partitions)
            if partition not in progress.evaluated and partition not in progress.evaluates_on
        )

    def unit_seconds(self, progress: Progress) -> float:
        """The expected time of a unit of this trial: its own mean, or everybody's, or 1."""
        return progress.unit_seconds if progress.known else self._mean_seconds

    @property
    def _mean_seconds(self) -> float:
        return self.seconds / self.measured if self.measured else 1.0

    def remaining(self, progress: Progress) -> float:
        """The expected time of all units that this trial still has to train."""
        return self.unit_seconds(progress) * progress.units_left

    def expected(self, progress: Progress, worker: str, partition: int) -> float:
        """The expected time of one unit of this trial on one worker."""
        return self.estimates.expected(progress.trial.id, progress.trial.number, worker, partition)

    def load(self, slot: Slot) -> float:
        """Units that wait for this worker, those on replicated partitions shared out evenly."""
        mine = range(self.partitions) if slot.partitions is None else slot.partitions
        return sum(self.owed[partition] / self._replicas[partition] for partition in mine)

    def replicas(self, partition: int) -> int:
        """How many live workers that are given something to do can read a training partition."""
        return self._replicas[partition]

    def keeps(self, slot: Slot) -> bool:
        """Whether a trial may want to go on where it is now."""
        if any(progress.holder == slot.worker for progress in self.awaiting.values()):
            return True
        return any(
            self.trials[unit.trial].goes_on(slot.partitions, unit.partition if unit.trains else None)
            for unit in slot.units
        )

    @contextmanager
    def supposing(self, idle: dict[str, Slot]) -> Iterator[None]:
        """Let policies see these workers as idle, whatever they do, and no others."""
        before, self.idle = self.idle, idle
        try:
            yield
        finally:
            self.idle = before

    def accepts(self, worker: str, unit: Unit, attempt: int) -> bool:
        """Whether a report about ``unit`` comes from the attempt that is running now."""
        slot = self.slots.get(worker)
        return slot is not None and slot.told.get(unit) == attempt

    def runs(self, worker: str | None, attempt: int) -> bool:
        """Whether ``attempt`` is what ``worker`` does now."""
        slot = self.slots.get(worker or "")
        return slot is not None and attempt in slot.told.values()

    def refers(self, ref: VersionRef) -> bool:
        """Whether the file of a save is the version, or is still to be dropped."""
        trial, version, attempt = ref
        progress = self.find(trial)
        if progress is None:
            return False
        saved = progress.saved.get(version)
        return (saved is not None and saved.attempt == attempt) or (version, attempt) in progress.stale

    def files(self) -> Iterator[VersionRef]:
        """Yield every version file that may still be needed."""
        for name, progress in [*self.trials.items(), *self.parked.items()]:
            for version, saved in progress.saved.items():
                yield VersionRef(name, version, saved.attempt)

    # ---------------------------------------------------------------------------------------------- workers

    def join(self, worker: str, partitions: Iterable[int] | None) -> None:
        if worker in self.slots:
            raise InvariantBroken(f"worker {worker} joined twice")
        slot = Slot(worker, None if partitions is None else frozenset(partitions))
        self.slots[worker] = self.idle[worker] = slot
        self._ready.join(worker, slot.partitions)
        self._count_replicas(slot, 1)
        self.layouts += 1
        if len(self.slots) == 1:
            # Trials are compared with each other as this one would train them; for the others it is much the same.
            for progress in self.trials.values():
                progress.expected = self.estimates.beforehand(progress.trial.number, worker)
                self._refresh(progress)

    def leave(self, worker: str) -> dict[Unit, int]:
        """Forget a worker and what its memory held. Returns the units that it was running, with their numbers.

        What it was to do after that has not begun, and waits for others.
        """
        slot = self.slots.pop(worker)
        self.idle.pop(worker, None)
        self._ready.leave(worker)
        if not slot.retired:
            self._count_replicas(slot, -1)
        self.layouts += 1
        for progress in self.trials.values():
            if progress.holder == worker:
                progress.holder = None
            self._forget_saves(progress, [number for number, save in progress.saves.items() if save.worker == worker])
        running = dict(slot.units)
        for unit in list(slot.told):
            self._refresh(self._release(slot, unit))
        return running

    def retire(self, worker: str) -> None:
        """Give a worker nothing more to do. What only it can read is out of reach from now on."""
        slot = self.slots[worker]
        self._count_replicas(slot, -1)
        slot.retired = True
        self.layouts += 1
        self.idle.pop(worker, None)

    def place(self, worker: str, partition: int) -> None:
        """A worker can read one partition more."""
        slot = self.slots[worker]
        assert slot.partitions is not None and partition not in slot.partitions
        slot.partitions |= {partition}
        if not slot.retired:
            self._replicas[partition] += 1
        self.layouts += 1
        self._ready.leave(worker)
        self._ready.join(worker, slot.partitions)
        for progress in self.ready.values():
            if progress.holder == worker:
                self._ready.put(progress)

    def _count_replicas(self, slot: Slot, by: int) -> None:
        for partition in range(self.partitions) if slot.partitions is None else slot.partitions:
            self._replicas[partition] += by

    # ----------------------------------------------------------------------------------------------- trials

    def add(self, trial: Trial, order: Iterable[int] = (), visits: Iterable[int] = ()) -> Progress:
        """Take in a trial; ``order`` fixes the partitions to visit beforehand, ``visits`` are those of its parent."""
        progress = self.trials[trial.id] = Progress(trial, self.partitions)
        if self.slots:
            progress.expected = self.estimates.beforehand(trial.number, next(iter(self.slots)))
        for partition in visits:
            progress.visit(partition)
        progress.epochs_ended = progress.version // self.partitions
        progress.forced.extend(order)
        self._owe(progress, 1)
        self._refresh(progress)
        return progress

    def park(self, trial: str, state: TrialState) -> None:
        """Pause or end a trial that runs nothing."""
        if trial in self.parked:
            self.parked[trial].become(state)
            return
        progress = self.trials[trial]
        if progress.trains_on or progress.evaluates_on:
            raise InvariantBroken(f"non-preemption: {trial} cannot end while it runs: {progress.story()}")
        progress.become(state)
        self._owe(progress, -1)
        del self.trials[trial]
        progress.holder = None
        self._forget_saves(progress, list(progress.saves))
        if state.ended:
            self.estimates.forget(trial)
        self.ready.pop(trial, None)
        self._ready.remove(trial)
        self.awaiting.pop(trial, None)
        self.parked[trial] = progress

    def resume(self, trial: str, epochs: int, order: Iterable[int] = ()) -> None:
        """Let a trial train until ``epochs``; ``order`` continues its fixed order."""
        if trial in self.parked:
            progress = self.trials[trial] = self.parked.pop(trial)
            progress.become(TrialState.RUNNING)
        else:
            progress = self.trials[trial]
            self._owe(progress, -1)
        progress.trial = replace(progress.trial, epochs=epochs)
        progress.outcome = None
        progress.forced.extend(order)
        self._owe(progress, 1)
        self._refresh(progress)

    def _owe(self, progress: Progress, sign: int) -> None:
        """Count the units that a trial has left as owed, or no more."""
        for partition in range(self.partitions):
            self.owed[partition] += sign * progress.trial.epochs
        for partition in progress.visits:
            self.owed[partition] -= sign

    def roll_back(self, trial: str, version: int) -> None:
        progress = self.trials[trial]
        for partition in progress.roll_back(version):
            self.owed[partition] += 1
        progress.saved = {number: saved for number, saved in progress.saved.items() if number <= version}
        self._forget_saves(progress, [number for number, save in progress.saves.items() if save.version > version])
        self._refresh(progress)

    def end_epoch(self, trial: str) -> None:
        progress = self.trials[trial]
        progress.epochs_ended += 1
        progress.evaluated.clear()
        progress.trained.clear()
        self._refresh(progress)

    def settle(self, trial: str, outcome: Outcome) -> None:
        """The trial goes no further, and ends as soon as nothing of it is under way."""
        progress = self.trials[trial]
        progress.outcome = outcome
        self._refresh(progress)

    def prioritise(self, trial: str, level: int) -> None:
        self.trials[trial].level = level
        self.urgent.discard(trial)
        if level > 0:
            self.urgent.add(trial)

    def save(self, trial: str, attempt: int, save: Save) -> None:
        """A save begins."""
        self.trials[trial].saves[attempt] = save

    def saved(self, ref: VersionRef, durable: bool, digest: str = "") -> None:
        """End a save: its file is the version from now on, unless a more durable file already is."""
        progress, (_, version, attempt) = self.trials[ref.trial], ref
        assert attempt is not None
        self._forget_saves(progress, [attempt])
        saved = Saved(attempt, durable, digest)
        before = progress.saved.get(version, saved)
        if before.durable and not durable:
            before, saved = saved, before
        progress.saved[version] = saved
        if before.attempt != saved.attempt:
            progress.stale.append((version, before.attempt))
        if version == progress.version:
            self._refresh(progress)

    def premature(self, ref: VersionRef) -> None:
        """End a save whose unit is not known to have finished: its file is useless, and the version is not saved."""
        assert ref.attempt is not None
        progress = self.trials[ref.trial]
        self._forget_saves(progress, [ref.attempt])
        progress.stale.append((ref.version, ref.attempt))

    def dropped(self, ref: VersionRef) -> None:
        """Forget a file that is deleted because no unit needs it."""
        trial, version, attempt = ref
        assert attempt is not None
        progress = self.parked.get(trial) or self.trials[trial]
        if (version, attempt) in progress.stale:
            progress.stale.remove((version, attempt))
            return
        self._lose_file(progress, version, attempt)
        if version == progress.version and trial in self.trials:
            self._refresh(progress)

    def lost(self, ref: VersionRef, worker: str | None, attempt: int = 0) -> None:
        """Forget the unusable file ``ref``, and ``attempt``, which needed it; ``worker`` does not hold the version."""
        progress = self.trials[ref.trial]
        if progress.holder == worker and progress.version == ref.version:
            progress.holder = None
        self._lose_file(progress, ref.version, ref.attempt)
        self._forget_saves(progress, [attempt])
        self._refresh(progress)

    def forget_saves(self) -> None:
        """Nothing is being saved any more."""
        for progress in self.trials.values():
            self._forget_saves(progress, list(progress.saves))

    def _forget_saves(self, progress: Progress, attempts: Iterable[int]) -> None:
        for attempt in attempts:
            progress.saves.pop(attempt, None)
            self.delayed.pop(attempt, None)

    def _lose_file(self, progress: Progress, version: int, attempt: int | None) -> None:
        if version in progress.saved and progress.saved[version].attempt == attempt:
            del progress.saved[version]

    # ------------------------------------------------------------------------------------------------ units

    def start(self, worker: str, unit: Unit, attempt: int, flotilla: int = 0, *, lookahead: bool = False) -> None:
        """waiting -> running, at once or, with ``lookahead``, after the worker's current units."""
        slot, progress = self.slots[worker], self.trials[unit.trial]
        units, number = (slot.lookahead, slot.lookahead_flotilla) if lookahead else (slot.units, slot.flotilla)
        first = next(iter(units), None)
        if first is not None and not (flotilla and flotilla == number and _alike(first, unit)):
            raise InvariantBroken(f"exclusive access: {worker} already runs: {first}; asked: {unit}")
        if lookahead and not slot.units:
            raise InvariantBroken(f"exclusive access: {worker} runs nothing that {unit} could come after")
        if unit.trains:
            if progress.trains_on is not None or progress.evaluates_on:
                raise InvariantBroken(f"isolation: {unit}, but it runs already: {progress.story()}")
            if unit.partition not in self.options(progress, slot) or unit.epoch != progress.epoch:
                raise InvariantBroken(f"completeness: {unit} is not owed on {worker}: {progress.story()}")
            progress.trains_on = worker
        else:
            if unit.partition in progress.evaluated or unit.partition in progress.evaluates_on:
                raise InvariantBroken(f"completeness: {unit} twice: {progress.story()}")
            progress.evaluates_on[unit.partition] = worker
        units[unit] = attempt
        if lookahead:
            slot.lookahead_flotilla = flotilla
        else:
            slot.flotilla = flotilla
            self._begin(slot)
        self.idle.pop(worker, None)
        self._refresh(progress)

    def finish(self, worker: str, unit: Unit, seconds: float, sums: Mapping[str, RowSum]) -> None:
        """running -> done."""
        progress = self._release(self.slots[worker], unit)
        if unit.trains:
            self._finish_training(progress, worker, unit, max(seconds, TINY), sums)
        else:
            progress.evaluated[unit.partition] = sums
            progress.evaluation_seconds = max(progress.evaluation_seconds, seconds)
            self.evaluation_seconds = max(self.evaluation_seconds, seconds)
        self._refresh(progress)

    def _finish_training(
        self, progress: Progress, worker: str, unit: Unit, seconds: float, sums: Mapping[str, RowSum]
    ) -> None:
        if progress.state is TrialState.PENDING:
            progress.become(TrialState.RUNNING)
        progress.visit(unit.partition)
        if progress.version > progress.epochs_ended * self.partitions:  # not a re-run of an epoch that has ended
            progress.trained[progress.version] = sums
        progress.holder = worker
        progress.losses.clear()
        progress.seconds += seconds
        progress.measured += 1
        self.seconds += seconds
        self.measured += 1
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.owed[unit.partition] -= 1
        self.estimates.measured(unit.trial, progress.trial.number, worker, unit.partition, seconds)

    def abandon(self, worker: str, trial: str = "") -> None:
        """running -> waiting: it did not happen. Of ``trial``, if there are several."""
        slot = self.slots[worker]
        self._refresh(self._release(slot, slot.unit_of(trial)))

    def _release(self, slot: Slot, unit: Unit) -> Progress:
        progress = self.trials[unit.trial]
        if unit.trains:
            progress.trains_on = None
        else:
            del progress.evaluates_on[unit.partition]
        del (slot.units if unit in slot.units else slot.lookahead)[unit]
        if not slot.units:
            slot.overdue = ""
            slot.units, slot.flotilla = slot.lookahead, slot.lookahead_flotilla
            slot.lookahead, slot.lookahead_flotilla = {}, 0
            self._begin(slot)
            if not slot.units and slot.worker in self.slots and not slot.retired:
                self.idle[slot.worker] = slot
        return progress

    def _begin(self, slot: Slot) -> None:
        """A worker begins what it runs."""
        slot.started = self.now
        if slot.unit is not None and slot.unit.trains:
            slot.warm = slot.unit.partition

    def _refresh(self, progress: Progress) -> None:
        """Keep ``ready`` and ``awaiting`` true for one trial."""
        name = progress.trial.id
        if progress.can_train:
            self.ready[name] = progress
            self._ready.put(progress)
        elif self.ready.pop(name, None) is not None:
            self._ready.remove(name)
        wanted = progress.awaits_evaluation and progress.outcome is None and progress.trains_on is None
        if wanted and any(True for _ in self.unevaluated(progress)):
            self.awaiting[name] = progress
        else:
            self.awaiting.pop(name, None)


def _alike(one: Unit, other: Unit) -> bool:
    """Whether two units read the same rows in the same order, so that they can share them."""
    return (one.work, one.epoch, one.partition) == (other.work, other.epoch, other.partition)
