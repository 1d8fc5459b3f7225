"""The state machine of units: which trial may run where, and what follows when a unit ends.

    waiting --start--> running --finish--> done
       ^                  |
       +------abandon-----+     the worker was lost, or the model could not be loaded: it did not happen

Every transition checks, in constant time, that it breaks none of the first four invariants of model hopping, and raises
InvariantBroken with the trial's story if it would. Nothing else changes the progress of trials or the slots of workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from hopfleet.domain.placement import TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.domain.unit import Unit
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.progress import Outcome, Progress, Readable, Setback
from hopfleet.scheduler.slots import Slot
from hopfleet.scheduler.versions import VersionRecords

TINY = 1e-6
"""Least seconds that a unit counts as having taken, even if the clock was set back."""


class Schedule(VersionRecords):
    """All live trials and all workers of an experiment."""

    # ---------------------------------------------------------------------------------------------- workers

    def join(
        self, worker: str, partitions: Iterable[int] | None, devices: int = 1, valid: Iterable[int] | None = None
    ) -> None:
        if worker in self.slots:
            raise InvariantBroken(f"worker {worker} joined twice")
        slot = Slot(worker, None if partitions is None else frozenset(partitions), devices)
        slot.valid = self._some_valid(valid)
        self.slots[worker] = self.idle[worker] = slot
        self.forming = max(0, self.forming - 1)
        self._ready.join(worker, slot.partitions)
        self._count_replicas(slot, 1)
        self.layouts += 1
        self.estimates.joins(worker, self.speed(devices))
        if len(self.slots) == 1:
            # Compare trials by their times on this worker; the order is much the same on the others.
            for progress in self.trials.values():
                self._expect(progress, slot)
                self._refresh(progress)

    def leave(self, worker: str) -> dict[Unit, int]:
        """Forget a worker and the models in its memory; return the units that it ran, with their attempts.

        Units that were to come next have not begun, and wait for other workers.
        """
        slot = self.slots.pop(worker)
        if self.regrouping and slot.for_teams and not slot.released:
            self.regrouping = max(1, self.regrouping - slot.devices)  # its device may be gone, too
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

    def retire(self, worker: str, *, for_teams: bool = False) -> None:
        """Give a worker no more units. Partitions that only this worker can read are out of reach from now on."""
        slot = self.slots[worker]
        self._count_replicas(slot, -1)
        slot.retired = True
        self.layouts += 1
        self.idle.pop(worker, None)
        if for_teams:
            slot.for_teams = True
            self.regrouping += slot.devices + self.spare
            self.spare = 0
        # A person leaves at least one worker, so all retire only to make room for teams; old journals do not say so.
        elif not self.regrouping and all(other.retired for other in self.slots.values()):
            for other in self.slots.values():
                other.for_teams = True
            self.regrouping = self.devices

    def form_teams(self, shapes: Iterable[TeamShape]) -> None:
        """Note which teams take the place of workers that have left."""
        shapes = list(shapes)
        self.forming = len(shapes)
        self.spare, self.regrouping = max(0, self.regrouping - sum(shape.devices for shape in shapes)), 0

    def allocate(self, teams: tuple[int, ...], devices: Mapping[str, int], until: Mapping[str, int]) -> None:
        """Give trials numbers of devices until the end of some epochs, on teams of these sizes."""
        self.allocations.teams = teams
        for trial, count in devices.items():
            self.allocations.grant(self.trials[trial], count, until[trial])

    def release(self, worker: str) -> None:
        """Note that a retired worker was told to go."""
        self.slots[worker].released = True

    def mark_overdue(self, worker: str, reason: str) -> None:
        """Note why a worker's current unit is given up."""
        self.slots[worker].overdue = reason

    def place(self, worker: str, partition: int) -> None:
        """Let a worker read one more partition."""
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

    def place_valid(self, worker: str, partition: int) -> None:
        """Let a worker read one more validation partition."""
        slot = self.slots[worker]
        assert slot.valid is not None and partition not in slot.valid
        slot.valid = self._some_valid([*slot.valid, partition])

    def _some_valid(self, partitions: Iterable[int] | None) -> Readable:
        """Return validation partitions that a worker can read; None if these are all."""
        found = None if partitions is None else frozenset(partitions)
        return None if found is None or len(found) == self.valid_partitions else found

    def _count_replicas(self, slot: Slot, by: int) -> None:
        for partition in range(self.partitions) if slot.partitions is None else slot.partitions:
            self._replicas[partition] += by

    # ----------------------------------------------------------------------------------------------- trials

    def add(
        self,
        trial: Trial,
        order: Iterable[int] = (),
        visits: Iterable[int] = (),
        trained: Mapping[int, Mapping[str, RowSum]] | None = None,
        onward: int = 0,
    ) -> Progress:
        """Add a trial.

        ``order`` fixes the partitions to visit. A warm clone has its parent's ``visits`` and the sums that the parent
        ``trained`` in the current epoch. ``onward`` counts the epochs that follow the trial's last one.
        """
        progress = self.trials[trial.id] = Progress(trial, self.partitions, onward=onward)
        self.chained |= onward > 0
        if self.slots:
            self._expect(progress, next(iter(self.slots.values())))
        for partition in visits:
            progress.visit(partition)
        progress.epochs_ended = progress.begun = progress.version // self.partitions
        lender = None if trial.parent is None else self.find(trial.parent.trial)
        if lender is not None:
            progress.metrics = dict(lender.metrics)
        progress.forced.extend(order)
        progress.trained |= trained or {}
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

    def _expect(self, progress: Progress, slot: Slot) -> None:
        """Note how long a trial's units are expected to take on one device."""
        seconds = self.estimates.beforehand(progress.trial.number, slot.worker)
        progress.expected = None if seconds is None else seconds * self.speed(slot.devices)

    def resume(self, trial: str, epochs: int, order: Iterable[int] = (), onward: int = 0) -> None:
        """Let a trial train until ``epochs``; ``order`` continues its fixed order, and ``onward`` epochs follow."""
        if trial in self.parked:
            progress = self.trials[trial] = self.parked.pop(trial)
            progress.become(TrialState.RUNNING)
        else:
            progress = self.trials[trial]
            self._owe(progress, -1)
        progress.trial = replace(progress.trial, epochs=epochs)
        progress.onward, progress.outcome = onward, None
        progress.forced.extend(order)
        self._owe(progress, 1)
        self._refresh(progress)

    def _owe(self, progress: Progress, sign: int) -> None:
        """Add a trial's remaining units to those owed, or take them away."""
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

    def end_epoch(
        self, trial: str, best: tuple[int, tuple[bool, float]] | None = None, metric: float | None = None
    ) -> None:
        """End an epoch with the goal's metric; ``best`` is its version and rank if it is the trial's best so far."""
        progress = self.trials[trial]
        progress.best = best or progress.best
        progress.epochs_ended += 1
        if metric is not None:
            progress.metrics[progress.epochs_ended] = metric
        progress.evaluated.clear()
        progress.trained.clear()
        self._refresh(progress)

    def delete(self, trial: str) -> None:
        """Forget a trial that is paused or has ended."""
        del self.parked[trial]

    def lend(self, lender: Progress, clone: str, version: int) -> Mapping[int, Mapping[str, RowSum]]:
        """Keep a version until a clone has it; return the lender's training sums of that version's epoch."""
        lender.lends[clone] = version
        before = version - version % self.partitions
        return {made: sums for made, sums in lender.trained.items() if before < made <= version}

    def return_loan(self, lender: Progress, clone: str) -> bool:
        """Note that a clone needs its parent's version no longer; return whether it did until now."""
        return lender.lends.pop(clone, None) is not None

    def settle(self, trial: str, outcome: Outcome) -> None:
        """Let a trial end with ``outcome`` as soon as none of its units and saves is under way."""
        progress = self.trials[trial]
        progress.outcome = outcome
        self._refresh(progress)

    def prioritise(self, trial: str, level: int) -> None:
        self.trials[trial].level = level
        self.urgent.discard(trial)
        if level > 0:
            self.urgent.add(trial)

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
            goes_on = lookahead and slot.trains(unit.trial)
            if (progress.trains_on is not None and not goes_on) or progress.evaluates_on:
                raise InvariantBroken(f"isolation: {unit}, but it runs already: {progress.story()}")
            if unit.partition not in self._owed(progress, slot, goes_on=goes_on) or unit.epoch != progress.epoch:
                raise InvariantBroken(f"completeness: {unit} is not owed on {worker}: {progress.story()}")
            progress.trains_on = worker
            self._begin_epoch(progress, unit.epoch)
        else:
            if unit.partition in progress.evaluated or unit.partition in progress.evaluates_on:
                raise InvariantBroken(f"completeness: {unit} twice: {progress.story()}")
            if not self.can_evaluate(slot, unit.partition):
                raise InvariantBroken(f"completeness: {unit}, which {worker} cannot read: {progress.story()}")
            progress.evaluates_on[unit.partition] = worker
        units[unit] = attempt
        if lookahead:
            slot.lookahead_flotilla = flotilla
        else:
            slot.flotilla = flotilla
            self._begin(slot)
        self.idle.pop(worker, None)
        self._refresh(progress)

    def _owed(self, progress: Progress, slot: Slot, *, goes_on: bool) -> Collection[int]:
        """Return the partitions that a trial may train on next, or after its unit if it ``goes_on`` at ``slot``."""
        if not goes_on:
            return self.options(progress, slot)
        assert slot.unit is not None
        return progress.owed_after(slot.unit.partition, slot.partitions)

    def _begin_epoch(self, progress: Progress, epoch: int) -> None:
        """Count an epoch when its first unit starts."""
        if epoch > progress.begun:
            progress.begun = epoch
            self.epochs_begun += 1
            if self.epochs_left == 0:
                for other in list(self.ready.values()):
                    self._refresh(other)

    def finish(self, worker: str, unit: Unit, seconds: float, sums: Mapping[str, RowSum], whole: bool = False) -> None:
        """running -> done; ``whole`` tells whether an evaluation covered all validation partitions."""
        progress = self._release(self.slots[worker], unit)
        if unit.trains:
            self._finish_training(progress, worker, unit, max(seconds, TINY), sums)
        else:
            progress.finish_evaluation(unit.partition, seconds, sums, self.valid_partitions if whole else 1)
            self.evaluation_seconds = max(self.evaluation_seconds, seconds)
            self.gathers |= whole
            for other in [*self.awaiting.values()] if whole else ():
                self._refresh(other)
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
        self.forgive(unit.trial, Setback.UNIT)
        alone = seconds * self.speed(self.slots[worker].devices)
        progress.seconds += alone
        progress.measured += 1
        self.seconds += alone
        self.measured += 1
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.owed[unit.partition] -= 1
        self.estimates.measured(unit.trial, progress.trial.number, worker, unit.partition, seconds)

    def abandon(self, worker: str, trial: str) -> None:
        """running -> waiting: the unit of a trial did not happen, and so no other can follow it."""
        slot = self.slots[worker]
        for unit in [unit for unit in slot.told if unit.trial == trial]:
            self._refresh(self._release(slot, unit))

    def give_up(self, worker: str, trial: str) -> None:
        """running -> waiting: the unit of a trial was given up halfway, and its worker has dropped the model."""
        progress = self.trials[trial]
        if progress.holder == worker:
            progress.holder = None
        self.abandon(worker, trial)

    def _release(self, slot: Slot, unit: Unit) -> Progress:
        progress, self.ends = self.trials[unit.trial], self.ends + 1
        del (slot.units if unit in slot.units else slot.lookahead)[unit]
        if not unit.trains:
            del progress.evaluates_on[unit.partition]
        elif not (slot.lookahead and slot.trains(unit.trial)):
            progress.trains_on = None
        if not slot.units:
            slot.overdue = ""
            slot.units, slot.flotilla = slot.lookahead, slot.lookahead_flotilla
            slot.lookahead, slot.lookahead_flotilla = {}, 0
            self._begin(slot)
            if not slot.units and slot.worker in self.slots and not slot.retired:
                self.idle[slot.worker] = slot
        return progress

    def _begin(self, slot: Slot) -> None:
        """Note that a worker begins its current units."""
        slot.started = self.now
        if slot.unit is not None and slot.unit.trains:
            slot.warm = slot.unit.partition


def _alike(one: Unit, other: Unit) -> bool:
    """Whether two units read the same rows in the same order, so that they can share batches."""
    return (one.work, one.epoch, one.partition) == (other.work, other.epoch, other.partition)
