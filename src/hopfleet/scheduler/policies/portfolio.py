"""Follow the plan of the portfolio: priority rules, each improved, restarts and local search.

A small shop that is not at the bound is hard for all of these, and the exact solver does it in a second or less. It is
asked for the first plan, if it is installed and a run is so long that a second does not matter.
"""

from __future__ import annotations

import random

from hopfleet.planner import exact, portfolio
from hopfleet.planner.shop import Shop, lower_bound
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
SOLVER_EFFORT, SOLVER_SECONDS = 30_000, 0.85
"""The same where the solver is asked: the effort before, and what the solver gets."""
LONG = 100.0
"""A run that takes so many times longer than the solver does not mind it."""


def for_solver(units: int) -> bool:
    """Whether the solver is there, and so few units are something for it."""
    return units <= portfolio.SMALL and exact.installed()


class ByPortfolio:
    """Plans, the first with more effort than those that follow."""

    def __init__(self, first: int | None = None) -> None:
        self._effort = FIRST_EFFORT if first is None else first

    def __call__(self, shop: Shop, rng: random.Random) -> Timetable:
        units = len(shop.units)
        effort, self._effort = self._effort, EFFORT
        if effort > EFFORT and for_solver(units) and lower_bound(shop) >= LONG * SOLVER_SECONDS:
            return portfolio.best(shop, rng, effort=SOLVER_EFFORT, seconds=SOLVER_SECONDS)
        return portfolio.plan(shop, rng, effort=min(effort, FIRST_EACH * units) if units <= SMALL else EFFORT)


class Portfolio(Planned):
    def __init__(self, mode: Mode = Mode.STRICT) -> None:
        super().__init__(ByPortfolio(), mode)
