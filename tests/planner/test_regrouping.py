"""Whether some workers make room for teams."""

from __future__ import annotations

import pytest

from hopfleet.planner.rates import Rates
from hopfleet.planner.regrouping import BusyWorker, Change, Job, better_division, starts, teams_for
from hopfleet.planner.teams import Scaling
from hopfleet.planner.unequal import STYLES

LINEAR = Scaling("ddp", Rates("linear", (10.0, 20.0)))
USUAL = Scaling("ddp", Rates("usual", (10.0, 17.0)))


def jobs(*units: int, seconds: float = 1.0) -> list[Job]:
    return [Job(seconds, count, 0.0) for count in units]


def idle(*sizes: int) -> list[BusyWorker]:
    return [BusyWorker(size, 0.0) for size in sizes]


def changed(
    work: list[Job], workers: list[BusyWorker], scaling: Scaling = USUAL, spare: int = 0
) -> tuple[object, object]:
    found = better_division(work, workers, spare, scaling, 0.0)
    return (None, None) if found is None else (found.leave, found.form)


def test_idle_devices_join_and_the_others_stay() -> None:
    assert changed(jobs(20, 40), idle(1, 1, 1)) == ((1, 2), (2,))
    assert changed(jobs(20), idle(1, 1, 1)) == ((0, 1, 2), (3,))
    assert changed(jobs(20, 20), idle(1, 1)) == (None, None), "each has what it needs"


def test_a_team_forms_while_trials_outnumber_devices() -> None:
    assert changed(jobs(90, *[20] * 6), idle(1, 1, 1, 1)) == ((2, 3), (2,))
    assert changed(jobs(100, *[30] * 6), idle(1, 1, 1, 1)) == (None, None), "soon enough when others have ended"


def test_a_team_dissolves_when_more_trials_come() -> None:
    curbed = Scaling("ddp", Rates("curbed", (10.0, 12.0)))
    assert changed(jobs(*[10] * 8), idle(2, 2), curbed) == ((0, 1), (1, 1, 1, 1))


def test_workers_that_end_the_latest_stay() -> None:
    workers = [BusyWorker(1, 0.5), BusyWorker(1, 0.0), BusyWorker(1, 0.2)]
    assert changed(jobs(20, 40), workers) == ((1, 2), (2,))


def test_devices_of_no_worker_join() -> None:
    assert changed(jobs(20), idle(1), spare=1) == ((0,), (2,))


def test_nothing_changes_for_less_than_it_costs() -> None:
    slow = Scaling("ddp", USUAL.rates, form_seconds=20.0)
    assert changed(jobs(20), idle(1, 1), slow) == (None, None)
    assert changed(jobs(60), idle(1, 1), slow) == ((0, 1), (2,))
    assert changed(jobs(0), idle(1, 1)) == (None, None)


def test_a_change_that_is_better_later_waits() -> None:
    """Three devices for both trials one after another would end sooner than to stay for ever, but not than to wait."""
    curbed = Scaling("ddp", Rates("curbed", (10.0, 15.426)))
    work = [Job(5.2, 7, 1.1), Job(23.4, 13, 0.0)]
    assert better_division(work, [BusyWorker(1, 1.1), BusyWorker(2, 0.0)], 0, curbed, 0.0) is None


def test_a_whole_change_keeps_no_worker() -> None:
    assert better_division(jobs(20, 40), idle(1, 1, 1), 0, USUAL, 0.0, whole=True) == Change(
        (0, 1, 2), (2, 1), STYLES[0]
    )


def test_a_long_trial_waits_for_its_team() -> None:
    members = [BusyWorker(1, 0.0), BusyWorker(3, 0.5)]
    assert starts(jobs(4, 2, seconds=10.0), members, {0}, LINEAR, 0.0, STYLES[0]) == [(1, 0)]


@pytest.mark.parametrize(
    ("work", "kept", "room", "teams"),
    [([10.0], [], 4, (4,)), ([10.0, 20.0], [1], 2, (2,)), ([10.0, 10.0, 10.0], [2], 2, (1, 1)), ([1.0], [4], 1, (1,))],
)
def test_teams_fit_to_those_that_stay(work: list[float], kept: list[int], room: int, teams: tuple[int, ...]) -> None:
    assert teams_for(work, kept, room, USUAL) == teams


def test_devices_without_a_worker_become_teams() -> None:
    change = better_division(jobs(20, 40), [], 3, USUAL, 0.0)
    assert change is not None and change.leave == () and sum(change.form) == 3
