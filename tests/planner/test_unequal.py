"""Chains of units on workers of unequal speed: the bound, and where units are placed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.planner.unequal import STYLES, Chains, Style, best, lower_bound, place

HEFT = Style(wait=0.0, age=0.0)


def chains(costs: list[float], speeds: list[float], units: int, *, busy: dict[int, float] | None = None) -> Chains:
    """Return trials that all may start, on workers each of a class of its own; ``busy`` tells when workers are free."""
    made = Chains(0.0, [[((busy or {}).get(worker, 0.0), worker)] for worker in range(len(speeds))])
    for cost in costs:
        made.add([cost / speed for speed in speeds], units, 0.0)
    return made


@pytest.mark.parametrize(
    ("work", "speeds", "bound"),
    [
        ([8.0], [1.0, 4.0], 2.0),  # one trial: the fastest worker
        ([8.0, 8.0], [1.0, 4.0], 3.2),  # all workers
        ([8.0, 8.0, 1.0], [4.0, 2.0, 2.0, 2.0], 16 / 6),  # two trials: the two fastest workers
    ],
)
def test_no_schedule_is_faster_than_the_fastest_workers(work: list[float], speeds: list[float], bound: float) -> None:
    assert lower_bound(work, speeds) == pytest.approx(bound)


def test_a_trial_waits_for_a_faster_worker() -> None:
    """It ends a unit 1.5 s from now there, and 4 s from now on the idle worker."""
    placed = place(chains([4.0], [1.0, 8.0], 1, busy={1: 1.0}), HEFT)
    assert (placed.units, placed.now, placed.end) == ([(0, 1)], [], 1.5)


def test_a_trial_starts_on_a_slow_worker_if_it_ends_sooner_there() -> None:
    placed = place(chains([4.0], [1.0, 8.0], 1, busy={1: 4.0}), HEFT)
    assert (placed.now, placed.end) == ([(0, 0)], 4.0)


def test_waiting_may_cost_more_than_the_time() -> None:
    shop = chains([4.0], [1.0, 8.0], 1, busy={1: 1.0})
    assert place(shop, Style(wait=3.0, age=0.0)).now == [(0, 0)]


def test_a_trial_that_is_late_goes_ahead() -> None:
    """The first trial has more work left, and runs until 1."""
    shop = Chains(0.0, [[(0.0, 0)]])
    shop.add([1.0], 3, 1.0)
    shop.add([1.0], 1, 0.0)
    assert place(shop, HEFT).units[0] == (0, 0)
    assert place(shop, Style(wait=0.0, age=10.0)).units[0] == (1, 0)


def test_a_trial_that_others_wait_for_goes_ahead() -> None:
    """The first trial has more work left, but five units follow the second one."""
    shop = Chains(0.0, [[(0.0, 0)]])
    shop.add([1.0], 3, 0.0)
    shop.add([1.0], 1, 0.0, onward=5)
    placed = place(shop, HEFT)
    assert placed.units == [(1, 0), (0, 0), (0, 0), (0, 0)]
    assert placed.end == 6.0


def test_of_workers_that_are_free_the_last_one_to_become_so_is_taken() -> None:
    shop = Chains(0.0, [[(0.0, 0), (1.0, 1), (3.0, 2)]])
    shop.add([1.0], 1, 2.0)
    assert place(shop, HEFT).units == [(0, 1)]


def test_places_as_many_as_asked_for() -> None:
    shop = chains([1.0, 1.0], [1.0, 2.0], 4)
    assert len(place(shop, HEFT).units) == 8
    assert len(place(shop, HEFT, most=3).units) == 3
    assert place(shop, HEFT, idle={0, 1}).now == place(shop, HEFT).now


def test_a_trial_without_units_is_left_out() -> None:
    shop = chains([1.0], [1.0], 0)
    assert place(shop, HEFT).units == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6),
    st.lists(st.floats(1.0, 8.0), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_places_every_unit_once_and_never_beats_the_bound(costs: list[float], speeds: list[float], units: int) -> None:
    shop = chains(costs, speeds, units)
    style, placed = best(shop)
    assert style in STYLES
    assert sorted(trial for trial, _ in placed.units) == sorted(list(range(len(costs))) * units)
    assert placed.end >= lower_bound([cost * units for cost in costs], speeds) * (1 - 1e-9)
    assert placed.end <= min(place(shop, each).end for each in STYLES)
    assert placed.now, "no worker is busy, so some trial starts"
