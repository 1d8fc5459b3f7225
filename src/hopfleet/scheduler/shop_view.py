"""The floor of a live schedule, kept up to date by what changed since the last look.

Only for schedules in which every partition has at most one worker; ``layout`` tells.
"""

from __future__ import annotations

import enum
import math

from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Assignment, Schedule
from hopfleet.scheduler.shop_state import Floor, Start

DRIFT = 0.05
"""Expected times that moved by this much of themselves in the mean, and by more than the noise, are news."""


class Layout(enum.Enum):
    EVERYWHERE = enum.auto()  #: every worker reads every partition
    PINNED = enum.auto()  #: no partition is on two workers
    REPLICATED = enum.auto()


def layout(schedule: Schedule) -> Layout:
    most = max(schedule.replicas(partition) for partition in range(schedule.partitions))
    if most <= 1:
        return Layout.PINNED
    least = min(schedule.replicas(partition) for partition in range(schedule.partitions))
    staying = sum(not slot.retired for slot in schedule.slots.values())
    return Layout.EVERYWHERE if least == staying else Layout.REPLICATED


class ShopView:
    """``floor`` shows the schedule as of the last ``look``; ``news`` counts what makes older plans worthless."""

    def __init__(self) -> None:
        self.floor = Floor(0.0, [], [], [])
        #: Grows when workers come or go, trials come or go unexpectedly, or expected times have changed.
        self.news = 0
        self._layouts = -1
        self._workers: list[str] = []
        self._worker_index: dict[str, int] = {}
        #: The worker of each partition that has one.
        self._homes: dict[int, str] = {}
        self._trials: list[Progress] = []
        self._trial_index: dict[str, int] = {}
        #: What was known of each trial at the last look.
        self._seen: list[tuple[object, ...]] = []
        self._next_refresh = 1

    def look(self, schedule: Schedule) -> Floor:
        """Bring the floor up to date."""
        # Trials that ended keep their row until they are the most of them.
        crowded = len(self._trials) > 2 * len(schedule.trials) + 16
        if schedule.layouts != self._layouts or crowded:
            self._rebuild(schedule)
        for name, progress in schedule.trials.items():
            if name not in self._trial_index:
                self._append(progress)
        self._follow(schedule)
        if schedule.measured >= self._next_refresh:
            self._next_refresh = min(2 * schedule.measured, schedule.measured + len(schedule.trials))
            self._refresh(schedule)
        self._busy(schedule)
        return self.floor

    def assignment(self, schedule: Schedule, start: Start) -> Assignment | None:
        """What a start on the floor means; None while the model is not where the worker can load it."""
        progress, worker = self._trials[start[0]], self._workers[start[1]]
        if not progress.loadable_by(worker):
            return None
        return Assignment(worker, Unit(progress.trial.id, progress.epoch, self.floor.partition(*start)))

    # ------------------------------------------------------------------------------------------------ rows

    def _rebuild(self, schedule: Schedule) -> None:
        self.news += 1
        self._layouts = schedule.layouts
        self._workers = list(schedule.slots)
        self._worker_index = {name: index for index, name in enumerate(self._workers)}
        home = [-1] * schedule.partitions
        # Who is about to go has only what nobody else has.
        for index, slot in sorted(enumerate(schedule.slots.values()), key=lambda entry: not entry[1].retired):
            for partition in range(schedule.partitions) if slot.partitions is None else slot.partitions:
                home[partition] = index
        self._homes = {j: self._workers[index] for j, index in enumerate(home) if index >= 0}
        count = len(self._workers)
        self.floor = Floor(schedule.now, home, [0.0] * count, [0.0] * count)
        self.floor.wanted = [set() for _ in self._workers]
        self._trials.clear()
        self._trial_index.clear()
        self._seen.clear()

    def _append(self, progress: Progress) -> None:
        self.news += 1
        floor = self.floor
        self._trial_index[progress.trial.id] = len(self._trials)
        self._trials.append(progress)
        self._seen.append(())
        floor.seconds.append([])
        floor.todo.append({})
        floor.epoch.append(progress.epoch)
        floor.laps.append(0)
        floor.trial_free.append(0.0)
        floor.trial_left.append(0.0)

    def _follow(self, schedule: Schedule) -> None:
        """Take in what trials did since the last look."""
        seen: list[tuple[object, ...]] = [
            (len(p.visits), p.trains_on, p.state, p.epochs_ended, p.trial.epochs, p.outcome, len(p.forced))
            for p in self._trials
        ]
        if seen == self._seen:
            return
        for index, (before, after) in enumerate(zip(self._seen, seen, strict=True)):
            if before == after:
                continue
            progress = self._trials[index]
            if progress.trial.id in schedule.trials:
                self._clear(index)
                self._fill(index, progress, schedule)
            elif self.floor.todo[index]:
                self.news += 1
                self._clear(index)
        self._seen = seen

    def _clear(self, index: int) -> None:
        """Take a trial's units off the floor."""
        floor = self.floor
        for partition, times in self._owed(index):
            seconds = times * floor.seconds[index][partition]
            floor.worker_left[floor.home[partition]] -= seconds
            floor.units -= times
        for worker in floor.todo[index]:
            floor.wanted[worker].discard(index)
        floor.todo[index] = {}
        floor.laps[index] = 0
        floor.trial_left[index] = 0.0
        floor.forced.pop(index, None)

    def _fill(self, index: int, progress: Progress, schedule: Schedule) -> None:
        """Put a trial's units on the floor."""
        floor = self.floor
        epochs = progress.trial.epochs if progress.outcome is None else progress.epochs_ended
        left = epochs * schedule.partitions - progress.version
        if not floor.seconds[index]:
            floor.seconds[index] = self._seconds(progress, schedule)
        floor.epoch[index] = progress.epoch
        if left <= 0:
            return
        running = None
        if progress.trains_on is not None:
            running = schedule.slots[progress.trains_on].unit_of(progress.trial.id).partition
        todo: dict[int, list[int]] = {}
        for partition in sorted(progress.todo, key=floor.seconds[index].__getitem__):
            worker = floor.home[partition]
            if worker >= 0 and partition != running:
                todo.setdefault(worker, []).append(partition)
                floor.wanted[worker].add(index)
        floor.todo[index] = todo
        # Nobody gets past an epoch that has a partition nowhere.
        floor.laps[index] = 0 if -1 in floor.home else (left - 1) // schedule.partitions
        if progress.forced and running is None:
            floor.forced[index] = progress.forced[0]
        for partition, times in self._owed(index):
            seconds = times * floor.seconds[index][partition]
            floor.trial_left[index] += seconds
            floor.worker_left[floor.home[partition]] += seconds
            floor.units += times

    def _owed(self, index: int) -> list[tuple[int, int]]:
        """How often a trial will visit which partition."""
        floor, laps = self.floor, self.floor.laps[index]
        times = dict.fromkeys(range(len(floor.home)), laps) if laps else {}
        for visits in floor.todo[index].values():
            for partition in visits:
                times[partition] = laps + 1
        return list(times.items())

    def _seconds(self, progress: Progress, schedule: Schedule) -> list[float]:
        times = schedule.estimates.row(progress.trial.id, progress.trial.number, self._homes)
        if len(times) == len(self.floor.home):
            return times
        known = dict(zip(self._homes, times, strict=True))
        return [known.get(partition, 0.0) for partition in range(len(self.floor.home))]

    def _refresh(self, schedule: Schedule) -> None:
        """Ask for all expected times again: what one trial's units took says something of the others'."""
        floor = self.floor
        live = [
            (index, progress) for index, progress in enumerate(self._trials) if progress.trial.id in schedule.trials
        ]
        changes: list[tuple[float, float]] = []
        for index, _ in live:
            self._clear(index)
        floor.worker_left = [0.0] * len(self._workers)  # without what rounding left there
        for index, progress in live:
            row, floor.seconds[index] = floor.seconds[index], []
            self._fill(index, progress, schedule)
            changes += [(old, new) for old, new in zip(row, floor.seconds[index], strict=False) if old and new]
        if changes:
            # If all change alike, no decision does.
            before, after = (sum(times) for times in zip(*changes, strict=True))
            moved = sum(abs(math.log(new * before / (old * after))) for old, new in changes)
            self.news += moved > (DRIFT + schedule.estimates.noise) * len(changes)

    # ---------------------------------------------------------------------------------------- who is where

    def _busy(self, schedule: Schedule) -> None:
        floor, now = self.floor, schedule.now
        floor.now, floor.stays = now, schedule.sticky
        floor.noise, floor.judged = schedule.estimates.noise, schedule.estimates.judged
        index = self._trial_index
        floor.idle_trials = {index[name] for name in schedule.ready}
        floor.idle_workers = {self._worker_index[name] for name in schedule.idle}
        floor.trial_free = [now] * len(self._trials)
        floor.runs = {}
        for worker, slot in enumerate(schedule.slots.values()):
            unit, free = slot.unit, now
            if unit is not None and slot.worker not in schedule.idle:
                trains = unit.work is Work.TRAIN
                floor.runs[worker] = index[unit.trial] if trains else -1
                free = slot.started if trains else now
                for crew in (slot.units, slot.lookahead):
                    members = [(index[each.trial], each.partition) for each in crew if each.work is Work.TRAIN]
                    free += sum(floor.seconds[trial][partition] for trial, partition in members)
                    for trial, _ in members:
                        floor.trial_free[trial] = free
            floor.worker_free[worker] = free
