"""What the policies that look at the floor have in common: when to look, when to wait, and when others are right.

Which worker can read which partition decides how hard the question is. If all can read all, nobody ever has to wait for
anybody in particular, and longest-remaining is right. With replicas, who trains where comes first (``balanced``). Only
where every partition has one worker is it an open shop, and there the rules and plans of these policies choose.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from hopfleet.scheduler.floor import Floor, Start
from hopfleet.scheduler.mirror import Layout, Mirror, layout
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.schedule import Assignment, Schedule


class Dispatcher(ABC):
    """A policy for one controller; it remembers what it saw and planned."""

    def __init__(self) -> None:
        self._mirror = Mirror()
        self._balanced = Balanced()

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        found = layout(schedule)
        if found is Layout.EVERYWHERE:
            return longest_remaining(schedule, rng)
        if found is Layout.REPLICATED:
            return self._balanced(schedule, rng)
        return self._on_floor(schedule, rng)

    def _on_floor(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        floor = self._mirror.look(schedule)
        if floor.expects_more:
            return None
        starts = self._choose(floor, rng)
        for start in starts:
            assignment = self._mirror.assignment(schedule, start)
            if assignment is not None:
                return assignment
        # Whoever is to start waits for a model that is being saved; the others, for somebody who runs.
        if starts or floor.runs:
            return None
        return longest_remaining(schedule, rng)

    @abstractmethod
    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        """What should start now; nobody, if all do better to wait."""
