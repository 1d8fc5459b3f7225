from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.planner import costs, exact
from hopfleet.planner.rearrangement import optimal, rearrange, steinitz
from hopfleet.planner.shop import Shop, ShopUnit, lower_bound
from tests.helpers.shops import shops, squares, whole


@settings(deadline=None, max_examples=50)
@given(shops())
def test_every_shop_gets_a_timetable(shop):
    timetable = rearrange(shop)
    timetable.check()
    assert timetable == rearrange(shop)


@settings(deadline=None, max_examples=20)
@given(squares(times=whole, most=3))
def test_the_guarantee_against_the_optimum(shop):
    best, proven = exact.solve(shop, seconds=10)
    longest = max(unit.seconds for unit in shop.units)
    assert proven
    assert best.makespan <= rearrange(shop).makespan <= best.makespan + (shop.workers - 1) * longest


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.integers(0, 999), st.sampled_from([0.0, 0.3, 1.0]))
def test_long_circles_are_optimal(workers, seed, sigma):
    rng = random.Random(seed)
    times = [[min(x, 2.0) if rng.random() < 0.9 else 0.0 for x in costs.lognormal(1, workers, rng, sigma)[0]]]
    while not optimal(Shop.of_times(times)):
        times += [[min(x, 2.0) for x in row] for row in costs.lognormal(4, workers, rng, sigma)]
    timetable = rearrange(Shop.of_times(times))
    timetable.check()
    assert timetable.ratio == pytest.approx(1.0, abs=1e-9)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.integers(0, 999))
def test_long_circles_of_whole_numbers_are_optimal(workers, seed):
    rng = random.Random(seed)
    times = [[rng.randint(0, 9) for _ in range(workers)] for _ in range(4 * (workers * workers + workers))]
    shop = Shop.of_times(times)
    assert optimal(shop)
    assert rearrange(shop).makespan == lower_bound(shop)


def test_several_units_of_a_pair_count_as_one():
    units = tuple(ShopUnit(config, worker, 0.5) for config in range(8) for worker in range(2) for _ in range(2))
    shop = Shop(8, 2, units)
    assert optimal(shop)
    timetable = rearrange(shop)
    timetable.check()
    assert timetable.makespan == 8.0


def test_no_promise_when_somebody_comes_late():
    shop = Shop.of_times(costs.homogeneous(8, 2))
    assert optimal(shop)
    late = Shop(8, 2, shop.units, worker_ready=(0.0, 3.0))
    assert not optimal(late)
    rearrange(late).check()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), st.integers(0, 4), st.integers(0, 999))
def test_partial_sums_stay_within_the_dimension(count, dimension, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.uniform(-1, 1, (count, dimension))
    if count:
        vectors -= vectors.mean(axis=0)
        vectors /= np.abs(vectors).max(initial=1.0)
    order = steinitz(vectors)
    assert sorted(order) == list(range(count))
    assert np.abs(np.cumsum(vectors[order], axis=0)).max(initial=0.0) <= dimension + 1e-6
