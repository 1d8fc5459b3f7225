"""Follow the plan of the portfolio: priority rules, each improved, restarts and local search."""

from __future__ import annotations

import random

from hopfleet.planner.portfolio import plan
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.policies.planned import Mode, Planned

EFFORT = 20_000
"""Placements of units: 50 ms or so, spent only where the bound is not reached before."""


def by_portfolio(shop: Shop, rng: random.Random) -> Timetable:
    return plan(shop, rng, effort=EFFORT)


class Portfolio(Planned):
    def __init__(self, mode: Mode = Mode.STRICT) -> None:
        super().__init__(by_portfolio, mode)
