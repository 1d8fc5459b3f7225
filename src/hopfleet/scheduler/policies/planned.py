"""Policies that make a plan and carry it out: one class, and a planner for each of its names.

The plan is made from what is left and from what runs until when. It is made again when workers or trials come or go,
when expected times have changed, and carried on with the next epochs as it is used up. While no plan can be kept, as
after a fault, match-reserve chooses.
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
from hopfleet.scheduler.shop_state import Floor, Rule, Start

SeededPlanner = Callable[[Shop, random.Random], Timetable]


class Mode(enum.Enum):
    """How a plan is carried out."""

    STRICT = "strict"  #: all keep to their orders, and wait where they must
    PRIORITY = "priority"  #: nobody waits who could work; what was planned first goes first
    NONE = "none"  #: not at all: match-reserve


class Planned(Dispatcher):
    def __init__(self, planner: SeededPlanner, mode: Mode = Mode.STRICT) -> None:
        super().__init__()
        self._planner = planner
        self._mode = mode
        self._plan: Plan | None = None
        self._rule: Rule = match_and_reserve
        self._news = -1

    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        if self._mode is Mode.NONE or not floor.plannable:
            self._plan = None
            return match_and_reserve(floor)
        if self._plan is None or self._shop_view.news != self._news:
            self._news = self._shop_view.news
            self._follow(Plan(floor, lambda shop: self._planner(shop, rng)))
        elif not self._plan.covers(floor):
            self._plan.extend(floor)
        return self._rule(floor)

    def _follow(self, plan: Plan) -> None:
        self._plan = plan
        self._rule = (strictly if self._mode is Mode.STRICT else by_start)(plan)
