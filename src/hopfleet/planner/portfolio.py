"""The default planner: several priority rules, each improved; then noisy restarts; then a search from the best.

Planning ends as soon as a timetable reaches the lower bound, as one of the first usually does on real experiments. On
small shops where none does, the exact solver finds better timetables in the same time; ``best`` uses the solver where
it is installed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner import exact
from hopfleet.planner.grid import Grid, Order
from hopfleet.planner.improve import Budget, justify, reinsert
from hopfleet.planner.rules import PRIORITY_RULES, longest_remaining
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable

EFFORT = 75_000
"""Placements of units; each takes about two microseconds."""
NOISES = (0.02, 0.05, 0.1, 0.2, 0.4)
RESTARTS = 0.4
"""Part of the effort spent on restarts; the rest is for the search."""
RULE_COST = 4
"""Cost of a priority rule per unit, in placements."""
CLOSE = 1e-9
"""Relative distance to the lower bound at which a timetable counts as optimal, since sums of seconds are rounded."""
SMALL = 100
"""Units of the largest shop on which the exact solver was seen to beat the search within a second."""


def plan(
    shop: Shop, rng: random.Random, *, effort: float = EFFORT, stop: Callable[[], bool] = lambda: False
) -> Timetable:
    """Return the shortest timetable found. Equal shop, random state and effort give equal timetables.

    ``effort`` limits the placements of units. ``stop`` is polled between steps of the search and ends it when it
    returns True; the result then depends on the clock that ``stop`` reads.
    """
    if not 0 <= effort < math.inf:
        raise UsageError(f"effort={effort}: must be a finite number of placements, at least 0")
    grid = Grid.of(shop)
    budget = Budget(effort, stop)
    best: Order = []
    best_makespan: float = math.inf
    for order in _candidates(grid, rng, budget):
        makespan = grid.makespan(order)
        if makespan < best_makespan:
            best, best_makespan = order, makespan
        if makespan <= grid.bound or budget.spent:
            return Timetable.of_order(shop, best)
    return Timetable.of_order(shop, reinsert(grid, best, rng, budget))


def best(
    shop: Shop,
    rng: random.Random,
    *,
    seconds: float,
    effort: float = EFFORT,
    stop: Callable[[], bool] = lambda: False,
) -> Timetable:
    """Return the timetable of ``plan``, improved by the exact solver in about ``seconds``.

    The solver is skipped where it cannot help: at the lower bound, with more than ``SMALL`` units, or if it is not
    installed. The solver counts steps rather than seconds, so the same shop gets the same timetable.
    """
    planned = plan(shop, rng, effort=effort, stop=stop)
    if len(shop.units) > SMALL or planned.ratio <= 1 + CLOSE:
        return planned
    try:
        return exact.solve(shop, seconds=seconds, hint=planned, counted=True)[0]
    except MissingExtra:
        return planned


def _candidates(grid: Grid, rng: random.Random, budget: Budget) -> Iterator[Order]:
    search = (1 - RESTARTS) * budget.placements
    for rule in PRIORITY_RULES.values():
        yield _improved(grid, rule(grid, rng), budget)
    while budget.placements > search:
        yield _improved(grid, longest_remaining(grid, rng, rng.choice(NOISES)), budget)


def _improved(grid: Grid, order: Order, budget: Budget) -> Order:
    budget.spend(RULE_COST * len(grid))
    return justify(grid, order, budget)
