"""The state of the shop: what starts and ends change, copies, and what counts as the same moment."""

from __future__ import annotations

import pytest

from hopfleet.scheduler.shop_state import TICK, ShopState, initial_state

NOW = 1_794_748_425.0
"""A time of day."""


@pytest.mark.parametrize(
    ("now", "ends", "more"),
    [
        (NOW, NOW + 0.35, False),
        (NOW, NOW + 0.003, False),
        (NOW, NOW, True),
        (NOW, NOW + 5e-7, True),
        (0.3, 0.1 + 0.2, True),
        (0.0, 0.0, True),
        (0.0, TICK, True),
    ],
)
def test_a_unit_that_ends_soon_does_not_end_now(now, ends, more):
    state = ShopState(now, [0, 1], [now, ends], [0.0, 0.0])
    state.runs = {1: 0}
    assert state.expects_more is more


def test_evaluations_end_at_any_time():
    state = ShopState(1.0, [0, 1], [1.0, 1.0], [0.0, 0.0])
    state.runs = {1: -1}
    assert not state.expects_more


def test_an_initial_state_has_started_nothing():
    state = initial_state([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], home=[0, 0, 1], laps=2)
    assert (state.now, state.worker_free, state.trial_free, state.runs) == (0.0, [0.0, 0.0], [0.0, 0.0], {})
    assert (state.epoch, state.laps, state.units) == ([1, 1], [2, 2], 18)
    assert (state.trial_left, state.worker_left) == ([18.0, 45.0], [36.0, 27.0])
    assert (state.idle_trials, state.idle_workers, state.wanted) == ({0, 1}, {0, 1}, [{0, 1}, {0, 1}])
    assert state.todo == [{0: [0, 1], 1: [2]}] * 2


def test_a_unit_starts_and_ends():
    state = initial_state([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], home=[0, 0, 1], laps=1)
    state.now = 10.0
    assert state.start(0, 0) == 1  # the longer of two
    assert (state.todo[0], state.wanted, state.units) == ({0: [0], 1: [2]}, [{0, 1}, {0, 1}], 11)
    assert (state.trial_left, state.worker_left) == ([10.0, 30.0], [22.0, 18.0])
    assert (state.trial_free, state.worker_free, state.runs) == ([12.0, 0.0], [12.0, 0.0], {0: 0})
    assert (state.idle_trials, state.idle_workers) == ({1}, {1})
    state.now = 13.0
    state.finish(0)
    assert (state.trial_free, state.worker_free, state.runs) == ([13.0, 0.0], [13.0, 0.0], {})
    assert (state.epoch, state.laps, state.todo[0]) == ([1, 1], [1, 1], {0: [0], 1: [2]})
    assert (state.idle_trials, state.idle_workers) == ({0, 1}, {0, 1})


def test_a_trial_enters_the_next_epoch_and_ends_after_the_last():
    state = initial_state([[1.0, 2.0]], laps=1)
    seen = []
    for worker in (0, 1, 1, 0):
        state.start(0, worker)
        state.finish(worker)
        seen.append((state.epoch[0], state.laps[0], sorted(state.todo[0]), [*map(len, state.wanted)], state.units))
    assert seen == [(1, 1, [1], [0, 1], 3), (2, 0, [0, 1], [1, 1], 2), (2, 0, [0], [1, 0], 1), (2, 0, [], [0, 0], 0)]
    assert (state.trial_left, state.worker_left, state.idle_trials) == ([0.0], [0.0, 0.0], set())


def test_the_end_of_an_evaluation_frees_the_worker_alone():
    state = initial_state([[1.0, 2.0]])
    state.runs, state.idle_workers, state.idle_trials, state.now = {1: -1}, {0}, set(), 3.0
    state.finish(1)
    assert (state.worker_free, state.trial_free) == ([0.0, 3.0], [0.0])
    assert (state.idle_workers, state.idle_trials) == ({0, 1}, set())


def test_a_fixed_order_holds_for_one_unit():
    state = initial_state([[1.0, 2.0, 3.0]], home=[0, 0, 1])
    state.forced = {0: 0}
    assert (state.meets(0, 0), state.meets(0, 1), state.plannable) == (True, False, False)
    assert (state.able(0), state.able(1)) == ({0}, set())
    assert state.start(0, 0) == 0
    assert (state.forced, state.plannable) == ({}, True)
    assert state.meets(0, 1)


def test_a_partition_on_no_worker_cannot_be_planned():
    assert not ShopState(0.0, [0, -1], [0.0], [0.0]).plannable


def test_a_copy_has_the_same_work_and_no_fixed_order():
    state = initial_state([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], laps=3)
    state.now, state.noise, state.forced = 7.0, 0.25, {1: 1}
    state.laps[1] = 2
    state.sum_up()
    state.start(0, 0)
    state.todo[2] = {}
    copy = state.copy(9)
    assert (copy.now, copy.noise, copy.forced, copy.laps) == (7.0, 0.25, {}, [3, 2, 3])
    assert (copy.idle_trials, copy.idle_workers, copy.runs) == ({1}, {1}, {0: 0})
    assert (copy.worker_free, copy.trial_free) == ([8.0, 0.0], [8.0, 0.0, 0.0])
    assert (copy.trial_left, copy.worker_left, copy.units) == ([11.0, 21.0, 33.0], [27.0, 38.0], 19)
    copy.now = 8.0
    copy.finish(0)
    copy.start(1, 1)
    assert (state.runs, state.todo[1], state.worker_free) == ({0: 0}, {0: [0], 1: [1]}, [8.0, 0.0])
    assert (state.idle_trials, state.idle_workers, state.epoch) == ({1, 2}, {1}, [1, 1, 1])


@pytest.mark.parametrize(
    ("most", "laps"), [(5, [4, 1, 0]), (4, [4, 1, 0]), (3, [3, 0, 0]), (1, [1, 0, 0]), (0, [0, 0, 0])]
)
def test_all_trials_of_a_copy_lose_the_same_number_of_epochs(most, laps):
    state = initial_state([[1.0], [1.0], [1.0]])
    state.laps = [4, 1, 0]
    assert state.copy(most).laps == laps


def test_a_state_without_trials_is_copied():
    assert ShopState(0.0, [0], [0.0], [0.0]).copy(0).units == 0


def test_a_worker_can_take_idle_trials_that_still_want_it():
    state = initial_state([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    assert state.laps == [0, 0, 0]
    state.start(0, 0)
    assert state.able(1) == {1, 2} and state.able(0) == {1, 2}
    state.now = 1.0
    state.finish(0)
    assert state.able(1) == {0, 1, 2} and state.able(0) == {1, 2}


def test_a_copy_has_epochs_of_its_own():
    state = initial_state([[1.0], [1.0]], laps=1)
    copy = state.copy(1)
    assert copy.epoch == [1, 1]
    copy.start(0, 0)
    copy.now = 1.0
    copy.finish(0)
    assert copy.epoch == [2, 1] and state.epoch == [1, 1]
