"""Follow the plan of vector rearrangement, the Cerebro paper's approximate scheduler."""

from __future__ import annotations

import random

from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.policies.planned import Mode, Planned


def by_rearrangement(shop: Shop, rng: random.Random) -> Timetable:
    """Plan by vector rearrangement, which draws no random numbers."""
    from hopfleet.planner.rearrangement import rearrange

    return rearrange(shop)


class VectorRearrangement(Planned):
    """The policy that follows the plan of vector rearrangement."""

    def __init__(self, mode: Mode = Mode.STRICT) -> None:
        super().__init__(by_rearrangement, mode)
