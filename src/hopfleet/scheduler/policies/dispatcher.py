"""The base of policies that dispatch by shop state: when to choose, when to wait, and when to use another policy.

The difficulty of dispatching depends on which worker can read which partition. If all workers read all partitions, no
trial ever waits for a particular worker, and longest-remaining is the right policy, unless some workers are faster, or
some trials wait for others at the end of a rung (``unequal``). With replicas, the assignment of units to workers comes
first (``balanced``). Only where every partition has a single worker is the problem an open shop, and there the dispatch
rules and plans of these policies choose.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from hopfleet.planner.balance import installed
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining, next_unit
from hopfleet.scheduler.policies.unequal import Unequal
from hopfleet.scheduler.policies.untried import untried
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import ShopState, Start
from hopfleet.scheduler.shop_view import PartitionLayout, ShopView, layout
from hopfleet.scheduler.slots import Assignment


class Dispatcher(ABC):
    """A policy for one controller, which keeps its view of the shop and its plans."""

    def __init__(self) -> None:
        self._shop_view = ShopView()
        self._replicated: Policy = Balanced()
        self._unequal = Unequal()
        self._can_balance = installed()
        self._layouts: int | None = None
        self._layout: PartitionLayout
        #: The starts of the last choice still to be made, and when they are valid: ends of units, news, idle ones.
        self._starts: list[Start] = []
        self._moment: tuple[int, int, set[int], set[int]] | None = None

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        found = self._find_layout(schedule)
        if found is PartitionLayout.EVERYWHERE and (pair := untried(schedule)) is not None:
            progress, slot = pair
            # The model may still have to be saved.
            return next_unit(schedule, progress, slot) if schedule.options(progress, slot) else None
        if self._plans_chains(schedule):
            return self._unequal(schedule, rng)
        if found is PartitionLayout.EVERYWHERE or self._too_many(schedule):
            return longest_remaining(schedule, rng)
        if found is PartitionLayout.REPLICATED:
            # Balancing needs SciPy, which the base install leaves out.
            return self._replicated(schedule, rng) if self._can_balance else longest_remaining(schedule, rng)
        return self._in_shop(schedule, rng)

    def _plans_chains(self, schedule: Schedule) -> bool:
        """Whether all workers read all partitions, and some are faster than others, or some trials wait for others."""
        if self._find_layout(schedule) is not PartitionLayout.EVERYWHERE:
            return False
        return len(schedule.classes) > 1 or (schedule.chained and not schedule.sticks)

    def _find_layout(self, schedule: Schedule) -> PartitionLayout:
        if schedule.layouts != self._layouts:
            self._layouts = schedule.layouts
            self._layout = layout(schedule)
        return self._layout

    def _too_many(self, schedule: Schedule) -> bool:
        """Whether there are too many trials for a choice among all of them to pay."""
        return False

    def _in_shop(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        if _is_gathering(schedule):
            return None
        state = self._shop_view.look(schedule)
        if state.expects_more:
            return None
        news, trials, workers = self._shop_view.news, state.idle_trials, state.idle_workers
        if (schedule.ends, news, trials, workers) != self._moment:
            self._starts = list(self._choose(state, rng))
            self._moment = schedule.ends, news, trials, workers
        possible = [(trial, worker) for trial, worker in self._starts if trial in state.able(worker)]
        for trial, worker in possible:
            assignment = self._shop_view.assignment(schedule, (trial, worker))
            if assignment is not None:
                self._moment = schedule.ends, news, trials - {trial}, workers - {worker}
                return assignment
        # Possible starts wait for a model that is being saved; all other trials wait for a running unit.
        if possible or state.runs:
            return None
        return longest_remaining(schedule, rng)

    @abstractmethod
    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        """Return the units to start now; none if waiting is better."""


def _is_gathering(schedule: Schedule) -> bool:
    """Whether a run is starting and workers are still joining, so that a plan should not be made yet.

    The wait ends with the first unit, in case a worker never joins.
    """
    if schedule.measured or not any(slot.units for slot in schedule.slots.values()):
        return False
    return not all(schedule.replicas(partition) for partition in range(schedule.partitions))
