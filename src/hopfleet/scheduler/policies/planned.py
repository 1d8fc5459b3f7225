"""Policies that make a plan and follow it: one class, used with several planners.

A plan is made from the remaining work and the expected ends of running units. It is made again when workers or trials
come or go and when expected times have changed, and is extended by further epochs as it is used up. While no plan can
be followed, as after a fault, match-reserve chooses.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence

from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.plan import Plan, by_start, strictly
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.policies.match_reserve import match_and_reserve
from hopfleet.scheduler.shop_state import DispatchRule, ShopState, Start

SeededPlanner = Callable[[Shop, random.Random], Timetable]


class Mode(enum.Enum):
    """How a plan is followed."""

    STRICT = "strict"  #: workers and trials keep to their orders and wait where necessary
    PRIORITY = "priority"  #: no worker waits that could run a unit; the unit planned first starts first
    NONE = "none"  #: not at all; match-reserve chooses


class Planned(Dispatcher):
    """A policy that follows the plans of one planner."""

    def __init__(self, planner: SeededPlanner, mode: Mode = Mode.STRICT) -> None:
        super().__init__()
        self._planner = planner
        self._mode = mode
        self._plan: Plan | None = None
        self._rule: DispatchRule = match_and_reserve
        self._news: int | None = None

    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        if self._mode is Mode.NONE or not state.plannable:
            self._plan = None
            return match_and_reserve(state)
        if self._plan is None or self._shop_view.news != self._news:
            self._news = self._shop_view.news
            self._follow(Plan(state, lambda shop: self._planner(shop, rng)))
        elif not self._plan.covers(state):
            self._plan.extend(state)
        return self._rule(state)

    def _follow(self, plan: Plan) -> None:
        self._plan = plan
        self._rule = (strictly if self._mode is Mode.STRICT else by_start)(plan)
