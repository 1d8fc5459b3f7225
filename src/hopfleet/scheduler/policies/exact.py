"""Follow the plan of a constraint solver that starts from the portfolio's: the Cerebro paper's MILP, and faster.

For a few trials on a few workers, where an optimal plan is hardest to come by. The solver reads the clock, so two runs
may differ. It needs ``hopfleet[solver]``.
"""

from __future__ import annotations

import random

from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.policies.planned import Mode, Planned
from hopfleet.planner.portfolio import plan
from hopfleet.scheduler.policies.portfolio import EFFORT

SECONDS = 2.0
"""A plan takes no longer."""


def by_solver(shop: Shop, rng: random.Random) -> Timetable:
    from hopfleet.planner.exact import LIMIT, solve

    hint = plan(shop, rng, effort=EFFORT)
    if hint.ratio <= 1 + 1e-9 or len(shop.units) > LIMIT:
        return hint
    return solve(shop, seconds=SECONDS, hint=hint)[0]


class Exact(Planned):
    def __init__(self, mode: Mode = Mode.STRICT) -> None:
        super().__init__(by_solver, mode)
