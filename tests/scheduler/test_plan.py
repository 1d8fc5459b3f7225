"""Plans and dispatch rules that may wait, and what keeps them from waiting for nothing."""

from __future__ import annotations

import math

from hopfleet.scheduler.dryrun import dry_run
from hopfleet.scheduler.plan import Plan, rotation, strictly
from hopfleet.scheduler.policies.match_reserve import match_and_reserve
from hopfleet.scheduler.shop_state import initial_state


def test_sums_that_are_off_by_rounding_overflow_nothing():
    """All that is left is on a partition that a worker is about to get."""
    state = initial_state([[1.0], [1.0]])
    state.todo, state.wanted, state.trial_left, state.worker_left = [{}, {}], [set()], [0.0, 0.0], [-2e-16]
    assert list(match_and_reserve(state)) == []


def test_a_rule_that_stalls_never_ends():
    state = initial_state([[1.0, 1.0], [1.0, 1.0]])
    assert dry_run(state, lambda state: ()).makespan == math.inf
    assert dry_run(state, match_and_reserve).makespan == 2.0


def test_a_plan_covers_a_trial_that_goes_on_after_a_pause():
    """It owed nothing when the plan was made, and the plan was never extended for the epoch that it then trained."""
    state = initial_state([[1.0, 1.0], [1.0, 1.0]], laps=1)
    state.todo[1], state.laps[1] = {}, 0
    state.idle_trials.discard(1)
    state.sum_up()
    plan = Plan(state, rotation())
    assert plan.trials[1] == [] and plan.covers(state)
    state.todo[1], state.laps[1] = {1: [1]}, 1  # the rest of an epoch, and one more
    state.idle_trials.add(1)
    state.sum_up()
    assert not plan.covers(state)
    plan.extend(state)
    assert plan.covers(state, 1) and sorted(plan.trials[1]) == [(1, 1, 1), (1, 2, 0), (1, 2, 1)]


def test_a_unit_of_a_later_epoch_is_not_started():
    state = initial_state([[1.0, 1.0]], laps=1)
    plan = Plan(state, rotation())
    rule = strictly(plan)
    plan.workers[0] = [(0, 2, 0)]
    plan.trials[0] = [(0, 2, 0), (0, 2, 1)]
    assert list(rule(state)) == []


def test_a_plan_begins_with_what_is_left_of_the_current_epochs():
    state = initial_state([[1.0, 1.0], [1.0, 1.0]])
    state.todo[1] = {}
    state.idle_trials.discard(1)
    state.sum_up()
    plan = Plan(state, rotation())
    assert plan.epoch == [2, 1]
    assert plan.starts == {(0, 1, 0): 0.0, (0, 1, 1): 1.0}
    assert plan.trials == [[(0, 1, 0), (0, 1, 1)], []]
