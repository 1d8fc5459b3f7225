"""A timetable made for the floor, and the two ways to carry it out when units take longer or shorter than planned.

*Strictly*: every worker and every trial keeps to its order and waits where it must. *As priorities*: nobody waits who
could work; of what could begin, that which was to begin first does. A plan covers what is left of the current epoch of
every trial and a few epochs more, each planned from where the one before is expected to leave everybody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from hopfleet.planner.shop import Shop, ShopUnit
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.shop_state import Floor, Rule, Start

Planner = Callable[[Shop], Timetable]

PlannedUnit = tuple[int, int, int]
"""Trial, epoch and partition."""

MOST_UNITS = 400
"""Epochs are planned ahead while there are fewer units than this."""


class Plan:
    """Starts of units, for the floor that it was made for and what follows from it."""

    def __init__(self, floor: Floor, planner: Planner) -> None:
        self._planner = planner
        #: When each unit is to begin.
        self.starts: dict[PlannedUnit, float] = {}
        #: The units of each worker and of each trial, by start.
        self.workers: list[list[PlannedUnit]] = [[] for _ in floor.worker_free]
        self.trials: list[list[PlannedUnit]] = [[] for _ in floor.trial_free]
        #: The first epoch of each trial that is not planned.
        self.epoch = [epoch + 1 for epoch in floor.epoch]
        self._trial_free = [max(free, floor.now) for free in floor.trial_free]
        self._worker_free = [max(free, floor.now) for free in floor.worker_free]
        self._add(
            floor, [(t, floor.epoch[t], j) for t, todo in enumerate(floor.todo) for at in todo.values() for j in at]
        )
        self.extend(floor)

    def covers(self, floor: Floor, laps: int = 0) -> bool:
        """Whether everybody who is idle is still within the plan, and will be for so many further epochs."""
        return all(floor.epoch[t] + min(laps, floor.laps[t]) < self.epoch[t] for t in floor.idle_trials)

    def extend(self, floor: Floor) -> None:
        """Plan further epochs, at least one if there is one."""
        added = 0
        while not added or added + len(floor.home) * len(floor.epoch) <= MOST_UNITS:
            units = [
                (trial, epoch, partition)
                for trial, epoch in enumerate(self.epoch)
                if epoch <= floor.epoch[trial] + floor.laps[trial]
                for partition in range(len(floor.home))
            ]
            if not units:
                return
            self._add(floor, units)
            added += len(units)

    def _add(self, floor: Floor, units: list[PlannedUnit]) -> None:
        """Plan these units after all that is planned."""
        begin = min((*self._trial_free, *self._worker_free), default=0.0)
        shop = Shop(
            len(self._trial_free),
            len(self._worker_free),
            tuple(ShopUnit(trial, floor.home[j], floor.seconds[trial][j]) for trial, _, j in units),
            tuple(free - begin for free in self._trial_free),
            tuple(free - begin for free in self._worker_free),
        )
        starts = dict(zip(units, (begin + start for start in self._planner(shop).starts), strict=True))
        for unit in sorted(starts, key=lambda unit: (starts[unit], unit)):
            trial, epoch, partition = unit
            worker = floor.home[partition]
            self.workers[worker].append(unit)
            self.trials[trial].append(unit)
            self._trial_free[trial] = self._worker_free[worker] = starts[unit] + floor.seconds[trial][partition]
            self.epoch[trial] = epoch + 1
        self.starts |= starts


def strictly(plan: Plan) -> Rule:
    """A fresh rule that follows the plan's orders from their beginning."""
    worker_heads = [0] * len(plan.workers)
    trial_heads = [0] * len(plan.trials)

    def head(floor: Floor, order: list[PlannedUnit], heads: list[int], owner: int) -> PlannedUnit | None:
        while heads[owner] < len(order):
            unit = order[heads[owner]]
            if not _begun(floor, unit):
                return unit
            heads[owner] += 1
        return None

    def rule(floor: Floor) -> Sequence[Start]:
        starts = []
        for worker in floor.idle_workers:
            unit = head(floor, plan.workers[worker], worker_heads, worker)
            if unit is not None and unit[0] in floor.idle_trials:
                trial = unit[0]
                if head(floor, plan.trials[trial], trial_heads, trial) == unit:
                    starts.append((trial, worker))
        return starts

    return rule


def by_start(plan: Plan) -> Rule:
    """A rule that lets nobody wait: of the units that can begin, the one planned first does."""

    def rule(floor: Floor) -> Sequence[Start]:
        starts: dict[int, int] = {}
        taken: set[int] = set()
        pairs = [(trial, worker) for worker in floor.idle_workers for trial in floor.able(worker)]
        begin = {(t, w): plan.starts.get((t, floor.epoch[t], floor.partition(t, w)), math.inf) for t, w in pairs}
        for trial, worker in sorted(pairs, key=lambda pair: (begin[pair], pair)):
            if trial not in starts and worker not in taken:
                starts[trial] = worker
                taken.add(worker)
        return list(starts.items())

    return rule


def _begun(floor: Floor, unit: PlannedUnit) -> bool:
    trial, epoch, partition = unit
    if epoch != floor.epoch[trial]:
        return epoch < floor.epoch[trial]
    return partition not in floor.todo[trial].get(floor.home[partition], ())


def rotation() -> Planner:
    """Trials follow each other round the workers: what is late delays its neighbours alone, not everybody.

    Each call plans an epoch, which begins at the worker where the one before has ended: nobody moves on then, so nobody
    is waited for.
    """
    turns = itertools.count()

    def planner(shop: Shop) -> Timetable:
        size, turn = max(shop.configs, shop.workers), next(turns)
        units = shop.units
        order = sorted(range(len(units)), key=lambda i: (units[i].config - units[i].worker + turn) % size)
        return Timetable.of_order(shop, order)

    return planner
