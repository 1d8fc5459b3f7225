from __future__ import annotations

import itertools
import random
import sys

import pytest
from hypothesis import given, settings

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner import exact
from hopfleet.planner.portfolio import plan
from hopfleet.planner.shop import Shop, ShopUnit
from hopfleet.planner.timetable import Timetable
from tests.helpers.shops import shops, squares, whole

# Every worker and every configuration has 10 seconds of work, and 11 are needed.
HARD = Shop.of_times([[1, 6, 3], [1, 3, 6], [8, 1, 1]])


@settings(deadline=None, max_examples=15)
@given(squares(times=whole, most=2))
def test_the_optimum_is_that_of_all_orders(shop):
    timetable, proven = exact.solve(shop, seconds=10)
    timetable.check()
    orders = itertools.permutations(range(len(shop.units)))
    assert proven
    assert timetable.makespan == min(Timetable.of_order(shop, order).makespan for order in orders)


@settings(deadline=None, max_examples=20)
@given(shops(most=3))
def test_no_plan_is_better(shop):
    planned = plan(shop, random.Random(0), effort=500)
    timetable, proven = exact.solve(shop, seconds=10, hint=planned)
    timetable.check()
    assert proven
    assert timetable.makespan <= planned.makespan


def test_steps_may_be_counted_instead_of_seconds():
    timetable, proven = exact.solve(HARD, seconds=10, counted=True)
    assert proven and timetable.makespan == exact.solve(HARD, seconds=10)[0].makespan
    assert exact.solve(HARD, seconds=1e-9, counted=True)[1] is False


def test_an_optimum_above_the_bound_is_proven():
    first = Timetable.of_order(HARD, range(9))
    timetable, proven = exact.solve(HARD, seconds=10, hint=first)
    assert proven
    assert timetable.makespan == 11.0 < first.makespan
    assert timetable.ratio == 1.1


def test_a_hint_may_be_reversed():
    shop = Shop(2, 2, (ShopUnit(0, 0, 1.0), ShopUnit(0, 1, 1.0), ShopUnit(1, 0, 1.0), ShopUnit(1, 1, 5.0)))
    late = Timetable(shop, (0.0, 1.0, 1.0, 2.0))
    timetable, proven = exact.solve(shop, seconds=10, hint=late)
    assert proven
    assert timetable.makespan == 6.0


def test_whoever_is_late_is_waited_for():
    shop = Shop(2, 1, (ShopUnit(0, 0, 1.0), ShopUnit(1, 0, 1.0)), config_ready=(3.0, 0.0))
    assert exact.solve(shop, seconds=10, hint=Timetable(shop, (3.0, 4.0)))[0].starts == (3.0, 0.0)


def test_no_time_is_no_harm():
    first = Timetable.of_order(HARD, range(9))
    assert exact.solve(HARD, seconds=1e-9, hint=first) == (first, False)


def test_what_cannot_be_solved_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="seconds=0: must be above 0"):
        exact.solve(HARD, seconds=0)
    with pytest.raises(UsageError, match="a timetable of another shop"):
        exact.solve(HARD, seconds=1, hint=Timetable(Shop(0, 0, ()), ()))
    monkeypatch.setattr(exact, "LIMIT", 8)
    with pytest.raises(
        UsageError, match=r"9 units: the exact solver takes at most 8; use portfolio\.plan, which has no limit"
    ):
        exact.solve(HARD, seconds=1)


def test_without_the_solver_its_extra_is_named(monkeypatch):
    assert exact.installed()
    monkeypatch.setitem(sys.modules, "ortools", None)
    assert not exact.installed()
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingExtra, match=r"OR-tools.*hopfleet\[solver\]"):
        exact.solve(HARD, seconds=1)
