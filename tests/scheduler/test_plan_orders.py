"""Plans: what they cover, how they go on, and the orders that follow from them."""

from __future__ import annotations

import pytest

from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.dryrun import dry_run
from hopfleet.scheduler.plan import MOST_UNITS, Plan, by_start, rotation, strictly
from hopfleet.scheduler.shop_state import ShopState, initial_state


def in_order(shop: Shop) -> Timetable:
    """Trial after trial, each from the first worker to the last."""
    return Timetable.of_order(shop, _order(shop))


def backwards(shop: Shop) -> Timetable:
    return Timetable.of_order(shop, _order(shop)[::-1])


def _order(shop: Shop) -> list[int]:
    return sorted(range(len(shop.units)), key=lambda index: (shop.units[index].config, shop.units[index].worker))


def equal(trials: int, partitions: int, laps: int = 0) -> ShopState:
    return initial_state([[1.0] * partitions for _ in range(trials)], laps=laps)


@pytest.mark.parametrize(("trials", "workers"), [(1, 1), (3, 3), (2, 4), (3, 2), (5, 2)])
def test_in_a_rotation_nobody_waits_and_trials_move_by_one_and_not_between_epochs(trials, workers):
    state = equal(trials, workers, laps=2)
    plan = Plan(state, rotation())
    bound = 3.0 * max(trials, workers)
    assert max(plan.starts.values()) + 1.0 == bound
    for rule in (strictly(plan), by_start(plan)):
        assert dry_run(state, rule, laps=2).makespan == bound
    for number, units in enumerate(plan.trials if trials <= workers else []):
        first, second, third = ([j for _, epoch, j in units if epoch == lap] for lap in (1, 2, 3))
        assert first == [(number - step) % workers for step in range(workers)]  # always to the worker beside
        assert (second[0], third[0]) == (first[-1], second[-1])


def test_an_epoch_is_planned_from_the_expected_end_of_the_one_before():
    """Trial 0 needs 3 seconds, and trial 1 begins its second epoch on the worker that it leaves first."""
    plan = Plan(initial_state([[3.0, 1.0], [1.0, 1.0]], laps=1), in_order)
    assert plan.starts == {
        (0, 1, 0): 0.0, (0, 1, 1): 3.0, (1, 1, 0): 3.0, (1, 1, 1): 4.0,
        (0, 2, 0): 4.0, (0, 2, 1): 7.0, (1, 2, 0): 7.0, (1, 2, 1): 8.0,
    }  # fmt: skip
    assert plan.workers[1] == [(0, 1, 1), (1, 1, 1), (0, 2, 1), (1, 2, 1)]


def test_what_runs_is_waited_for():
    state = initial_state([[3.0, 1.0], [1.0, 1.0]])
    state.now = 5.0
    state.start(0, 0)
    state.now = 6.0
    plan = Plan(state, in_order)
    assert plan.starts == {(0, 1, 1): 8.0, (1, 1, 0): 8.0, (1, 1, 1): 9.0}


def test_a_plan_covers_every_idle_trial():
    state = equal(2, 2, laps=9)
    plan = Plan(equal(2, 2, laps=2), in_order)
    assert (plan.covers(state), plan.covers(state, 2), plan.covers(state, 3)) == (True, True, False)
    state.epoch = [3, 4]
    assert not plan.covers(state)
    state.idle_trials = {0}
    assert (plan.covers(state), plan.covers(state, 1)) == (True, False)
    state.laps = [0, 0]
    assert plan.covers(state, 1)


@pytest.mark.parametrize(
    ("trials", "partitions", "laps", "epochs"),
    [
        (10, 20, 9, 3),  # the current one, and two of 200 units
        (10, 21, 9, 2),
        (10, 50, 9, 2),  # at least one
        (10, 20, 1, 2),
        (10, 20, 0, 1),
    ],
)
def test_further_epochs_are_planned_up_to_a_number_of_units(trials, partitions, laps, epochs):
    state = equal(trials, partitions, laps)
    assert MOST_UNITS == 400
    plan = Plan(state, in_order)
    assert len(plan.starts) == trials * partitions * epochs
    assert plan.epoch == [epochs + 1] * trials
    plan.extend(state)
    assert plan.covers(state, min(epochs, laps))


def test_a_planner_must_plan_every_unit():
    with pytest.raises(ValueError, match="zip"):
        Plan(equal(2, 2), lambda shop: in_order(Shop.of_times([[1.0, 1.0]])))


def test_strictly_a_worker_waits_for_its_next_trial():
    """Worker 1 is to run trial 0 first, which is at worker 0 for 3 seconds."""
    state = initial_state([[3.0, 1.0], [1.0, 1.0]])
    plan = Plan(state, in_order)
    rule = strictly(plan)
    assert rule(state) == [(0, 0)]
    state.start(0, 0)
    assert rule(state) == []
    assert by_start(plan)(state) == [(1, 1)]
    assert dry_run(state, rule).makespan == 5.0
    assert dry_run(state, by_start(plan)).makespan == 4.0


def test_of_the_units_that_can_start_the_one_planned_first_does():
    state = equal(3, 2)
    plan = Plan(state, backwards)
    assert by_start(plan)(state) == [(2, 1), (1, 0)]


def test_a_strict_order_goes_on_in_the_next_epoch():
    """Units of epochs that have passed count as begun, those of epochs to come do not."""
    state = equal(2, 2, laps=1)
    rule = strictly(Plan(state, rotation()))
    seen = []
    for _ in range(4):
        starts = sorted(rule(state))
        seen.append(starts)
        for trial, worker in starts:
            state.start(trial, worker)
        for _, worker in starts:
            state.finish(worker)
    assert seen == [[(0, 0), (1, 1)], [(0, 1), (1, 0)], [(0, 1), (1, 0)], [(0, 0), (1, 1)]]
