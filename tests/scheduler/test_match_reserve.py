"""Match-reserve on small shops: where it reaches the bound, and whom it lets wait for whom."""

from __future__ import annotations

import random

import pytest

from hopfleet.scheduler.dryrun import dry_run
from hopfleet.scheduler.policies.match_reserve import MatchReserve, match_and_reserve
from hopfleet.scheduler.shop_state import ShopState, initial_state

ALL_BUSY = [(0, 3), (1, 2), (3, 0), (2, 1)]
"""Trials and workers."""


@pytest.mark.parametrize(
    ("times", "home", "laps", "noise", "started", "now", "bound"),
    [
        ([[9, 1, 3, 6], [6, 5, 8, 9], [1, 3, 6, 9], [3, 5, 5, 5]], None, 0, 0.1, ALL_BUSY, 1, 28),
        ([[2, 2, 8, 2], [1, 7, 6, 8], [8, 4, 8, 1]], None, 0, 0.0, [], 0, 22),
        ([[8, 4, 9, 8], [3, 6, 8, 2], [7, 1, 5, 1], [2, 9, 5, 1]], None, 1, 0.3, [], 0, 58),
        ([[5, 2, 5, 6, 6], [4, 8, 5, 5, 8], [4, 7, 5, 1, 3]], [0, 1, 1, 2, 3], 0, 0.3, [(1, 2), (0, 3), (2, 1)], 0, 32),
        ([[8, 9, 8], [7, 8, 5], [7, 4, 3]], None, 1, 0.0, [(1, 2), (2, 0)], 0, 50),
        ([[2, 6, 3, 2], [4, 3, 8, 3], [3, 6, 7, 1], [3, 6, 1, 3]], None, 1, 0.1, [], 0, 42),
        ([[5, 5, 7, 7, 9], [8, 2, 4, 7, 4], [1, 4, 4, 4, 7]], [0, 1, 2, 2, 3], 1, 0.0, [(2, 2), (0, 0)], 0, 66),
        ([[3, 4, 1], [8, 3, 8], [5, 4, 5], [5, 8, 1]], None, 0, 0.1, [(0, 0), (1, 1)], 1, 20),
        ([[9, 2, 8, 6, 7], [3, 1, 2, 8, 1], [7, 3, 3, 3, 9]], [0, 1, 2, 2, 3], 0, 0.0, [(1, 2), (0, 3)], 2, 30),
        ([[6, 1], [8, 7], [7, 7], [6, 8]], None, 1, 0.2, [], 0, 54),
        ([[7, 8, 2, 9, 7], [7, 1, 5, 1, 5]], [0, 1, 2, 2, 3], 1, 0.2, [(0, 0)], 1, 65),
    ],
)  # fmt: skip
def test_it_ends_with_the_busiest_trial_or_worker(times, home, laps, noise, started, now, bound):
    """No schedule of these shops ends earlier."""
    state = initial_state([[float(seconds) for seconds in row] for row in times], home=home, laps=laps)
    state.noise = noise
    for start in started:
        state.start(*start)
    state.now = float(now)
    outcome = dry_run(state, match_and_reserve, laps=laps)
    assert (outcome.makespan, outcome.bound) == (bound, bound)


@pytest.mark.parametrize(
    ("times", "todo", "noise", "running", "now", "starts"),
    [
        # Trial 0 and worker 1 are as critical as the bound allows: two rivals are not worth the wait of worker 1.
        ([[1, 3, 1], [3, 1, 2]], [[0, 1, 2], [0, 1]], 0.0, [(0, 2)], 0, [(1, 0)]),
        # Worker 1 is late with trial 1, and all that trial 0 needs then is there.
        ([[1, 3], [1, 1]], [[0, 1], [1]], 0.0, [(1, 1)], 1, []),
        # Trial 1 comes from worker 0 in 6 seconds, the last moment at which it is worth the wait.
        ([[6, 5, 4, 2], [6, 1, 3, 3], [1, 5, 2, 1]], [[0, 1], [0, 1, 2, 3], [0, 2]], 0.0, [(1, 0)], 0, [(0, 1)]),
        # Trial 2 waits for trial 3, which is just critical.
        (
            [[3, 2, 2, 1], [4, 2, 1, 5], [2, 4, 4, 4], [6, 6, 5, 1]],
            [[0], [0, 1, 2], [2], [0, 2, 3]], 0.15, [(3, 3), (0, 0), (1, 1)], 0, [],
        ),
    ],
)  # fmt: skip
def test_who_is_just_critical_is_waited_for(times, todo, noise, running, now, starts):
    state = initial_state([[float(seconds) for seconds in row] for row in times])
    state.noise, state.todo = noise, [{worker: [worker] for worker in workers} for workers in todo]
    state.sum_up()
    for start in running:
        state.start(*start)
    state.now = float(now)
    assert sorted(match_and_reserve(state)) == starts


def test_without_an_idle_trial_or_worker_nothing_starts():
    state = initial_state([[1.0]])
    state.start(0, 0)
    assert list(match_and_reserve(state)) == []
    nobody = ShopState(0.0, [0], [0.0], [0.0], wanted=[set()], idle_workers={0})
    assert list(match_and_reserve(nobody)) == []


def test_the_policy_follows_the_rule():
    state = initial_state([[2.0, 1.0], [1.0, 2.0]])
    assert MatchReserve()._choose(state, random.Random(0)) == match_and_reserve(state) != []
