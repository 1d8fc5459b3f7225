"""Dry runs of rules and rehearsals of policies: makespans and bounds known by hand."""

from __future__ import annotations

import math
import statistics

import pytest

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.dryrun import Outcome, dry_run, later, lognormal, rehearse
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import initial_state
from tests.helpers.schedule_desk import trial


def first(state):
    """The first trial that an idle worker can take."""
    for worker in sorted(state.idle_workers):
        for number in sorted(state.able(worker)):
            return [(number, worker)]
    return []


def greedily(state):
    starts = {}
    for worker in sorted(state.idle_workers):
        for number in sorted(state.able(worker)):
            if number not in starts:
                starts[number] = worker
                break
    return list(starts.items())


# ------------------------------------------------------------------------------------------------ makespans


@pytest.mark.parametrize(
    ("times", "makespan", "bound"),
    [
        ([[0.25]], 0.25, 0.25),
        ([[1.0, 2.0]], 3.0, 3.0),  # a trial's own units
        ([[1.0], [2.0], [4.0]], 7.0, 7.0),  # a worker's
        ([[2.0, 1.0], [1.0, 2.0]], 3.0, 3.0),
        ([[1.0, 1.0], [1.0, 1.0], [3.0, 3.0]], 8.0, 6.0),  # trial 2 waits for the others
    ],
)
def test_makespans_and_bounds(times, makespan, bound):
    outcome = dry_run(initial_state(times), greedily)
    assert (outcome.makespan, outcome.bound) == (makespan, bound)


def test_one_epoch_is_run_unless_told():
    state = initial_state([[1.0, 1.0]], laps=3)
    assert [dry_run(state, greedily).makespan, dry_run(state, greedily, laps=2).makespan] == [2.0, 6.0]


def test_units_take_longer_by_a_factor():
    state = initial_state([[1.0, 2.0]], laps=1)
    outcome = dry_run(state, greedily, laps=1, factor=lambda number, partition, epoch: 10.0**epoch * (1 + partition))
    assert outcome.makespan == outcome.bound == 10 + 40 + 100 + 400


def test_what_runs_ends_as_expected_and_counts_from_now():
    state = initial_state([[4.0, 1.0], [2.0, 3.0]])
    state.now = 100.0
    state.start(0, 0)
    state.now = 101.0
    outcome = dry_run(state, greedily)
    # Trial 0 until 103, then at worker 1 until 104 (trial 1 was there); trial 1 at worker 0 until 106.
    assert (outcome.makespan, outcome.bound) == (5.0, 5.0)
    state.now = 102.0  # nothing has happened
    assert dry_run(state, greedily, factor=lambda *_: 0.5).makespan == pytest.approx(3.0)


@pytest.mark.parametrize(("busy", "bound"), [("trial", 7.0), ("worker", 6.0)])
def test_the_bound_counts_what_runs_of_the_trial_and_of_the_worker(busy, bound):
    """A trial that runs 2 seconds more has 5 left; a worker that does so has 4 left."""
    state = initial_state([[4.0, 5.0], [4.0, 1.0]] if busy == "trial" else [[4.0, 1.0], [4.0, 1.0]])
    state.now = 10.0
    state.start(0, 0)
    state.now = 12.0
    assert dry_run(state, greedily).bound == bound


def test_who_is_late_is_free_now():
    state = initial_state([[1.0, 1.0]])
    state.now = 5.0
    state.start(0, 0)
    state.now = 9.0  # it was to end at 6
    outcome = dry_run(state, greedily)
    assert (outcome.makespan, outcome.bound) == (1.0, 1.0)


def test_without_work_the_ratio_is_1():
    assert Outcome(0.0, 0.0).ratio == 1.0
    assert Outcome(3.0, 2.0).ratio == 1.5
    assert dry_run(initial_state([[0.0]]), greedily).ratio == 1.0


def test_a_rule_is_asked_only_while_a_trial_and_a_worker_are_idle():
    asked = []

    def rule(state):
        asked.append((len(state.idle_trials), len(state.idle_workers)))
        return greedily(state)

    dry_run(initial_state([[1.0, 2.0], [2.0, 2.0], [1.0, 1.0]]), rule)
    assert asked and all(trials and workers for trials, workers in asked)


@pytest.mark.parametrize(("apart", "moments"), [(0.0, 2), (0.5e-6, 2), (1.5e-6, 3)])
def test_ends_that_differ_by_rounding_only_are_one_event(apart, moments):
    asked = []

    def rule(state):
        asked.append(state.now)
        return greedily(state)

    dry_run(initial_state([[1.0, 9.0, 9.0], [9.0, 1.0 + apart, 9.0], [9.0, 9.0, 5.0]]), rule, factor=lambda *_: 1.0)
    assert len([now for now in asked if now < 2.0]) == moments


def test_units_without_a_duration_end_at_the_time_0():
    asked = []

    def rule(state):
        asked.append(state.now)
        assert len(asked) < 9
        return first(state)

    assert dry_run(initial_state([[0.0, 0.0], [0.0, 0.0]]), rule).makespan == 0.0


# ---------------------------------------------------------------------------------------------------- later


@pytest.mark.parametrize(
    ("ends", "now", "units"),
    [(0, 0.0, 6), (1, 1.0, 5), (2, 2.0, 4), (3, 3.0, 3), (5, 5.0, 1), (9, 7.0, 0)],
)
def test_the_state_after_some_ends(ends, now, units):
    """One trial, whose units take 1 second: what follows an end has started."""
    state = initial_state([[1.0] * 7])
    found = later(state, first, laps=0, ends=ends)
    assert (found.now, found.units) == (now, units)
    assert (state.now, state.units) == (0.0, 7)


def test_ends_at_the_same_time_come_together():
    state = initial_state([[1.0, 1.0], [1.0, 1.0]], laps=1)
    assert [later(state, greedily, laps=1, ends=ends).now for ends in (1, 2, 3, 4, 5)] == [1.0, 1.0, 2.0, 2.0, 3.0]


# ---------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_factors_have_mean_1_and_the_deviation_that_is_asked_for(sigma):
    factor = lognormal(sigma, 3)
    found = [factor(*unit) for unit in ((i, j, epoch) for i in range(20) for j in range(20) for epoch in range(1, 11))]
    assert statistics.fmean(found) == pytest.approx(1.0, abs=0.03)
    assert statistics.stdev(map(math.log, found)) == pytest.approx(sigma, rel=0.05)
    again = lognormal(sigma, 3)
    assert found[:9] == [again(0, 0, epoch) for epoch in range(1, 10)]
    assert len(set(found)) > 0.5 * len(found)
    assert lognormal(sigma, 4)(0, 0, 1) != found[0]


# --------------------------------------------------------------------------------------------- rehearsals


def schedule_of(*workers, seconds=(1.0,), epochs=(1,), partitions=2):
    prior = Estimates([1] * partitions, lambda number, worker, partition: seconds[number - 1])
    schedule = Schedule(partitions, 1, prior)
    for number, readable in enumerate(workers, 1):
        schedule.join(f"w{number}", readable)
    for number, count in enumerate(epochs, 1):
        schedule.add(trial(number, count))
    return schedule


def test_a_retired_worker_takes_no_unit():
    schedule = schedule_of(None, None, seconds=(1.0, 1.0), epochs=(1, 1))
    assert rehearse(schedule, longest_remaining, laps=0) == 2.0
    schedule.retire("w2")
    assert rehearse(schedule, longest_remaining, laps=0) == 4.0


@pytest.mark.parametrize(("laps", "expected"), [(9, 10.0), (3, 10.0), (1, 6.0), (0, 4.0)])
def test_all_trials_lose_the_same_number_of_epochs(laps, expected):
    """Four epochs and one, two units each, on one worker; each trains its current epoch at least."""
    assert rehearse(schedule_of(None, seconds=(1.0, 1.0), epochs=(4, 1)), longest_remaining, laps=laps) == expected


def test_epochs_follow_each_other_where_a_unit_is_one():
    assert rehearse(schedule_of(None, epochs=(3,), partitions=1), longest_remaining, laps=9) == 3.0


def test_what_a_policy_sees_in_a_rehearsal():
    schedule = schedule_of(None, None, seconds=(1.0, 1.0, 2.0), epochs=(1, 2, 1))
    schedule.join("w3", None)
    schedule.leave("w3")
    schedule.start("w2", Unit("t1", 1, 0), 1)
    schedule.now = 7.0
    schedule.finish("w2", Unit("t1", 1, 0), 1.0, {})
    seen = []

    def policy(copy, rng):
        assert copy.layouts == schedule.layouts
        assert all(progress.units_left for progress in copy.trials.values())
        seen.append((copy.now, {name: progress.holder for name, progress in copy.trials.items()}))
        return longest_remaining(copy, rng)

    rehearse(schedule, policy, laps=1)
    assert seen[0] == (7.0, {"t1": "w2", "t2": None, "t3": None})
    assert schedule.trials["t2"].units_left == 4


@pytest.mark.parametrize(("apart", "moments"), [(0.5e-6, 2), (1.5e-6, 3)])
def test_ends_that_differ_by_rounding_only_are_one_event_in_a_rehearsal(apart, moments):
    schedule = schedule_of(None, None, None, seconds=(1.0, 1.0 + apart, 5.0), epochs=(1, 1, 1))
    asked = []

    def policy(copy, rng):
        asked.append(copy.now)
        return longest_remaining(copy, rng)

    rehearse(schedule, policy, laps=0)
    assert len({now for now in asked if now < 1.5}) == moments


def test_units_that_run_end_in_the_order_of_their_times():
    """The first worker is busy for longer than the second."""
    state = initial_state([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0]])
    state.start(0, 0)
    state.start(1, 1)
    seen = []
    dry_run(state, lambda shop: seen.append(shop.now) or greedily(shop))
    assert seen[0] == 1.0


def test_a_rule_that_waits_for_nothing_never_ends():
    assert dry_run(initial_state([[1.0], [1.0]]), lambda shop: []).makespan == math.inf
    one = initial_state([[1.0], [1.0]])
    one.start(0, 0)
    # The first trial has ended, and the second never starts.
    assert dry_run(one, lambda shop: []).makespan == math.inf
    assert dry_run(one, greedily).makespan == 2.0


def test_a_policy_is_asked_in_a_rehearsal_while_some_worker_and_some_trial_wait():
    schedule = Schedule(2, 0, Estimates([1, 1], lambda number, worker, partition: 2.0))
    for worker in ("w1", "w2"):
        schedule.join(worker, None)
    for number in (1, 2, 3):
        schedule.add(trial(number, 1))

    def one_at_a_time(copy, rng):
        assert copy.idle and copy.ready
        return None if any(slot.units for slot in copy.slots.values()) else longest_remaining(copy, rng)

    assert rehearse(schedule, one_at_a_time, laps=0) == 12.0
    assert rehearse(schedule, lambda copy, rng: None, laps=0) == 12.0, "a unit starts where nothing is waited for"
    assert rehearse(schedule, longest_remaining, laps=0) == 6.0
