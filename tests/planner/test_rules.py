from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.planner import costs
from hopfleet.planner.grid import Grid
from hopfleet.planner.rules import PRIORITY_RULES, heaviest_match, longest_remaining, longest_unit, schedule
from hopfleet.planner.shop import Shop, ShopUnit, lower_bound
from hopfleet.planner.timetable import Timetable
from tests.helpers.shops import shops, squares

rules = st.sampled_from(sorted(PRIORITY_RULES))
busy_rules = st.sampled_from(sorted(set(PRIORITY_RULES) - {"colored"}))


@settings(deadline=None)
@given(shops(), rules, st.integers(0, 9))
def test_every_rule_gives_a_timetable_that_can_be_carried_out(shop, rule, seed):
    timetable = schedule(shop, PRIORITY_RULES[rule], random.Random(seed))
    timetable.check()
    assert timetable.makespan >= lower_bound(shop) * (1 - 1e-9)
    assert timetable == schedule(shop, PRIORITY_RULES[rule], random.Random(seed))


@settings(deadline=None)
@given(shops(), busy_rules)
def test_nobody_waits_who_could_work(shop, rule):
    timetable = schedule(shop, PRIORITY_RULES[rule], random.Random(0))
    orders = timetable.orders()
    for index, unit in enumerate(shop.units):
        both = {*orders.workers[unit.worker], *orders.configs[unit.config]}
        busy = [(timetable.starts[i], timetable.starts[i] + shop.units[i].seconds) for i in both]
        now = max(shop.config_ready[unit.config], shop.worker_ready[unit.worker])
        for start, end in sorted(busy):
            if start < timetable.starts[index]:
                assert start <= now + 1e-9
                now = max(now, end)
        assert timetable.starts[index] <= now + 1e-9


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12))
def test_units_of_one_length_are_coloured_optimally(configs, workers):
    assert (
        schedule(Shop.of_times(costs.homogeneous(configs, workers)), PRIORITY_RULES["colored"], random.Random(0)).ratio
        == 1.0
    )


@settings(deadline=None)
@given(shops(times=st.just(1.0), ready=False))
def test_any_graph_is_coloured_optimally(shop):
    assert schedule(shop, PRIORITY_RULES["colored"], random.Random(0)).ratio == 1.0


def test_the_most_loaded_worker_takes_the_longest_configuration():
    shop = Shop.of_times([[1, 2], [3, 4]])
    assert longest_remaining(Grid.of(shop), random.Random(0))[0] == 3
    assert heaviest_match(Grid.of(shop), random.Random(0))[0] == 3


def test_the_longest_unit_of_a_pair_comes_first():
    shop = Shop(1, 1, tuple(ShopUnit(0, 0, seconds) for seconds in (1.0, 3.0, 2.0)))
    for rule in (longest_remaining, heaviest_match, longest_unit):
        assert rule(Grid.of(shop), random.Random(0)) == [1, 2, 0]


@pytest.mark.parametrize("rule", [longest_remaining, heaviest_match])
def test_noise_gives_other_timetables(rule):
    shop = Shop.of_times(costs.cnns(8, 4, random.Random(0)))
    rng = random.Random(1)
    noisy = [Timetable.of_order(shop, rule(Grid.of(shop), rng, 0.2)) for _ in range(5)]
    for timetable in noisy:
        timetable.check()
    assert len(set(noisy)) > 1


@settings(deadline=None)
@given(squares(), busy_rules)
def test_graham_bound(shop, rule):
    timetable = schedule(shop, PRIORITY_RULES[rule], random.Random(0))
    longest = max(unit.seconds for unit in shop.units)
    assert timetable.makespan <= lower_bound(shop) + (shop.workers - 1) * longest + 1e-9


def test_random_orders_differ():
    shop = Shop.of_times(costs.homogeneous(6, 6))
    found = {schedule(shop, PRIORITY_RULES["random"], random.Random(seed)) for seed in range(4)}
    assert all(a.starts != b.starts for a, b in itertools.combinations(found, 2))
    assert len(found) > 1
