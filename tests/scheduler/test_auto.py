"""When the policy auto plans, keeps its plan, and plans again."""

from __future__ import annotations

import random

import pytest

from hopfleet.planner.costs import cnns, homogeneous
from hopfleet.planner.shop import Shop
from hopfleet.scheduler.plan import Plan, rotation
from hopfleet.scheduler.policies import portfolio as portfolio_policy
from hopfleet.scheduler.policies.auto import Auto
from hopfleet.scheduler.shop_state import initial_state
from tests.helpers.online_runs import decide, run, solved
from tests.helpers.schedule_desk import Desk, trial

pytestmark = pytest.mark.usefixtures("quick_solver")


class Spy(Auto):
    """Notes what was chosen, each time that it was."""

    def __init__(self):
        super().__init__()
        self.choices = []

    def _renew(self, state, rng, kept):
        super()._renew(state, rng, kept)
        self.choices.append(self.chosen.name)


def test_a_square_with_known_times_is_planned_and_kept():
    policy = Spy()
    assert run(policy, homogeneous(8, 8), epochs=3) == pytest.approx(1.0)
    assert len(policy.choices) == 1
    assert policy.choices[0].endswith("strictly")


def test_the_plan_is_carried_on():
    """More epochs than are planned at first, since the plan stops at a number of units."""
    policy = Spy()
    assert run(policy, homogeneous(5, 5), epochs=90) == pytest.approx(1.0)
    assert len(policy.choices) == 1


def test_noise_makes_it_choose_again():
    policy = Spy()
    run(policy, homogeneous(8, 8), epochs=4, noise=0.5)
    assert len(policy.choices) > 1
    assert not policy.choices[-1].endswith("strictly")


def test_a_plan_is_made_when_units_have_shown_that_estimates_are_exact():
    """Until then match-reserve begins, which loses nothing that the plan could not make good."""
    policy = Spy()
    assert run(policy, cnns(8, 4, random.Random(1))) == pytest.approx(1.0)
    assert policy.choices == ["match-reserve", "portfolio, strictly"]
    policy = Spy()
    run(policy, cnns(8, 4, random.Random(1)), noise=0.3)
    assert policy.choices == ["match-reserve", "match-reserve"]


def test_a_plan_is_made_at_once_where_match_reserve_would_spoil_it():
    """No later plan makes good what it begins."""
    state = initial_state([[5.0, 2.0, 1.0], [5.0, 7.0, 7.0], [9.0, 6.0, 3.0]])
    assert Auto()._choice(state, random.Random(0), None).name == "portfolio, strictly"


def test_a_plan_that_keeps_its_promise_is_kept():
    """And is carried on before it is compared: what it does not cover would seem to take no time."""
    state = initial_state(homogeneous(16, 16), laps=4)
    state.judged = 8
    policy = Auto()
    policy._known = True
    kept = policy._choice(state, random.Random(0), None)
    assert kept.plan is not None
    assert policy._choice(state, random.Random(0), kept) is kept
    assert kept.plan.covers(state, 1) and not kept.plan.covers(state, 2)
    state.epoch, state.laps, state.noise = [2] * 16, [3] * 16, 0.05
    policy._choice(state, random.Random(0), kept)
    assert kept.plan.covers(state, 1)


def test_an_epoch_whose_last_unit_runs_is_not_planned_again():
    state = initial_state(homogeneous(2, 2), laps=1)
    state.todo[0] = {}
    state.sum_up()
    ahead = Plan(state, rotation())
    assert [epoch for _, epoch, _ in ahead.trials[0]] == [2, 2]
    assert [epoch for _, epoch, _ in ahead.trials[1]] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("seconds", "size", "effort", "asked"),
    [
        (100.0, 3, None, True),
        (1.0, 3, None, False),  # the run is over before the solver is
        (100.0, 11, None, False),
        (100.0, 3, portfolio_policy.EFFORT, False),
    ],
)
def test_a_small_shop_of_long_units_is_first_planned_by_the_solver(monkeypatch, seconds, size, effort, asked):
    calls = []
    monkeypatch.setattr(portfolio_policy, "FIRST_EFFORT", portfolio_policy.EFFORT + 1)
    monkeypatch.setattr(portfolio_policy.exact, "installed", lambda: True)
    monkeypatch.setattr(portfolio_policy.portfolio, "best", lambda shop, rng, **how: calls.append(how) or solved(shop))
    planner = portfolio_policy.ByPortfolio(effort)
    shop = Shop.of_times([[seconds] * size] * size)
    planner(shop, random.Random(0))
    assert len(calls) == asked
    planner(shop, random.Random(0))
    assert len(calls) == asked


def test_many_trials_need_no_plan():
    policy = Spy()
    assert run(policy, homogeneous(150, 2)) == pytest.approx(1.0)
    assert policy.choices  # for the last few


def test_lost_workers_and_new_trials_make_it_plan_again():
    desk = Desk((0,), (1,), trials=2, epochs=2, valid=0)
    policy = Spy()
    decide(policy, desk)
    assert len(policy.choices) == 1
    decide(policy, desk)
    assert len(policy.choices) == 1
    desk.schedule.leave("w2")
    decide(policy, desk)
    assert len(policy.choices) == 1  # partition 1 is nowhere
    desk.schedule.join("w3", (1,))
    decide(policy, desk)
    assert len(policy.choices) == 2
    desk.schedule.add(trial(3, 2))
    decide(policy, desk)
    assert len(policy.choices) == 3
    desk.schedule.park("t3", desk["t3"].state.FAILED)
    decide(policy, desk)
    assert len(policy.choices) == 4


def test_very_many_trials_are_not_even_looked_at(monkeypatch):
    monkeypatch.setattr("hopfleet.scheduler.shop_view.ShopView.look", lambda *_: pytest.fail("looked"))
    desk = Desk((0,), (1,), trials=130, valid=0)
    assert decide(Auto(), desk) is not None


def test_the_first_plan_waits_for_workers_that_join():
    """w1 begins, w2 waits for w3 rather than spoil the plan; but not for longer than w1's first unit."""
    desk = Desk((0,), (1,), partitions=3, trials=3, valid=0)
    policy = Auto()
    first = decide(policy, desk)
    desk.start(first.worker, first.unit.trial, first.unit.partition)
    assert decide(policy, desk) is None
    desk.schedule.now = 0.5
    desk.schedule.finish(first.worker, first.unit, 0.5, {})
    assert decide(policy, desk) is not None
