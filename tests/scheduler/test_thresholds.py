"""Limits of policies: how large, how noisy or how late something must be for another choice."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.dryrun import Outcome
from hopfleet.scheduler.policies import monte_carlo, replicated
from hopfleet.scheduler.policies import portfolio as portfolio_policy
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.fleet import fleet
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.policies.monte_carlo import MonteCarlo
from hopfleet.scheduler.policies.planned import Mode
from hopfleet.scheduler.policies.replicated import Replicated
from hopfleet.scheduler.shop_state import initial_state
from tests.helpers.schedule_desk import Desk

RNG = random.Random(0)


# ------------------------------------------------------------------------------------------------ replicated


class Rehearsals:
    """Rehearsals that take as long as the test says, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.seconds, self.count = seconds, 0
        monkeypatch.setattr(replicated, "rehearse", self)
        monkeypatch.setattr(Balanced, "__call__", lambda *_: None)

    def __call__(self, schedule: Any, policy: Any, *, laps: int) -> float:
        self.count += 1
        return self.seconds[(self.count - 1) % len(self.seconds)]


@pytest.mark.parametrize(("trials", "asked"), [(150, True), (151, False)])
def test_rehearsals_of_up_to_600_units(monkeypatch, trials, asked):
    """Two partitions, in the current epoch and in the next."""
    rehearsals = Rehearsals(monkeypatch, 1.0)
    Replicated()(Desk((0,), None, trials=trials).schedule, RNG)
    assert bool(rehearsals.count) is asked


@pytest.mark.parametrize(("noise", "seconds", "longest"), [(0.02, 2.99, True), (0.03, 2.99, False), (0.2, 2.9, True)])
def test_what_a_rehearsal_must_gain(monkeypatch, noise, seconds, longest):
    """Anything where units take as long as expected, a percent otherwise."""
    Rehearsals(monkeypatch, 3.0, 3.0, seconds)
    desk, policy = Desk((0,), None, trials=2), Replicated()
    desk.schedule.estimates._squares = noise**2, 1
    if noise == 0.2:  # a square that is exact
        monkeypatch.setattr(type(desk.schedule.estimates), "noise", 0.2)
    policy(desk.schedule, RNG)
    assert (policy._chosen is longest_remaining) is longest


def test_a_new_balance_replaces_the_old_one(monkeypatch):
    Rehearsals(monkeypatch, 3.0, 2.0, 3.0)
    desk, policy = Desk((0,), None, trials=2), Replicated()
    before = policy._balanced
    policy(desk.schedule, RNG)
    assert policy._balanced is policy._chosen is not before
    Rehearsals(monkeypatch, 3.0, 3.0, 2.0)
    kept = policy._balanced
    desk.schedule.layouts += 1
    policy(desk.schedule, RNG)
    assert (policy._balanced, policy._chosen) == (kept, longest_remaining)


def test_the_choice_is_made_again_after_more_than_a_fifth_of_the_units(monkeypatch):
    rehearsals = Rehearsals(monkeypatch, 1.0)
    desk, policy = Desk((0,), None, trials=5, epochs=2), Replicated()
    policy(desk.schedule, RNG)
    counted = []
    for owed in ([8, 8], [8, 7], [8, 5], [8, 4], [8, 4]):
        desk.schedule.owed[:] = owed
        policy(desk.schedule, RNG)
        counted.append(rehearsals.count // 3)
    assert counted == [1, 2, 2, 2, 2]


def test_nothing_owed_at_first_is_no_reason_to_choose_twice(monkeypatch):
    rehearsals = Rehearsals(monkeypatch, 1.0)
    desk, policy = Desk((0,), None, trials=0), Replicated()
    assert policy._units == 0
    for _ in range(2):
        policy(desk.schedule, RNG)
    assert rehearsals.count == 3


# ---------------------------------------------------------------------------------------------------- fleet


def timed(desk: Desk, *seconds: float) -> None:
    for number, value in enumerate(seconds, 1):
        desk[f"t{number}"].seconds, desk[f"t{number}"].measured = value, 1


@pytest.mark.parametrize(
    ("seconds", "together"),
    [
        ((4, 3, 3, 2), ("t4",)),  # 6 seconds are its share
        ((5, 4, 2, 1), ("t4",)),  # t4 fits, and no half of another
        ((4, 4, 4), ("t3",)),  # half of a third one fits exactly
        ((4, 4.5, 4.5), ("t1",)),
        ((5, 4, 4), ()),  # a third of it would
    ],
)
def test_the_smallest_that_does_not_fit_goes_with_the_group_if_half_of_it_does(seconds, together):
    desk = Desk(None, None, trials=len(seconds), epochs=30)
    timed(desk, *seconds)
    found = fleet(desk.schedule, RNG)
    assert found is not None and tuple(found.together) == together


def test_rows_that_most_trials_owe_come_first():
    desk = Desk((0, 1, 2), (), partitions=3, valid=0, trials=4, epochs=9)
    for name in ("t1", "t2"):
        desk.train("w1", name, 0)
    desk.train("w1", "t1", 1)
    desk.schedule.slots["w1"].warm = None
    found = fleet(desk.schedule, RNG)
    assert found is not None and found.unit.partition == 1


def test_who_would_end_last_leads_its_group():
    """It has fewer seconds a unit than the others, but many more units."""
    desk = Desk(None, None, partitions=2, valid=0, trials=3, epochs=3)
    timed(desk, 5, 5, 4)
    desk.schedule.resume("t3", 9)
    found = fleet(desk.schedule, RNG)
    assert found is not None and (found.unit.trial, tuple(found.together)) == ("t3", ("t2",))
    timed(desk, 5, 5, 1)
    found = fleet(desk.schedule, RNG)
    assert found is not None and found.unit.trial == "t1"


def test_only_units_of_the_same_epoch_read_the_same_rows():
    """w2 evaluates on partition 0, or trains on it in another epoch: w1 may still prepare it."""
    desk = Desk(None, None, partitions=2, trials=3, epochs=9)
    desk.train("w2", "t3", 0, 1)
    desk.start("w2", "t3", 0, evaluate=True)
    timed(desk, 1, 1, 1)
    found = fleet(desk.schedule, RNG)
    assert found is not None and found.unit == Unit("t1", 1, 0)


# ---------------------------------------------------------------------------------------------- monte-carlo


@pytest.mark.parametrize(
    ("trials", "partitions", "rollouts"),
    [(1, 1, 16), (60, 10, 16), (64, 10, 15), (80, 10, 12), (900, 10, 2), (0, 1, 16)],
)
def test_fewer_rollouts_where_they_are_long(monkeypatch, trials, partitions, rollouts):
    ran = []
    monkeypatch.setattr(monte_carlo, "dry_run", lambda *_, **how: ran.append(how) or Outcome(1.0, 1.0))
    state = initial_state([[1.0] * partitions for _ in range(max(trials, 1))])
    if not trials:
        state.idle_trials = set()
    MonteCarlo()._choose(state, random.Random(0))
    assert len(ran) == rollouts


def test_the_first_of_the_best_rollouts_is_followed(monkeypatch):
    """Of equal ones the first; a rollout that takes longer is not."""
    ratios = iter([3.0, 2.0, 2.0, *[4.0] * 13])

    def dry_run(state, rollout, *, factor):
        starts = rollout(state)
        seen.append(list(starts))
        return Outcome(next(ratios), 1.0)

    seen: list[Any] = []
    monkeypatch.setattr(monte_carlo, "dry_run", dry_run)
    state = initial_state([[1.0, 1.0, 1.0] for _ in range(3)])
    found = MonteCarlo()._choose(state, random.Random(1))
    assert sorted(found) == sorted(seen[1]) != sorted(seen[2])


def test_the_longest_are_drawn_almost_always():
    """A trial with twice the work left is some hundred times as likely."""
    state = initial_state([[4.0], [1.0]])
    state.worker_left = [0.0]
    drawn = [monte_carlo._randomly(random.Random(seed), [])(state)[0][0] for seed in range(400)]
    assert 0 <= drawn.count(1) <= 2
    state = initial_state([[1e-3], [1.5e-3]])
    state.worker_left = [0.0]
    drawn = [monte_carlo._randomly(random.Random(seed), [])(state)[0][0] for seed in range(400)]
    assert drawn.count(0) == pytest.approx(400 / (1 + math.pow(1.5, 8)), abs=6)


def test_a_trial_or_a_worker_starts_once(monkeypatch):
    """A unit without a duration ends at once in a rollout, and its worker or its trial starts again."""

    def drawn(rng, first):
        first.extend([(0, 0), (0, 1), (1, 0)])
        return lambda state: []

    monkeypatch.setattr(monte_carlo, "_randomly", drawn)
    state = initial_state([[1.0, 1.0], [1.0, 1.0]])
    assert MonteCarlo()._choose(state, random.Random(0)) == [(0, 0)]


def test_units_that_take_no_time_are_drawn_too():
    state = initial_state([[0.0], [0.0]])
    drawn = {monte_carlo._randomly(random.Random(seed), [])(state)[0][0] for seed in range(20)}
    assert drawn == {0, 1}


def test_work_of_a_trial_and_of_its_worker_add_up():
    """Ten seconds on either side are more than eleven on one."""
    state = initial_state([[1.0, 1.0], [1.0, 1.0]])
    state.trial_left, state.worker_left = [10.0, 1.0], [10.0, 0.0]
    drawn = [monte_carlo._randomly(random.Random(seed), [])(state)[0] for seed in range(100)]
    assert drawn.count((0, 0)) > 90


# ------------------------------------------------------------------------------------------------ portfolio


@pytest.mark.parametrize(
    ("units", "seconds", "calls"),
    [
        # The first plan, and a later one: by the solver where the run takes a hundred times as long, else by effort.
        (10, 85.0, [{"effort": 30_000, "seconds": 0.85}, {"effort": 20_000}]),
        (10, 84.0, [{"effort": 60_000}, {"effort": 20_000}]),
        (2, 84.0, [{"effort": 12_000}, {"effort": 12_000}]),
        (500, 84.0, [{"effort": 300_000}, {"effort": 20_000}]),
        (501, 84.0, [{"effort": 20_000}, {"effort": 20_000}]),
    ],
)
def test_the_first_plan_may_take_longer(monkeypatch, units, seconds, calls):
    asked = []
    for name in ("best", "plan"):
        monkeypatch.setattr(portfolio_policy.portfolio, name, lambda shop, rng, **how: asked.append(how))
    monkeypatch.setattr(portfolio_policy, "for_solver", lambda units: True)
    monkeypatch.setattr(portfolio_policy, "lower_bound", lambda shop: seconds)
    planner, shop = portfolio_policy.ByPortfolio(), SimpleNamespace(units=range(units))
    for _ in range(2):
        planner(shop, RNG)
    assert asked == calls


def test_the_portfolio_is_a_planner_like_others():
    policy = portfolio_policy.Portfolio(Mode.PRIORITY)
    assert isinstance(policy._planner, portfolio_policy.ByPortfolio) and policy._mode is Mode.PRIORITY
