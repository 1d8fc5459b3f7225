"""What the policies that look at the floor have in common: when to look, when to wait, and when others are right.

Which worker can read which partition decides how hard the question is. If all can read all, nobody ever has to wait for
anybody in particular, and longest-remaining is right. With replicas, who trains where comes first (``balanced``). Only
where every partition has one worker is it an open shop, and there the rules and plans of these policies choose.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from hopfleet.planner.balance import installed
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.schedule import Assignment, Schedule
from hopfleet.scheduler.shop_state import Floor, Start
from hopfleet.scheduler.shop_view import Layout, ShopView, layout


class Dispatcher(ABC):
    """A policy for one controller; it remembers what it saw and planned."""

    def __init__(self) -> None:
        self._shop_view = ShopView()
        self._balanced = Balanced()
        self._can_balance = installed()
        self._layouts = -1
        self._layout = Layout.EVERYWHERE
        #: What is still to start of the last choice, and when that holds: time, news and who is idle.
        self._starts: list[Start] = []
        self._moment: tuple[float, int, set[int], set[int]] | None = None

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        found = self._find_layout(schedule)
        if found is Layout.EVERYWHERE or self._too_many(schedule):
            return longest_remaining(schedule, rng)
        if found is Layout.REPLICATED:
            # Balancing needs SciPy, which the base install leaves out.
            return self._balanced(schedule, rng) if self._can_balance else longest_remaining(schedule, rng)
        return self._on_floor(schedule, rng)

    def _find_layout(self, schedule: Schedule) -> Layout:
        if schedule.layouts != self._layouts:
            self._layouts = schedule.layouts
            self._layout = layout(schedule)
        return self._layout

    def _too_many(self, schedule: Schedule) -> bool:
        """Whether there are so many trials that looking at them all is worth nothing."""
        return False

    def _on_floor(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        if _gathers(schedule):
            return None
        floor = self._shop_view.look(schedule)
        if floor.expects_more:
            return None
        news, trials, workers = self._shop_view.news, floor.idle_trials, floor.idle_workers
        if (floor.now, news, trials, workers) != self._moment:
            self._starts = list(self._choose(floor, rng))
            self._moment = floor.now, news, trials, workers
        for start in self._starts:
            trial, worker = start
            if trial in floor.able(worker):
                assignment = self._shop_view.assignment(schedule, start)
                if assignment is not None:
                    self._starts.remove(start)
                    self._moment = floor.now, news, trials - {trial}, workers - {worker}
                    return assignment
        # Whoever is to start waits for a model that is being saved; the others, for somebody who runs.
        if self._starts or floor.runs:
            return None
        return longest_remaining(schedule, rng)

    @abstractmethod
    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        """What should start now; nobody, if all do better to wait."""


def _gathers(schedule: Schedule) -> bool:
    """Whether a run begins and workers are still joining: better to wait for a plan than to spoil it at once.

    Only until the first unit ends, in case that somebody never comes.
    """
    if schedule.measured or len(schedule.idle) == len(schedule.slots):
        return False
    return not all(schedule.replicas(partition) for partition in range(schedule.partitions))
