"""With replicas: share the work out by a linear program, then let everybody do their own and steal when done.

The shares cover all that is left, of all epochs. They are made again when workers come or go, when many trials have
come, and as unit times are learned; a few new trials go where there is room.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from hopfleet.domain.unit import Unit, Work
from hopfleet.planner.balance import Balance, Cell, Outlook, balance, choose
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Assignment, Schedule, Slot

FEW = 0.1
"""New trials, as part of all, that need no new shares."""


class Balanced:
    """A policy for one controller."""

    def __init__(self) -> None:
        self._workers: list[str] = []
        self._balance = Balance(0.0, {}, {}, 0.0)
        #: Seconds of every unit of an epoch, by trial and partition, then by worker.
        self._cells: dict[Cell, dict[str, float]] = {}
        #: Trials that are in ``_cells``, and those that came after the balance was made.
        self._known: set[str] = set()
        self._guests: set[str] = set()
        self._next_refresh = 1

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        self._take_in(schedule)
        outlook = self._outlook(schedule)
        for slot in sorted(schedule.idle.values(), key=lambda slot: -outlook.worker_left.get(slot.worker, 0.0)):
            cell = self._chosen(schedule, slot, outlook)
            if cell is not None:
                return Assignment(slot.worker, Unit(cell[0], schedule.trials[cell[0]].epoch, cell[1]))
        return None if outlook.worker_free else longest_remaining(schedule, rng)

    def _chosen(self, schedule: Schedule, slot: Slot, outlook: Outlook) -> Cell | None:
        # A model that is being saved comes at any moment; to the worker that holds it, it is there.
        coming = {
            trial: schedule.now
            for trial, progress in schedule.ready.items()
            if not progress.loadable_by(slot.worker) and trial not in outlook.config_free
        }
        if coming:
            outlook = replace(outlook, config_free={**outlook.config_free, **coming})
        waiting = [
            (trial, partition)
            for trial, progress in schedule.trials.items()
            if trial in schedule.ready or progress.trains_on is not None
            for partition in _todo(schedule, progress)
            if slot.partitions is None or partition in slot.partitions
            if not progress.forced or partition == progress.forced[0]
        ]
        return choose(slot.worker, waiting, self._cells, self._balance, outlook)

    # ------------------------------------------------------------------------------------------- what is left

    def _outlook(self, schedule: Schedule) -> Outlook:
        worker_free, trial_free = {}, {}
        for slot in schedule.slots.values():
            unit = slot.unit
            if unit is not None:
                seconds = 0.0
                if unit.work is Work.TRAIN:
                    seconds = self._cells[unit.trial, unit.partition][slot.worker]
                    trial_free[unit.trial] = slot.started + seconds
                worker_free[slot.worker] = slot.started + seconds
        worker_left, trial_left = self._left(schedule, schedule.trials)
        return Outlook(schedule.now, worker_free, trial_free, worker_left, trial_left)

    def _left(self, schedule: Schedule, trials: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds that each worker and each of these trials has left by the balance."""
        workers = dict.fromkeys(schedule.slots, 0.0)
        left = dict.fromkeys(trials, 0.0)
        for trial in left:
            for partition, times in _owed(schedule, schedule.trials[trial]).items():
                worker = self._balance.worker[trial, partition]
                seconds = times * self._cells[trial, partition][worker]
                workers[worker] += seconds
                left[trial] += seconds
        return workers, left

    # ------------------------------------------------------------------------------------------ who does what

    def _take_in(self, schedule: Schedule) -> None:
        """See whether the balance still holds, and make another if not."""
        new = schedule.trials.keys() - self._known
        self._guests |= new
        learned = schedule.measured >= self._next_refresh
        if learned or list(schedule.slots) != self._workers or len(self._guests) > FEW * len(schedule.trials):
            self._workers = list(schedule.slots)
            self._next_refresh = min(2 * schedule.measured, schedule.measured + 4 * len(schedule.trials)) or 1
            self._rebalance(schedule)
        elif new:
            self._accommodate(schedule, new)

    def _rebalance(self, schedule: Schedule) -> None:
        self._cells.clear()
        self._known = set(schedule.trials)
        self._guests = set()
        for progress in schedule.trials.values():
            self._estimate(schedule, progress)
        times = {
            (trial, partition): count
            for trial, progress in schedule.trials.items()
            for partition, count in _owed(schedule, progress).items()
        }
        cells = {cell: {w: count * s for w, s in self._cells[cell].items()} for cell, count in times.items()}
        shares = balance(cells)
        # What is not owed may be owed again after a fault.
        fastest = {cell: min(row, key=row.__getitem__) for cell, row in self._cells.items()}
        self._balance = Balance(0.0, {}, {**fastest, **shares.worker}, 0.0)
        self._promise(schedule)

    def _accommodate(self, schedule: Schedule, new: set[str]) -> None:
        """Give the units of new trials to whoever would be done with them first."""
        self._known |= new
        room, _ = self._left(schedule, [trial for trial in schedule.trials if trial not in new])
        assigned = dict(self._balance.worker)
        for trial in sorted(new):
            for cell in self._estimate(schedule, schedule.trials[trial]):
                seconds = self._cells[cell]
                worker = min(seconds, key=lambda worker: room[worker] + seconds[worker])
                room[worker] += seconds[worker]
                assigned[cell] = worker
        self._balance = replace(self._balance, worker=assigned)
        self._promise(schedule)

    def _estimate(self, schedule: Schedule, progress: Progress) -> list[Cell]:
        """Fill in the cells of a trial; those whose partition nobody has are left out."""
        cells = []
        for partition in range(schedule.partitions):
            seconds = {
                worker: schedule.expected(progress, worker, partition)
                for worker, slot in schedule.slots.items()
                if slot.partitions is None or partition in slot.partitions
            }
            if seconds:
                cells.append((progress.trial.id, partition))
                self._cells[cells[-1]] = seconds
        return cells

    def _promise(self, schedule: Schedule) -> None:
        """Fix the time by which all should be done."""
        outlook = self._outlook(schedule)
        ends = [*map(outlook.worker_ends, outlook.worker_left), *map(outlook.config_ends, outlook.config_left)]
        self._balance = replace(self._balance, peak=max(ends, default=0.0))


def _todo(schedule: Schedule, progress: Progress) -> list[int]:
    """The partitions of a trial's current epoch that are somewhere and that it does not train on yet."""
    running = None
    if progress.trains_on is not None:
        unit = schedule.slots[progress.trains_on].unit
        assert unit is not None
        running = unit.partition
    return [partition for partition in progress.todo if partition != running and schedule.replicas(partition)]


def _owed(schedule: Schedule, progress: Progress) -> dict[int, int]:
    """How often a trial will visit each partition that is somewhere."""
    epochs = progress.trial.epochs if progress.outcome is None else progress.epochs_ended
    left = epochs * schedule.partitions - progress.version
    if left <= 0:
        return {}
    laps = (left - 1) // schedule.partitions
    owed = {partition: laps for partition in range(schedule.partitions) if laps and schedule.replicas(partition)}
    for partition in _todo(schedule, progress):
        owed[partition] = laps + 1
    return owed
