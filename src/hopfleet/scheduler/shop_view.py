"""The shop state of a live schedule, updated incrementally with the changes since the last look.

The view is only valid for schedules in which every partition has at most one worker; see ``layout``.
"""

from __future__ import annotations

import enum
import math

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import ShopState, Start
from hopfleet.scheduler.slots import Assignment

DRIFT = 0.05
"""Mean relative change of expected times, beyond the noise, from which on older plans are worthless."""


class PartitionLayout(enum.Enum):
    """How partitions are distributed over workers."""

    EVERYWHERE = enum.auto()  #: every worker reads every partition
    PINNED = enum.auto()  #: no partition is on two workers
    REPLICATED = enum.auto()  #: some partitions are on several workers


def layout(schedule: Schedule) -> PartitionLayout:
    """Return how the partitions of a schedule are distributed over its workers."""
    most = max(schedule.replicas(partition) for partition in range(schedule.partitions))
    if most <= 1:
        return PartitionLayout.PINNED
    least = min(schedule.replicas(partition) for partition in range(schedule.partitions))
    staying = sum(not slot.retired for slot in schedule.slots.values())
    return PartitionLayout.EVERYWHERE if least == staying else PartitionLayout.REPLICATED


class ShopView:
    """The shop state of a schedule as of the last ``look``; ``news`` counts the changes that outdate plans."""

    def __init__(self) -> None:
        self.state: ShopState
        #: Grows when workers join or leave, trials are added or end unexpectedly, or expected times have changed.
        self.news = 0
        self._layouts: int | None = None
        self._workers: list[str] = []
        self._worker_index: dict[str, int] = {}
        #: The worker of each partition, for partitions that have one.
        self._homes: dict[int, str] = {}
        self._trials: list[Progress] = []
        self._trial_index: dict[str, int] = {}
        #: The progress of each trial at the last look.
        self._seen: list[tuple[object, ...]] = []
        self._next_refresh = 1

    def look(self, schedule: Schedule) -> ShopState:
        """Update the state from the schedule and return it."""
        # Rows of ended trials are kept until they outnumber the live ones.
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
        return self.state

    def assignment(self, schedule: Schedule, start: Start) -> Assignment | None:
        """Return the assignment for a start, or None while the worker cannot load the trial's model."""
        progress, worker = self._trials[start[0]], self._workers[start[1]]
        if not progress.loadable_by(worker):
            return None
        return Assignment(worker, Unit(progress.trial.id, progress.epoch, self.state.partition(*start)))

    # ------------------------------------------------------------------------------------------------ rows

    def _rebuild(self, schedule: Schedule) -> None:
        self.news += 1
        self._layouts = schedule.layouts
        self._workers = list(schedule.slots)
        self._worker_index = {name: index for index, name in enumerate(self._workers)}
        home = [-1] * schedule.partitions
        # A retired worker keeps only the partitions that no other worker has.
        for index, slot in sorted(enumerate(schedule.slots.values()), key=lambda entry: not entry[1].retired):
            for partition in range(schedule.partitions) if slot.partitions is None else slot.partitions:
                home[partition] = index
        self._homes = {j: self._workers[index] for j, index in enumerate(home) if index >= 0}
        self.state = ShopState(schedule.now, home, [], [0.0] * len(self._workers))
        self.state.wanted = [set() for _ in self._workers]
        self._trials.clear()
        self._trial_index.clear()
        self._seen.clear()

    def _append(self, progress: Progress) -> None:
        self.news += 1
        state = self.state
        self._trial_index[progress.trial.id] = len(self._trials)
        self._trials.append(progress)
        self._seen.append(())
        state.seconds.append([])
        state.todo.append({})
        state.epoch.append(progress.epoch)
        state.laps.append(0)
        state.trial_left.append(0.0)

    def _follow(self, schedule: Schedule) -> None:
        """Update the rows of trials that progressed since the last look."""
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
                owed = self.state.owes(index)
                self._clear(index)
                self._fill(index, progress, schedule)
                # A trial that goes on after a pause is as new to a plan as one that was added.
                self.news += bool(before) and not owed and self.state.owes(index)
            elif self.state.owes(index):
                self.news += 1
                self._clear(index)
        self._seen = seen

    def _clear(self, index: int) -> None:
        """Remove a trial's units from the state."""
        state = self.state
        for partition, times in self._owed(index):
            seconds = times * state.seconds[index][partition]
            state.worker_left[state.home[partition]] -= seconds
            state.units -= times
        for worker in state.todo[index]:
            state.wanted[worker].discard(index)
        state.todo[index] = {}
        state.laps[index] = 0
        state.trial_left[index] = 0.0
        state.forced.pop(index, None)

    def _fill(self, index: int, progress: Progress, schedule: Schedule) -> None:
        """Add a trial's units to the state."""
        state = self.state
        epochs = progress.trial.epochs if progress.outcome is None else progress.epochs_ended
        left = epochs * schedule.partitions - progress.version
        if not state.seconds[index]:
            state.seconds[index] = self._seconds(progress, schedule)
        state.epoch[index] = progress.epoch
        if left <= 0:
            return
        running = None
        if progress.trains_on is not None:
            running = schedule.slots[progress.trains_on].unit_of(progress.trial.id).partition
        todo: dict[int, list[int]] = {}
        for partition in sorted(progress.todo, key=state.seconds[index].__getitem__):
            worker = state.home[partition]
            if worker >= 0 and partition != running:
                todo.setdefault(worker, []).append(partition)
                state.wanted[worker].add(index)
        state.todo[index] = todo
        # No trial can complete an epoch while a partition is on no worker.
        state.laps[index] = 0 if -1 in state.home else (left - 1) // schedule.partitions
        if progress.forced and running is None:
            state.forced[index] = progress.forced[0]
        for partition, times in self._owed(index):
            seconds = times * state.seconds[index][partition]
            state.trial_left[index] += seconds
            state.worker_left[state.home[partition]] += seconds
            state.units += times

    def _owed(self, index: int) -> list[tuple[int, int]]:
        """Return how often a trial will still visit each partition."""
        state, laps = self.state, self.state.laps[index]
        times = dict.fromkeys(range(len(state.home)), laps) if laps else {}
        for visits in state.todo[index].values():
            for partition in visits:
                times[partition] = laps + 1
        return list(times.items())

    def _seconds(self, progress: Progress, schedule: Schedule) -> list[float]:
        times = schedule.estimates.row(progress.trial.id, progress.trial.number, self._homes)
        if len(times) == len(self.state.home):
            return times
        known = dict(zip(self._homes, times, strict=True))
        return [known.get(partition, 0.0) for partition in range(len(self.state.home))]

    def _refresh(self, schedule: Schedule) -> None:
        """Recompute all expected times: the measured times of one trial change the estimates of others."""
        state = self.state
        live = [
            (index, progress) for index, progress in enumerate(self._trials) if progress.trial.id in schedule.trials
        ]
        changes: list[tuple[float, float]] = []
        for index, _ in live:
            self._clear(index)
        state.worker_left = [0.0] * len(self._workers)  # discard accumulated rounding errors
        for index, progress in live:
            row, state.seconds[index] = state.seconds[index], []
            self._fill(index, progress, schedule)
            changes += [(old, new) for old, new in zip(row, state.seconds[index], strict=True) if old]
        if changes:
            # A common factor on all times changes no decision.
            before, after = (sum(times) for times in zip(*changes, strict=True))
            moved = sum(abs(math.log(new * before / (old * after))) for old, new in changes)
            self.news += moved > (DRIFT + schedule.estimates.noise) * len(changes)

    # ---------------------------------------------------------------------------------------- idle and busy

    def _busy(self, schedule: Schedule) -> None:
        state, now = self.state, schedule.now
        state.now, state.sticky = now, schedule.sticks
        state.noise, state.judged = schedule.estimates.noise, schedule.estimates.judged
        index = self._trial_index
        state.idle_trials = {index[name] for name in schedule.ready}
        state.idle_workers = {self._worker_index[name] for name in schedule.idle}
        state.trial_free = [now] * len(self._trials)
        state.worker_free, state.runs = [], {}
        for worker, slot in enumerate(schedule.slots.values()):
            unit, free = slot.unit, now
            if unit is not None and slot.worker not in schedule.idle:
                trains = unit.trains
                state.runs[worker] = index[unit.trial] if trains else -1
                free = slot.started if trains else now
                for units in (slot.units, slot.lookahead):
                    members = [(index[each.trial], each.partition) for each in units if each.trains]
                    free += sum(state.seconds[trial][partition] for trial, partition in members)
                    for trial, _ in members:
                        state.trial_free[trial] = free
            state.worker_free.append(free)
