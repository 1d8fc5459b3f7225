from __future__ import annotations

import math

import pytest

from hopfleet.errors import InvariantBroken, UsageError
from hopfleet.planner.grid import Grid, tick
from hopfleet.planner.shop import Shop, ShopUnit, lower_bound
from hopfleet.planner.timetable import Orders, Timetable

TWO = Shop.of_times([[1, 2], [3, 4]])


def test_a_matrix_becomes_one_unit_for_each_entry():
    assert TWO.units == (ShopUnit(0, 0, 1.0), ShopUnit(0, 1, 2.0), ShopUnit(1, 0, 3.0), ShopUnit(1, 1, 4.0))
    assert (TWO.configs, TWO.workers, TWO.config_ready, TWO.worker_ready) == (2, 2, (0.0, 0.0), (0.0, 0.0))
    assert Shop.of_times([]) == Shop(0, 0, ())


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, 1e300, None, "soon", [1]])
def test_a_time_that_is_none_is_named(wrong):
    with pytest.raises(UsageError, match=r"times\[1\]\[0\]"):
        Shop.of_times([[1, 2], [wrong, 4]])
    with pytest.raises(UsageError, match=r"units\[1\].seconds"):
        Shop(1, 1, (ShopUnit(0, 0, 1.0), ShopUnit(0, 0, wrong)))
    with pytest.raises(UsageError, match=r"config_ready\[0\]"):
        Shop(1, 1, (), config_ready=(wrong,))
    with pytest.raises(UsageError, match=r"worker_ready\[1\]"):
        Shop(1, 2, (), worker_ready=(0.0, wrong))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shop.of_times([[1, 2], [3]]), r"times\[1\] has 1 entries, times\[0\] has 2"),
        (lambda: Shop(-1, 1, ()), "configs=-1: must be at least 0"),
        (lambda: Shop(1, -2, ()), "workers=-2: must be at least 0"),
        (lambda: Shop(2, 1, (), config_ready=(1.0,)), "config_ready has 1 times for configs=2"),
        (lambda: Shop(2, 1, (ShopUnit(2, 0, 1.0),)), r"units\[0\].config=2: must be at least 0 and below 2"),
        (lambda: Shop(2, 1, (ShopUnit(0, -1, 1.0),)), r"units\[0\].worker=-1"),
    ],
)
def test_a_shop_that_cannot_be_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_the_bound_is_the_busiest_worker_or_configuration():
    assert lower_bound(TWO) == 7.0  # configuration 1
    assert lower_bound(Shop.of_times([[1, 2], [3, 9]])) == 12.0
    assert lower_bound(Shop.of_times([[1, 5], [1, 5]])) == 10.0  # worker 1
    assert lower_bound(Shop(3, 2, ())) == 0.0


def test_the_bound_knows_when_one_is_ready():
    late = Shop(2, 2, (ShopUnit(0, 0, 1.0),), config_ready=(2.0, 9.0), worker_ready=(3.0, 9.0))
    assert lower_bound(late) == 4.0  # configurations without work delay nothing
    assert Grid.of(late).bound == 4


def test_whole_numbers_are_ticks_and_others_are_rounded_finely():
    assert tick(TWO) == 1.0
    assert Grid.of(TWO).ticks == [1, 2, 3, 4]
    third = Shop.of_times([[1 / 3, 2 / 3]])
    assert Grid.of(third).ticks == [round(2**50 / 3), round(2**51 / 3)]
    assert tick(TWO, finest=5.0) == 2.0
    assert Grid.of(Shop.of_times([[5e-324]])).ticks == [0]


def test_a_timetable_from_an_order():
    timetable = Timetable.of_order(TWO, [0, 3, 1, 2])
    assert timetable.starts == (0.0, 4.0, 4.0, 0.0)
    timetable.check()
    assert (timetable.makespan, timetable.ratio) == (7.0, 1.0)
    assert timetable.orders() == Orders(workers=((0, 2), (3, 1)), configs=((0, 1), (3, 2)))


def test_a_timetable_of_nothing():
    empty = Timetable.of_order(Shop(2, 3, ()), [])
    empty.check()
    assert (empty.makespan, empty.ratio) == (0.0, 1.0)


def test_units_without_length_come_first_in_orders():
    shop = Shop(1, 1, (ShopUnit(0, 0, 2.0), ShopUnit(0, 0, 0.0)))
    timetable = Timetable.of_order(shop, [1, 0])
    timetable.check()
    assert timetable.orders().workers == ((1, 0),)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ((0.0, 1.0, 1.0), "3 starts for 4 units"),
        ((0.0, 10.0, 0.5, 20.0), r"worker 0: unit 2 .config 1, worker 0. runs from 0.5 to 3.5, during unit 0"),
        ((0.0, 0.5, 10.0, 20.0), r"config 0: unit 1 .* during unit 0"),
        ((-1.0, 10.0, 20.0, 30.0), "before worker 0 is ready at 0.0"),
    ],
)
def test_what_cannot_be_carried_out_is_noticed(starts, message):
    with pytest.raises(InvariantBroken, match=message):
        Timetable(TWO, starts).check()


def test_a_start_before_the_configuration_is_ready_is_noticed():
    shop = Shop(1, 1, (ShopUnit(0, 0, 1.0),), config_ready=(5.0,))
    with pytest.raises(InvariantBroken, match=r"before config 0 is ready at 5\.0"):
        Timetable(shop, (4.0,)).check()
