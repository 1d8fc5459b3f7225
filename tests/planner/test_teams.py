"""Teams of idle devices at the end of a search."""

from __future__ import annotations

import pytest

from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import UsageError
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling, better_teams, even_teams, seconds_left

LINEAR = Scaling("ddp", Rates("linear", (10.0, 20.0)))
FLAT = Scaling("ddp", Rates("flat", (10.0, 15.0), base=1))


def test_shapes_and_speeds() -> None:
    assert (LINEAR.shape(1), LINEAR.shape(3)) == (SINGLE, TeamShape("ddp", 3))
    assert (LINEAR.speed(1), LINEAR.speed(2), LINEAR.speed(8)) == (1.0, 2.0, 8.0)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_seconds_to_form_teams_must_be_a_time(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"form_seconds=.*: must be finite and at least 0"):
        Scaling("ddp", LINEAR.rates, seconds)


def test_each_trial_has_a_worker_of_its_own() -> None:
    assert seconds_left([4.0, 12.0], [1.0, 3.0, 2.0]) == 4.0
    assert seconds_left([4.0, 12.0], [1.0, 1.0]) == 12.0


def test_trials_share_workers_if_there_are_too_few() -> None:
    assert seconds_left([4.0, 4.0, 4.0], [1.0, 2.0]) == 4.0
    assert seconds_left([10.0, 1.0, 1.0], [1.0, 2.0]) == 5.0


@pytest.mark.parametrize(
    ("trials", "devices", "sizes"),
    [(3, 8, (3, 3, 2)), (2, 8, (4, 4)), (1, 8, (8,)), (8, 8, (1,) * 8), (20, 4, (1,) * 4)],
)
def test_devices_are_shared_evenly(trials: int, devices: int, sizes: tuple[int, ...]) -> None:
    assert even_teams(trials, devices, LINEAR) == sizes


def test_no_team_has_devices_that_do_not_make_it_faster() -> None:
    assert even_teams(2, 8, FLAT) == (2, 2)


def test_no_team_is_larger_than_allowed() -> None:
    assert even_teams(2, 8, Scaling("ddp", LINEAR.rates, most=3)) == (3, 3)


def test_teams_replace_workers_if_the_end_comes_clearly_sooner() -> None:
    assert better_teams([10.0] * 3, [1] * 8, 8, LINEAR, 0.0) == (3, 3, 2)
    assert better_teams([10.0] * 3, [1] * 8, 8, LINEAR, 4.5) == (3, 3, 2)
    assert better_teams([10.0] * 3, [1] * 8, 8, LINEAR, 4.6) == (), "9.6 seconds are not clearly less than 10"
    slow = Scaling("ddp", LINEAR.rates, 4.6)
    assert better_teams([10.0] * 3, [1] * 8, 8, slow, 0.0) == ()


def test_workers_stay_without_a_reason_to_change() -> None:
    assert better_teams([10.0] * 8, [1] * 8, 8, LINEAR, 0.0) == ()
    assert better_teams([10.0] * 3, [3, 3, 2], 8, LINEAR, 0.0) == ()
    assert better_teams([0.0] * 3, [1] * 8, 8, LINEAR, 0.0) == ()


def test_the_longest_trial_decides() -> None:
    assert better_teams([30.0, 10.0, 1.0], [1] * 4, 4, LINEAR, 0.0) == (2, 1, 1)
    assert better_teams([10.0, 10.0, 1.0], [1] * 4, 4, LINEAR, 0.0) == ()


def test_teams_give_way_to_single_devices_when_trials_return() -> None:
    curbed = Scaling("ddp", Rates("curbed", (10.0, 12.0)))
    assert better_teams([10.0] * 8, [4, 4], 8, curbed, 0.0) == (1,) * 8


ON_NODES = Scaling("ddp", LINEAR.rates, nodes=(4, 2, 2))


@pytest.mark.parametrize(
    ("trials", "sizes"),
    [(1, (4, 2, 2)), (3, (4, 2, 2)), (4, (2, 2, 2, 2)), (6, (2, 1, 1, 2, 2)), (8, (1,) * 8), (20, (1,) * 8)],
)
def test_no_team_has_devices_of_two_nodes(trials: int, sizes: tuple[int, ...]) -> None:
    assert even_teams(trials, 8, ON_NODES) == tuple(sorted(sizes, reverse=True))


def test_nodes_that_have_come_or_gone_leave_one_device_each() -> None:
    assert even_teams(1, 6, ON_NODES) == (1,) * 6
    assert better_teams([10.0], [1] * 6, 6, ON_NODES, 0.0) == ()


def test_teams_within_nodes_are_as_fast_as_their_nodes_together() -> None:
    # Half of the rows at the speed of four devices, half at that of two: 8/3 times as fast as one device.
    assert better_teams([10.0], [1] * 8, 8, ON_NODES, 5.7) == (4, 2, 2)
    assert better_teams([10.0], [1] * 8, 8, ON_NODES, 5.8) == (), "9.55 seconds are not clearly less than 10"
    assert better_teams([10.0] * 3, [4, 2, 2], 8, ON_NODES, 0.0) == (), "they are there already"
