"""Follow the plan of the portfolio: improved priority rules, restarts and local search.

A small shop whose best timetable is above the lower bound is hard for all of these, while the exact solver handles it
in a second or less. The solver makes the first plan if it is installed and the run is long enough that a second does
not matter.
"""

from __future__ import annotations

import random

from hopfleet.planner import exact, portfolio
from hopfleet.planner.shop import Shop, lower_bound
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.policies.planned import Mode, Planned

EFFORT = 20_000
"""Placements of units, about 50 ms; spent only if the bound is not reached earlier."""
FIRST_EFFORT = 300_000
"""Placements for the first plan of a run, which delays only its beginning: about 0.8 s, ..."""
FIRST_EACH = 6_000
"""... limited to this number per unit, since a tiny shop is soon exhausted, ..."""
SMALL = 500
"""... and only for shops of at most this many units; a larger shop is at the bound, or needs longer than that."""
SOLVER_EFFORT, SOLVER_SECONDS = 30_000, 0.85
"""Placements before the solver starts, and the solver's time limit in seconds."""
LONG = 100.0
"""Ratio of the run's expected time to the solver's time from which on the solver is used."""


def for_solver(units: int) -> bool:
    """Whether the solver is installed and suits this number of units."""
    return units <= portfolio.SMALL and exact.installed()


class ByPortfolio:
    """A planner that spends more effort on its first plan than on later ones."""

    def __init__(self, first: int | None = None) -> None:
        self._effort = FIRST_EFFORT if first is None else first

    def __call__(self, shop: Shop, rng: random.Random) -> Timetable:
        units = len(shop.units)
        effort, self._effort = self._effort, EFFORT
        if effort > EFFORT and for_solver(units) and lower_bound(shop) >= LONG * SOLVER_SECONDS:
            return portfolio.best(shop, rng, effort=SOLVER_EFFORT, seconds=SOLVER_SECONDS)
        return portfolio.plan(shop, rng, effort=min(effort, FIRST_EACH * units) if units <= SMALL else EFFORT)


class Portfolio(Planned):
    """The policy that follows the portfolio's plan."""

    def __init__(self, mode: Mode = Mode.STRICT) -> None:
        super().__init__(ByPortfolio(), mode)
