"""Follow the plan of the portfolio: priority rules, each improved, restarts and local search."""

from __future__ import annotations

import random

from hopfleet.planner.portfolio import plan
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.policies.planned import Mode, Planned

EFFORT = 20_000
"""Placements of units: 50 ms or so, spent only where the bound is not reached before."""
FIRST_EFFORT = 300_000
"""The same for the first plan of a run, which nobody has to wait for at any other time: 0.8 s or so, ..."""
FIRST_EACH = 6_000
"""... and no more than this for each unit: a tiny shop is soon done ..."""
SMALL = 500
"""... if there are no more units than this: a larger shop is at the bound, or needs longer than that."""


class ByPortfolio:
    """Plans, the first with more effort than those that follow."""

    def __init__(self) -> None:
        self._effort = FIRST_EFFORT

    def __call__(self, shop: Shop, rng: random.Random) -> Timetable:
        units = len(shop.units)
        effort, self._effort = min(self._effort, FIRST_EACH * units), EFFORT
        return plan(shop, rng, effort=effort if units <= SMALL else EFFORT)


class Portfolio(Planned):
    def __init__(self, mode: Mode = Mode.STRICT) -> None:
        super().__init__(ByPortfolio(), mode)
