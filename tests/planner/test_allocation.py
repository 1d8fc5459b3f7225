"""Numbers of devices for the trials of a search, in whole epochs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain.trial import Trial
from hopfleet.planner.fleet.allocation import CROWD, Allocation, Fleet, RemainingWork, allocate
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling


def work(seconds: Sequence[float], epochs: int, devices: int, gain: float = 1.8) -> RemainingWork:
    """Return trials t0, t1 ... whose epochs take these seconds on one device."""
    tables = [Rates("", (1 / each, gain / each) if gain > 1 else (1 / each,)) for each in seconds]
    by_trial = {f"t{at}": [1 / rate for rate in table.up_to(devices)] for at, table in enumerate(tables)}
    return RemainingWork(dict.fromkeys(by_trial, epochs), by_trial)


def singles(devices: int) -> tuple[int, ...]:
    return (1,) * devices


def test_more_devices_than_trials_form_a_team_for_each() -> None:
    found = allocate(work([1.0, 1.0], 4, 4), 4, singles(4), 0.5)
    assert found == Allocation((2, 2), {"t0": 2, "t1": 2}, {"t0": 4, "t1": 4})


def test_a_slow_trial_has_more_devices() -> None:
    found = allocate(work([1.0, 4.0], 4, 4), 4, singles(4), 0.5)
    assert found.devices == {"t1": 3, "t0": 1}


def test_more_trials_than_devices_hop_between_single_devices() -> None:
    found = allocate(work([1.0] * 3, 4, 2), 2, singles(2), 0.5)
    assert found == Allocation((1, 1), {"t0": 1, "t1": 1, "t2": 1}, {"t0": 4, "t1": 4, "t2": 4})


def test_a_trial_that_would_end_last_has_a_team_while_others_wait() -> None:
    found = allocate(work([10.0, 1.0, 1.0], 4, 2), 2, singles(2), 0.5)
    assert found == Allocation((2,), {"t0": 2}, {"t0": 4})


def test_no_team_forms_where_two_devices_are_no_faster() -> None:
    found = allocate(work([1.0, 4.0], 4, 4, gain=1.0), 4, singles(4), 0.0)
    assert set(found.devices.values()) == {1}


@pytest.mark.parametrize(("restart", "teams"), [(0.5, (2,)), (50.0, (1, 1))])
def test_a_restart_must_pay(restart: float, teams: tuple[int, ...]) -> None:
    assert allocate(work([10.0], 2, 2), 2, (1, 1), restart).teams == teams


def test_teams_stay_if_singles_would_be_no_better() -> None:
    assert allocate(work([1.0], 4, 4), 4, (4,), 1.0).teams == (4,)
    assert allocate(work([1.0], 4, 2), 2, (4,), 1.0).teams == (2,), "two of four devices are gone"


def test_a_lap_is_one_epoch_of_the_slowest() -> None:
    found = allocate(work([1.0, 4.0], 9, 2, gain=1.0), 2, singles(2), 0.5, lap=True)
    assert found.epochs == {"t1": 1, "t0": 4}


def test_a_crowd_has_one_device_each_and_the_shortest_wait() -> None:
    crowd = work([1.0 + at / 100 for at in range(2 * CROWD + 1)], 3, 2)
    found = allocate(crowd, 2, singles(2), 0.5)
    assert found.teams == (1, 1) and set(found.devices.values()) == {1}
    assert "t16" in found.devices and "t0" not in found.devices


def test_a_trial_that_is_longer_than_the_crowd_has_a_team() -> None:
    crowd = work([1000.0, *[1.0] * 2 * CROWD], 3, 2)
    assert allocate(crowd, 2, singles(2), 0.5).devices["t0"] == 2


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=9),
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(1, 2),
    st.floats(0, 50),
    st.booleans(),
)
def test_repeated_allocations_train_all_epochs_on_the_devices_there_are(
    seconds: list[float], epochs: int, devices: int, gain: float, restart: float, lap: bool
) -> None:
    whole = work(seconds, epochs, devices, gain)
    left, teams = dict(whole.epochs), singles(devices)
    while left:
        found = allocate(RemainingWork(left, whole.seconds), devices, teams, restart, lap=lap)
        again = allocate(RemainingWork(left, whole.seconds), devices, teams, restart, lap=lap)
        assert found == again
        assert sum(found.teams) <= devices and found.devices.keys() == found.epochs.keys() != set()
        assert set(found.devices.values()) <= set(found.teams), "each trial has a team of its size"
        assert all(1 <= count <= left[trial] for trial, count in found.epochs.items())
        left = {trial: rest for trial, count in left.items() if (rest := count - found.epochs.get(trial, 0))}
        teams = found.teams


def test_rates_are_limited_by_the_size_of_batches() -> None:
    scaling = Scaling("ddp", Rates("", (1.0,)), most=2)
    fleet = Fleet(scaling, lambda trial: Rates("", (10.0, 20.0)), rows=100)
    assert fleet.epoch_seconds(Trial("t", 0, {}, 0, 1), 3) == [10.0, 5.0, 5.0]
