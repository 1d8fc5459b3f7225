"""Follow the plan of a constraint solver that starts from the portfolio's: the Cerebro paper's MILP, and faster.

For a few trials on a few workers, where an optimal plan is hardest to come by. The solver is asked once for what is
left of the current epoch, and takes its time: whoever makes the policy says how to run it meanwhile. Until it answers,
the portfolio's plan is followed, and afterwards if that is no worse by then. The solver reads the clock, so two runs
may differ. It needs ``hopfleet[solver]``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hopfleet.errors import MissingExtra
from hopfleet.planner.exact import LIMIT, installed, solve
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.dryrun import dry_run
from hopfleet.scheduler.plan import Plan, Planner, strictly
from hopfleet.scheduler.policies.planned import Mode, Planned
from hopfleet.scheduler.policies.portfolio import EFFORT, ByPortfolio
from hopfleet.scheduler.shop_state import Floor, Start

SECONDS = 14.0
"""The solver takes no longer; it stops as soon as it has proven its plan to be optimal."""

Job = Callable[[], Timetable]
Submit = Callable[[Job], Callable[[], Timetable | None]]
"""Has a job done, and returns a function that tells the result, or None as long as there is none."""


def at_once(job: Job) -> Callable[[], Timetable | None]:
    """For virtual time, which does not pass meanwhile."""
    result = job()
    return lambda: result


def require_solver() -> None:
    if not installed():
        raise MissingExtra("OR-tools", "solver")


def too_large(trials: int, partitions: int) -> str | None:
    """What to tell a user whose experiment the solver does not take."""
    units = trials * partitions
    if units <= LIMIT:
        return None
    return f"policy='exact': {units} units are more than the solver takes ({LIMIT}); the portfolio plans instead"


class Exact(Planned):
    def __init__(self, submit: Submit = at_once, mode: Mode = Mode.STRICT) -> None:
        require_solver()
        super().__init__(self._sketch, mode)
        self._submit = submit
        self._portfolio = ByPortfolio(EFFORT)
        #: What the portfolio made of the current epoch, until the solver is asked.
        self._hint: Timetable | None = None
        self._ask: Callable[[], Timetable | None] | None = None

    def _sketch(self, shop: Shop, rng: random.Random) -> Timetable:
        timetable = self._portfolio(shop, rng)
        self._hint = self._hint or timetable
        return timetable

    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        if self._shop_view.news != self._news:
            self._hint = self._ask = None  # an answer would be about another floor
        starts = super()._choose(floor, rng)
        if self._hint is not None and self._ask is None and self._plan is not None:
            self._ask = self._submit(_question(self._hint))
        answer = None if self._ask is None or self._hint is None else self._ask()
        if answer is None or self._plan is None:
            return starts
        self._hint = None
        plan = Plan(floor, _like(answer, lambda shop: self._portfolio(shop, rng)))
        if dry_run(floor, strictly(plan)).makespan < dry_run(floor, strictly(self._plan)).makespan:
            self._follow(plan)
        return self._rule(floor)


def _question(hint: Timetable) -> Job:
    def job() -> Timetable:
        if hint.ratio <= 1 + 1e-9 or len(hint.shop.units) > LIMIT:
            return hint
        return solve(hint.shop, seconds=SECONDS, hint=hint)[0]

    return job


def _like(answer: Timetable, further: Planner) -> Planner:
    """Plans what is left of the answer's shop in the answer's order, and all that comes after it by ``further``."""
    starts: dict[tuple[int, int], list[float]] = {}
    for unit, start in zip(answer.shop.units, answer.starts, strict=True):
        starts.setdefault((unit.config, unit.worker), []).append(start)
    for each in starts.values():
        each.sort()
    calls = 0

    def planner(shop: Shop) -> Timetable:
        nonlocal calls
        calls += 1
        if calls > 1:
            return further(shop)
        # Of a pair that meets several times, the last ones are left.
        planned = [starts[unit.config, unit.worker].pop() for unit in shop.units]
        order = sorted(range(len(planned)), key=lambda i: (planned[i], shop.units[i].seconds))
        return Timetable.of_order(shop, order)

    return planner
