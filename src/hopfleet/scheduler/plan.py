"""A timetable for a shop state, and two ways to follow it when units take more or less time than planned.

*Strictly*: every worker and every trial keeps to its order and waits where necessary. *As priorities*: no worker waits
that could run a unit; among the units that can start, the one planned first does. A plan covers the rest of every
trial's current epoch and a few further epochs, each planned from the expected end of the one before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from hopfleet.planner.shop import Shop, ShopUnit
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.shop_state import DispatchRule, ShopState, Start

Planner = Callable[[Shop], Timetable]

PlannedUnit = tuple[int, int, int]
"""Trial, epoch and partition."""

MOST_UNITS = 400
"""Units to plan at a time: further epochs are added while there are fewer."""


class Plan:
    """The planned starts of units, from the state that the plan was made for onwards."""

    def __init__(self, state: ShopState, planner: Planner) -> None:
        self._planner = planner
        #: The planned start of each unit.
        self.starts: dict[PlannedUnit, float] = {}
        #: The units of each worker and of each trial, by start.
        self.workers: list[list[PlannedUnit]] = [[] for _ in state.worker_free]
        self.trials: list[list[PlannedUnit]] = [[] for _ in state.trial_free]
        #: The first unplanned epoch of each trial; the current one for a trial that owes nothing yet.
        self.epoch = [epoch + state.owes(trial) for trial, epoch in enumerate(state.epoch)]
        self._trial_free = [max(free, state.now) for free in state.trial_free]
        self._worker_free = [max(free, state.now) for free in state.worker_free]
        self._add(
            state, [(t, state.epoch[t], j) for t, todo in enumerate(state.todo) for at in todo.values() for j in at]
        )
        self.extend(state)

    def covers(self, state: ShopState, laps: int = 0) -> bool:
        """Whether the plan covers the current epoch of every idle trial, and ``laps`` further epochs."""
        return all(state.epoch[t] + min(laps, state.laps[t]) < self.epoch[t] for t in state.idle_trials)

    def extend(self, state: ShopState) -> None:
        """Plan further epochs, at least one if any is left."""
        added = 0
        while not added or added + len(state.home) * len(state.epoch) <= MOST_UNITS:
            units = [unit for trial in range(len(self.epoch)) for unit in self._next_epoch(state, trial)]
            if not units:
                return
            self._add(state, units)
            added += len(units)

    def _next_epoch(self, state: ShopState, trial: int) -> list[PlannedUnit]:
        """Return the units of a trial's first unplanned epoch; none if no epoch is left."""
        # A trial that owed nothing when the plan was made may have trained since, and may owe more epochs now.
        epoch = max(self.epoch[trial], state.epoch[trial])
        if not state.owes(trial) or epoch > state.epoch[trial] + state.laps[trial]:
            return []
        if epoch > state.epoch[trial]:
            return [(trial, epoch, partition) for partition in range(len(state.home))]
        return [(trial, epoch, partition) for visits in state.todo[trial].values() for partition in visits]

    def _add(self, state: ShopState, units: list[PlannedUnit]) -> None:
        """Plan these units after all planned units."""
        begin = min((*self._trial_free, *self._worker_free), default=0.0)
        shop = Shop(
            len(self._trial_free),
            len(self._worker_free),
            tuple(ShopUnit(trial, state.home[j], state.seconds[trial][j]) for trial, _, j in units),
            tuple(free - begin for free in self._trial_free),
            tuple(free - begin for free in self._worker_free),
        )
        starts = dict(zip(units, (begin + start for start in self._planner(shop).starts), strict=True))
        for unit in sorted(starts, key=lambda unit: (starts[unit], unit)):
            trial, epoch, partition = unit
            worker = state.home[partition]
            self.workers[worker].append(unit)
            self.trials[trial].append(unit)
            self._trial_free[trial] = self._worker_free[worker] = starts[unit] + state.seconds[trial][partition]
            self.epoch[trial] = epoch + 1
        self.starts |= starts


def strictly(plan: Plan) -> DispatchRule:
    """Return a new dispatch rule that follows the plan's orders from their beginning."""
    worker_heads = [0] * len(plan.workers)
    trial_heads = [0] * len(plan.trials)

    def head(state: ShopState, order: list[PlannedUnit], heads: list[int], owner: int) -> PlannedUnit | None:
        while heads[owner] < len(order):
            unit = order[heads[owner]]
            if not _begun(state, unit):
                return unit
            heads[owner] += 1
        return None

    def rule(state: ShopState) -> Sequence[Start]:
        starts = []
        for worker in state.idle_workers:
            unit = head(state, plan.workers[worker], worker_heads, worker)
            if unit is None:
                continue
            trial, epoch, _ = unit
            # A unit of a later epoch is not possible yet.
            possible = trial in state.idle_trials and epoch == state.epoch[trial]
            if possible and head(state, plan.trials[trial], trial_heads, trial) == unit:
                starts.append((trial, worker))
        return starts

    return rule


def by_start(plan: Plan) -> DispatchRule:
    """Return a dispatch rule without waiting: of the units that can start, the one planned first does."""

    def rule(state: ShopState) -> Sequence[Start]:
        starts: dict[int, int] = {}
        taken: set[int] = set()
        pairs = [(trial, worker) for worker in state.idle_workers for trial in state.able(worker)]
        begin = {(t, w): plan.starts.get((t, state.epoch[t], state.partition(t, w)), math.inf) for t, w in pairs}
        for trial, worker in sorted(pairs, key=lambda pair: (begin[pair], pair)):
            if trial not in starts and worker not in taken:
                starts[trial] = worker
                taken.add(worker)
        return list(starts.items())

    return rule


def _begun(state: ShopState, unit: PlannedUnit) -> bool:
    trial, epoch, partition = unit
    visited = partition not in state.todo[trial].get(state.home[partition], ())
    return epoch < state.epoch[trial] or (epoch == state.epoch[trial] and visited)


def rotation() -> Planner:
    """Return a planner in which trials rotate over the workers, so a late unit delays only the trials next to it.

    Each call plans an epoch, in which every trial starts on the worker where it ended the epoch before. No trial moves
    between the epochs, so none has to wait there.
    """
    turns = itertools.count()

    def planner(shop: Shop) -> Timetable:
        size, turn = max(shop.configs, shop.workers), next(turns)
        units = shop.units
        order = sorted(range(len(units)), key=lambda i: (units[i].config - units[i].worker + turn) % size)
        return Timetable.of_order(shop, order)

    return planner
