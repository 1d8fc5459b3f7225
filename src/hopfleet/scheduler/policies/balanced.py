"""The policy for replicated partitions: divide the work by a linear program, then let workers steal when done.

The shares cover all remaining work of all epochs. They are recomputed when workers join or leave, when many trials were
added, and when unit times differ from the estimates; a few new trials go to the workers with the least work. Workers
join one by one, and shares that ignore workers still to come would be wrong; therefore at the beginning, while some
partitions have fewer copies than others, every worker starts with a short unit.

The remaining work is updated trial by trial, since a decision must not scan all units of a large experiment.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hopfleet.domain.unit import Unit
from hopfleet.planner.balance import Balance, Cell, Outlook, balance, choose
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment, Slot

FEW = 0.1
"""New trials, as part of all trials, up to which the shares are kept."""
DRIFT = 0.02
"""Mean relative change of expected times up to which the shares are kept."""


class Balanced:
    """The policy's state for one controller."""

    def __init__(self) -> None:
        self._layouts: int | None = None
        self._balance: Balance
        #: The seconds of every unit of an epoch, by trial and partition, then by worker.
        self._cells: dict[Cell, dict[str, float]] = {}
        #: Trials added after the balance was made.
        self._newcomers: set[str] = set()
        self._next_refresh = 1
        self._left = _Left()

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        if not schedule.measured and len(set(map(schedule.replicas, range(schedule.partitions)))) > 1:
            return _shortest(schedule)
        self._update_balance(schedule)
        self._left.follow(schedule, self._cells, self._balance)
        outlook = self._outlook(schedule)
        for slot in sorted(schedule.idle.values(), key=lambda slot: -outlook.worker_left[slot.worker]):
            cell = self._chosen(schedule, slot, outlook)
            if cell is not None:
                return Assignment(slot.worker, Unit(cell[0], schedule.trials[cell[0]].epoch, cell[1]))
        return None if outlook.worker_free else longest_remaining(schedule, rng)

    def _chosen(self, schedule: Schedule, slot: Slot, outlook: Outlook) -> Cell | None:
        # A model that is being saved is available at any moment, and already is on the worker that holds it.
        coming = [trial for trial, progress in schedule.ready.items() if not progress.loadable_by(slot.worker)]
        outlook = replace(outlook, config_free={**outlook.config_free, **dict.fromkeys(coming, schedule.now)})
        own = [cell for cell in self._left.own[slot.worker] if _trains(schedule, cell[0])]
        return choose(slot.worker, own, self._others(schedule, slot), self._cells, self._balance, outlook)

    def _others(self, schedule: Schedule, slot: Slot) -> Iterator[Cell]:
        """Yield the cells that a worker could steal."""
        for worker, cells in self._left.own.items():
            if worker != slot.worker:
                for cell in cells:
                    if slot.worker in self._cells[cell] and _trains(schedule, cell[0]):
                        yield cell

    def _outlook(self, schedule: Schedule) -> Outlook:
        worker_free: dict[str, float] = {}
        trial_free: dict[str, float] = {}
        for slot in schedule.slots.values():
            free = slot.started
            for units in (slot.units, slot.lookahead):
                training = [each for each in units if each.trains]
                free += sum(self._cells[each.trial, each.partition][slot.worker] for each in training)
                trial_free |= dict.fromkeys((each.trial for each in training), free)
            if slot.unit is not None and slot.worker not in schedule.idle:
                worker_free[slot.worker] = free
        return Outlook(schedule.now, worker_free, trial_free, self._left.workers, self._left.trials)

    # ------------------------------------------------------------------------------------------ shares

    def _update_balance(self, schedule: Schedule) -> None:
        """Make a new balance if the current one is outdated; assign the units of new trials otherwise."""
        new = schedule.trials.keys() - self._left.trials.keys()
        self._newcomers |= new
        others = schedule.layouts != self._layouts or len(self._newcomers) > FEW * len(schedule.trials)
        if others or (schedule.measured >= self._next_refresh and self._learned(schedule)):
            self._layouts = schedule.layouts
            self._rebalance(schedule)
        elif new:
            self._assign_new(schedule, new)

    def _learned(self, schedule: Schedule) -> bool:
        """Whether expected unit times differ from those that the balance was made with."""
        self._next_refresh = min(2 * schedule.measured, schedule.measured + 4 * len(schedule.trials))
        moved = [
            abs(math.log(schedule.expected(progress, worker, partition) / seconds))
            for (trial, partition), row in self._cells.items()
            if (progress := schedule.trials.get(trial)) is not None
            for worker, seconds in row.items()
        ]
        return sum(moved) > DRIFT * len(moved)

    def _rebalance(self, schedule: Schedule) -> None:
        self._cells.clear()
        self._newcomers = set()
        for progress in schedule.trials.values():
            self._estimate(schedule, progress)
        cells = {
            (trial, partition): {w: count * s for w, s in self._cells[trial, partition].items()}
            for trial, progress in schedule.trials.items()
            for partition, count in _owed(schedule, progress).items()
        }
        outlook = self._outlook(schedule)
        # Busy workers and trials can take less. Times count from now; overdue units count as ending now.
        shares = balance(
            cells,
            worker_ready={worker: max(0.0, free - schedule.now) for worker, free in outlook.worker_free.items()},
            config_ready={trial: max(0.0, free - schedule.now) for trial, free in outlook.config_free.items()},
        )
        # Units that are not owed now may be owed again after a fault.
        fastest = {cell: min(row, key=row.__getitem__) for cell, row in self._cells.items()}
        self._balance = Balance(0.0, {}, {**fastest, **shares.worker}, 0.0)
        self._left = _Left(schedule.slots)
        self._set_limit(schedule)

    def _assign_new(self, schedule: Schedule, new: set[str]) -> None:
        """Assign each unit of new trials to the worker that would finish it first."""
        room = dict(self._left.workers)
        assigned = dict(self._balance.worker)
        for trial in sorted(new):
            for cell in self._estimate(schedule, schedule.trials[trial]):
                seconds = self._cells[cell]
                worker = min(seconds, key=lambda worker: room[worker] + seconds[worker])
                room[worker] += seconds[worker]
                assigned[cell] = worker
        self._balance = replace(self._balance, worker=assigned)
        self._set_limit(schedule)

    def _estimate(self, schedule: Schedule, progress: Progress) -> list[Cell]:
        """Fill in the cells of a trial, and return them; cells of partitions without a worker are left out."""
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

    def _set_limit(self, schedule: Schedule) -> None:
        """Set the time by which all work should be done."""
        self._left.follow(schedule, self._cells, self._balance)
        outlook = self._outlook(schedule)
        ends = [*map(outlook.worker_ends, outlook.worker_left), *map(outlook.config_ends, outlook.config_left)]
        self._balance = replace(self._balance, peak=max(ends, default=0.0))


class _Left:
    """The remaining work of a balance: seconds per worker and per trial, and the cells that each worker may start."""

    def __init__(self, workers: Iterable[str] = ()) -> None:
        self.workers = dict.fromkeys(workers, 0.0)
        self.trials: dict[str, float] = {}
        #: The cells of the current epochs that have not started, by assigned worker.
        self.own: dict[str, dict[Cell, None]] = {worker: {} for worker in self.workers}
        #: The progress of each trial at the last update, and the trial's contribution to the fields above.
        self._seen: dict[str, tuple[object, ...]] = {}
        self._added: dict[str, list[tuple[Cell, str, float]]] = {}

    def follow(self, schedule: Schedule, cells: dict[Cell, dict[str, float]], balance: Balance) -> None:
        """Update the contributions of trials that progressed since the last update."""
        for trial in self._seen.keys() - schedule.trials.keys():
            self._remove(trial)
            del self._seen[trial], self._added[trial], self.trials[trial]
        for trial, progress in schedule.trials.items():
            seen = (
                len(progress.visits),
                progress.trains_on,
                progress.epochs_ended,
                progress.outcome,
                len(progress.forced),
            )
            if seen != self._seen.get(trial):
                self._remove(trial)
                self._seen[trial] = seen
                self._add(schedule, progress, cells, balance)

    def _remove(self, trial: str) -> None:
        for cell, worker, seconds in self._added.get(trial, ()):
            self.workers[worker] -= seconds
            self.own[worker].pop(cell, None)

    def _add(
        self, schedule: Schedule, progress: Progress, cells: dict[Cell, dict[str, float]], balance: Balance
    ) -> None:
        trial = progress.trial.id
        next_up = {progress.forced[0]} if progress.forced else progress.todo
        added = []
        for partition, times in _owed(schedule, progress).items():
            cell = trial, partition
            worker = balance.worker[cell]
            seconds = times * cells[cell][worker]
            added.append((cell, worker, seconds))
            self.workers[worker] += seconds
            if partition in next_up and partition != _running(schedule, progress):
                self.own[worker][cell] = None
        self._added[trial] = added
        self.trials[trial] = math.fsum(seconds for _, _, seconds in added)


def _trains(schedule: Schedule, trial: str) -> bool:
    """Whether a trial is training or ready to train."""
    return trial in schedule.ready or schedule.trials[trial].trains_on is not None


def _shortest(schedule: Schedule) -> Assignment | None:
    """Return the shortest unit that can start."""
    units = [
        (schedule.expected(progress, slot.worker, partition), slot.worker, Unit(trial, progress.epoch, partition))
        for slot in schedule.idle.values()
        for trial, progress in schedule.ready.items()
        for partition in schedule.options(progress, slot)
    ]
    best = min(units, key=lambda each: each[0], default=None)
    return None if best is None else Assignment(best[1], best[2])


def _running(schedule: Schedule, progress: Progress) -> int | None:
    """Return the partition that a trial trains on now, or None."""
    if progress.trains_on is None:
        return None
    return schedule.slots[progress.trains_on].unit_of(progress.trial.id).partition


def _owed(schedule: Schedule, progress: Progress) -> dict[int, int]:
    """Return how often a trial will still visit each partition that has a worker, without the running unit."""
    epochs = progress.trial.epochs if progress.outcome is None else progress.epochs_ended
    laps = (epochs * schedule.partitions - progress.version - 1) // schedule.partitions
    running = _running(schedule, progress)
    owed = {}
    for partition in range(schedule.partitions):
        times = laps + (partition in progress.todo and partition != running)
        if times > 0 and schedule.replicas(partition):
            owed[partition] = times
    return owed
