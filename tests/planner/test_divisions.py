"""Divisions of devices into teams."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopfleet.planner.divisions import divisions, least_seconds
from hopfleet.planner.rates import Rates

works = st.lists(st.floats(0.1, 100), min_size=1, max_size=12)
counts = st.integers(1, 9)
pairs = st.floats(1.05, 2.0)


def speed(pair: float) -> Rates:
    return Rates("of a team", (1.0, pair))


def test_trials_share_devices_in_any_proportion() -> None:
    assert least_seconds([6.0], 3, speed(2.0)) == pytest.approx(2.0)
    assert least_seconds([6.0, 3.0], 3, speed(2.0)) == pytest.approx(3.0)
    assert least_seconds([1.0] * 9, 3, speed(1.5)) == pytest.approx(3.0), "one device each is the best use of all"
    # Half of the time each trial has two devices: 1 / (0.5 + 0.5 · 1.5).
    assert least_seconds([1.0, 1.0], 3, speed(1.5)) == pytest.approx(0.8)


def test_devices_that_slow_a_team_down_are_left_out() -> None:
    curbed = Rates("curbed", (10.0, 12.0), base=1)
    assert least_seconds([10.0], 8, lambda size: curbed(size) / 10.0) == pytest.approx(10 / 1.2)
    assert divisions([10.0], 8, lambda size: curbed(size) / 10.0, 8, 1)[0][0] == 2


def test_a_long_trial_gets_a_team_though_trials_outnumber_devices() -> None:
    assert divisions([40.0, *[5.0] * 8], 8, speed(1.9), 8, 1)[0][:2] == (5, 1)
    assert divisions([5.0] * 9, 8, speed(1.9), 8, 1) == [(1,) * 8]


@given(works, counts, pairs, st.integers(1, 9))
def test_no_division_beats_the_bound_or_takes_devices_that_are_not_there(
    work: list[float], devices: int, pair: float, most: int
) -> None:
    rates = speed(pair)
    found = divisions(work, devices, rates, most, 5)
    assert found and len(set(found)) == len(found)
    for division in found:
        assert sum(division) <= devices and max(division) <= most
        assert list(division) == sorted(division, reverse=True) and min(division) > 0


@pytest.mark.parametrize("seed", range(8))
def test_the_best_division_is_close_to_the_bound_of_many_devices(seed: int) -> None:
    rng = random.Random(seed)
    work, rates = [rng.uniform(1, 10) for _ in range(rng.randint(4, 24))], speed(rng.uniform(1.5, 2.0))
    (best,) = divisions(work, 16, rates, 16, 1)
    longest, fastest = sorted(work, reverse=True), [rates(size) for size in best]
    # Reached by hopping, if units are short: no k trials are faster than on the k fastest teams.
    parts = [sum(longest[:k]) / sum(fastest[:k]) for k in range(1, 1 + min(len(work), len(best)))]
    end = max(sum(work) / sum(fastest), *parts)
    assert 1 - 1e-9 <= end / least_seconds(work, 16, rates) <= 1.05
