from __future__ import annotations

import math
import random
import sys
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.errors import UsageError
from hopfleet.planner import costs, portfolio
from hopfleet.planner.grid import Grid
from hopfleet.planner.improve import Budget, justify, reinsert
from hopfleet.planner.portfolio import plan
from hopfleet.planner.rules import PRIORITY_RULES, longest_remaining, random_unit
from hopfleet.planner.shop import Shop, ShopUnit, lower_bound
from hopfleet.planner.timetable import Timetable
from tests.helpers.shops import shops, whole


@settings(deadline=None)
@given(shops(), st.sampled_from([0, 50, 1500]), st.integers(0, 9))
def test_plans_can_be_carried_out_and_come_out_alike(shop, effort, seed):
    timetable = plan(shop, random.Random(seed), effort=effort)
    timetable.check()
    assert timetable.makespan >= lower_bound(shop) * (1 - 1e-9)
    assert timetable == plan(shop, random.Random(seed), effort=effort)


@settings(deadline=None)
@given(shops(times=whole), st.integers(0, 9))
def test_a_plan_is_no_worse_than_the_rules(shop, seed):
    grid = Grid.of(shop)
    rules = [
        grid.makespan(rule(grid, random.Random(seed))) for name, rule in PRIORITY_RULES.items() if name != "random"
    ]
    assert plan(shop, random.Random(seed), effort=10_000).makespan <= min(rules)


@settings(deadline=None)
@given(shops(most=6), st.integers(0, 99))
def test_justifying_never_loses(shop, seed):
    grid = Grid.of(shop)
    order = random_unit(grid, random.Random(seed))
    better = justify(grid, order, Budget(1e6))
    assert sorted(better) == sorted(order)
    assert grid.makespan(better) <= grid.makespan(order)


def test_nothing_runs_across_a_unit_without_length():
    for seed in range(150):
        rng = random.Random(seed)
        units = (ShopUnit(rng.randrange(5), rng.randrange(5), float(rng.randrange(4))) for _ in range(30))
        grid = Grid.of(Shop(5, 5, tuple(units)))
        order = random_unit(grid, rng)
        assert grid.makespan(justify(grid, order, Budget(1e6))) <= grid.makespan(order)


@settings(deadline=None)
@given(shops(), st.integers(0, 99))
def test_reinserting_never_loses(shop, seed):
    grid, rng = Grid.of(shop), random.Random(seed)
    order = random_unit(grid, rng)
    better = reinsert(grid, order, rng, Budget(2000))
    assert sorted(better) == sorted(order)
    assert grid.makespan(better) <= grid.makespan(order)


def test_reinserting_improves_what_justifying_cannot():
    gains = []
    for seed in range(4):
        grid = Grid.of(Shop.of_times(costs.lognormal(5, 5, random.Random(seed), 0.8)))
        rng = random.Random(seed)
        stuck = justify(grid, random_unit(grid, rng), Budget(1e6))
        gains.append(grid.makespan(stuck) - grid.makespan(reinsert(grid, stuck, rng, Budget(10_000))))
    assert max(gains) > 0


@pytest.mark.parametrize(("configs", "workers"), [(4, 4), (16, 16), (16, 8), (8, 16), (24, 7)])
def test_units_of_one_length_reach_the_bound(configs, workers):
    assert plan(Shop.of_times(costs.homogeneous(configs, workers)), random.Random(0)).ratio == 1.0


def test_the_heterogeneous_settings_of_the_paper_reach_the_bound():
    for configs, workers, seeds in ((16, 8, 20), (16, 16, 20), (256, 8, 1)):
        ratios = []
        for seed in range(seeds):
            rng = random.Random(seed)
            ratios.append(plan(Shop.of_times(costs.cnns(configs, workers, rng)), rng).ratio)
        assert mean(ratios) <= 1.0005
        assert max(ratios) <= 1.005


def test_nearly_equal_units_keep_their_turns():
    shop = Shop.of_times(costs.lognormal(12, 12, random.Random(0), 0.02))
    busy = Timetable.of_order(shop, longest_remaining(Grid.of(shop), random.Random(0)))
    assert plan(shop, random.Random(0), effort=0).ratio > 1.05
    assert plan(shop, random.Random(0), effort=5000).ratio < 1.02 < busy.ratio


def test_replanning_in_mid_run_respects_who_is_busy():
    units = tuple(ShopUnit(config, worker, 1.0) for config in range(3) for worker in range(3))
    timetable = plan(Shop(3, 3, units, config_ready=(0.0, 2.0, 0.0), worker_ready=(5.0, 0.0, 0.0)), random.Random(0))
    timetable.check()
    assert timetable.makespan == 8.0


def test_stop_ends_the_search():
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 3

    shop = Shop.of_times([[3, 1], [1, 3], [2, 2.5]])
    hard = Shop.of_times(costs.lognormal(4, 4, random.Random(3), 1.0))
    plan(shop, random.Random(0), stop=lambda: True).check()
    plan(hard, random.Random(0), stop=stop).check()
    assert len(asked) <= 5


@pytest.mark.parametrize("effort", [-1, math.inf, math.nan])
def test_an_effort_that_is_none_is_refused(effort):
    with pytest.raises(UsageError, match=r"effort=.*: must be a finite number"):
        plan(Shop(0, 0, ()), random.Random(0), effort=effort)


class TestBest:
    #: Every worker and every configuration has 10 seconds of work, and 11 are needed.
    HARD = Shop.of_times([[1, 6, 3], [1, 3, 6], [8, 1, 1]])

    @pytest.fixture
    def asked(self, monkeypatch):
        """The hints that the solver was given. It answers with the units in the order of the shop."""
        hints = []

        def solve(shop, *, seconds, hint, counted):
            hints.append((seconds, hint))
            return Timetable.of_order(shop, range(len(shop.units))), False

        monkeypatch.setattr(portfolio.exact, "solve", solve)
        return hints

    def test_the_solver_improves_the_plan(self):
        rough = portfolio.plan(self.HARD, random.Random(0), effort=0)
        assert portfolio.best(self.HARD, random.Random(0), seconds=10, effort=0).makespan == 11.0
        assert rough.makespan >= 11.0

    def test_it_is_given_the_plan_and_the_time(self, asked):
        planned = portfolio.plan(self.HARD, random.Random(3), effort=100)
        found = portfolio.best(self.HARD, random.Random(3), seconds=0.5, effort=100)
        assert asked == [(0.5, planned)]
        assert found == Timetable.of_order(self.HARD, range(9))

    def test_large_shops_are_not_for_it(self, asked, monkeypatch):
        monkeypatch.setattr(portfolio, "SMALL", 8)
        planned = portfolio.plan(self.HARD, random.Random(3), effort=100)
        assert portfolio.best(self.HARD, random.Random(3), seconds=0.5, effort=100) == planned
        assert asked == []

    def test_at_the_bound_there_is_nothing_to_ask(self, asked):
        assert portfolio.best(Shop.of_times([[0.1, 0.2], [0.2, 0.1]]), random.Random(0), seconds=0.5).ratio < 1 + 1e-9
        assert asked == []

    def test_without_the_solver_the_plan_stands(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
        planned = portfolio.plan(self.HARD, random.Random(3), effort=100)
        assert portfolio.best(self.HARD, random.Random(3), seconds=0.5, effort=100) == planned
