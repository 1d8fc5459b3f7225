"""Follow the plan of a constraint solver that starts from the portfolio's plan: the Cerebro paper's MILP, but faster.

The policy suits few trials on few workers, where optimal plans are hardest to find. The solver is called once, for the
rest of the current epoch, and may run for seconds in the background; the ``submit`` argument says how. Until the solver
answers, the policy follows the portfolio's plan, and keeps it if it is no worse by then. The solver reads the clock, so
two runs may differ. The solver needs ``hopfleet[solver]``.
"""

from __future__ import annotations

import math
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
from hopfleet.scheduler.shop_state import ShopState, Start

SECONDS = 14.0
"""Time limit of the solver, in seconds; a proven optimum ends it earlier."""

Job = Callable[[], Timetable]
Submit = Callable[[Job], Callable[[], Timetable | None]]
"""Starts a job, and returns a function that returns the result, or None while the job is running."""


def at_once(job: Job) -> Callable[[], Timetable | None]:
    """Run a job synchronously, as in virtual time, which does not pass meanwhile."""
    result = job()
    return lambda: result


def require_solver() -> None:
    """Raise MissingExtra unless the solver is installed."""
    if not installed():
        raise MissingExtra("OR-tools", "solver")


def too_large(trials: int, partitions: int) -> str | None:
    """Return a message if the experiment is too large for the solver, else None."""
    units = trials * partitions
    if units <= LIMIT:
        return None
    return f"policy='exact': {units} units exceed the solver's limit of {LIMIT}; the portfolio plans instead"


class Exact(Planned):
    """The policy that follows the solver's plan once the solver has answered."""

    def __init__(self, submit: Submit = at_once, mode: Mode = Mode.STRICT) -> None:
        require_solver()
        super().__init__(self._sketch, mode)
        self._submit = submit
        self._portfolio = ByPortfolio(EFFORT)
        #: The portfolio's timetable of the current epoch, until the solver's answer was used.
        self._hint: Timetable | None = None
        self._ask: Callable[[], Timetable | None] | None = None

    def _sketch(self, shop: Shop, rng: random.Random) -> Timetable:
        timetable = self._portfolio(shop, rng)
        self._hint = self._hint or timetable
        return timetable

    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        if self._shop_view.news != self._news:
            self._hint = self._ask = None  # an answer would belong to an outdated state
        starts = super()._choose(state, rng)
        if self._hint is not None and self._ask is None and self._plan is not None:
            self._ask = self._submit(_question(self._hint))
        answer = None if self._ask is None or self._hint is None else self._ask()
        if answer is None or self._plan is None:
            return starts
        self._hint = None
        plan = Plan(state, _like(answer, lambda shop: self._portfolio(shop, rng)))
        if dry_run(state, strictly(plan)).makespan < dry_run(state, strictly(self._plan)).makespan:
            self._follow(plan)
        return self._rule(state)


def _question(hint: Timetable) -> Job:
    def job() -> Timetable:
        if hint.ratio <= 1 + 1e-9 or len(hint.shop.units) > LIMIT:
            return hint
        return solve(hint.shop, seconds=SECONDS, hint=hint)[0]

    return job


def _like(answer: Timetable, further: Planner) -> Planner:
    """Return a planner that keeps the answer's order for the units left of its shop, and then uses ``further``."""
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
        # Of a pair with several units, the last ones are left. Units that the answer does not know, of a trial that
        # has begun another epoch meanwhile, come last.
        known = (starts.get((unit.config, unit.worker)) for unit in shop.units)
        planned = [left.pop() if left else math.inf for left in known]
        order = sorted(range(len(planned)), key=lambda i: (planned[i], shop.units[i].seconds))
        return Timetable.of_order(shop, order)

    return planner
