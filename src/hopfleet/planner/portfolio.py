"""The planner's own way to a timetable: several rules, each improved; then noisy restarts; then a search from the best.

It ends as soon as a timetable reaches the lower bound, which on real experiments one of the first usually does. Where
it does not, and the shop is small, the exact solver finds in the same time what no search of ours does: ``best`` asks
it, if it is installed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner import exact
from hopfleet.planner.grid import Grid, Order
from hopfleet.planner.improve import Budget, justify, reinsert
from hopfleet.planner.rules import RULES, longest_remaining
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable

EFFORT = 75_000
"""Placements of units, of some two microseconds each."""
NOISES = (0.02, 0.05, 0.1, 0.2, 0.4)
RESTARTS = 0.4
"""Part of the effort for restarts, while they help; the rest is for the search."""
RULE_COST = 4
"""What a rule does for each unit, in placements."""
CLOSE = 1e-9
"""A timetable this close to the lower bound is at it: sums of seconds are rounded."""
SMALL = 100
"""Units of the largest shop on which the exact solver was seen to beat the search within a second."""


def plan(
    shop: Shop, rng: random.Random, *, effort: float = EFFORT, stop: Callable[[], bool] = lambda: False
) -> Timetable:
    """A timetable of the least makespan found. The same shop, random numbers and effort give the same timetable.

    ``effort`` limits the placements of units. ``stop`` is asked between the steps of the search and ends it when it
    returns True; with it, the result may depend on the clock that it reads.
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
    """The better of ``plan`` and what the exact solver makes of it in about ``seconds``.

    The solver is left out where it cannot help: at the lower bound, with more than ``SMALL`` units, or if it is not
    installed. It counts steps rather than seconds, so the same question gets the same timetable.
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
    for rule in RULES.values():
        yield _improved(grid, rule(grid, rng), budget)
    while budget.placements > search:
        yield _improved(grid, longest_remaining(grid, rng, rng.choice(NOISES)), budget)


def _improved(grid: Grid, order: Order, budget: Budget) -> Order:
    budget.spend(RULE_COST * len(grid))
    return justify(grid, order, budget)
