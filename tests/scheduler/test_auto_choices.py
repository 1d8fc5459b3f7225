"""When auto chooses again, and what it chooses: its limits, with dry runs that say what the test wants."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hopfleet.scheduler.dryrun import Outcome, exact
from hopfleet.scheduler.plan import Plan, rotation
from hopfleet.scheduler.policies import auto
from hopfleet.scheduler.policies.auto import MATCH_RESERVE, Auto, Candidate
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.policies.match_reserve import match_and_reserve
from hopfleet.scheduler.policies.replicated import Replicated
from hopfleet.scheduler.shop_state import ShopState, initial_state
from tests.helpers.schedule_desk import Desk
from tests.helpers.shop_floor import shop_floor

RNG = random.Random(0)
PLAN = Plan(initial_state([[1.0]]), rotation())


def shop(
    workers: int = 4, trials: int = 5, *, noise: float = 0.0, judged: int = 0, units: int | None = None
) -> ShopState:
    state = initial_state([[1.0] * workers for _ in range(trials)])
    state.noise, state.judged = noise, judged
    state.units = state.units if units is None else units
    return state


def planned(name: str) -> Candidate:
    return Candidate(name, lambda: match_and_reserve, PLAN)


def basis(*, noise: float, known: bool, units: int, plan: bool = False) -> Auto:
    policy = Auto()
    policy._noise, policy._known, policy._units = noise, known, units
    policy.chosen = planned("plan") if plan else MATCH_RESERVE
    return policy


@pytest.mark.parametrize(
    ("before", "now", "again"),
    [
        # Too noisy for a plan: after a unit for every second worker.
        ({"noise": 0.2, "known": True, "units": 20}, {"noise": 0.3, "units": 18}, True),
        ({"noise": 0.2, "known": True, "units": 20}, {"noise": 0.3, "units": 19}, False),
        ({"noise": 0.2, "known": True, "units": 20}, {"noise": 0.3, "units": 18, "workers": 5}, False),
        ({"noise": 0.21, "known": True, "units": 20}, {"noise": 0.3, "units": 10}, False),  # it was so before
        ({"noise": 0.15, "known": True, "units": 20}, {"noise": 0.2, "units": 18}, False),
        # Units take as long as expected, which was not known.
        ({"noise": 0.0, "known": False, "units": 20}, {"noise": 0.02, "units": 18, "judged": 2}, True),
        ({"noise": 0.0, "known": False, "units": 20}, {"noise": 0.02, "units": 18, "judged": 1}, False),
        ({"noise": 0.0, "known": False, "units": 20, "plan": True}, {"units": 18, "judged": 2}, False),
        ({"noise": 0.0, "known": True, "units": 20}, {"noise": 0.01, "units": 8, "judged": 9}, False),
        # Another noise, after two units for every worker.
        ({"noise": 0.1, "known": True, "units": 20}, {"noise": 0.15, "units": 12}, True),
        ({"noise": 0.1, "known": True, "units": 20}, {"noise": 0.15, "units": 13}, False),
        ({"noise": 0.1, "known": True, "units": 20}, {"noise": 0.125, "units": 10}, False),  # a quarter more
        ({"noise": 0.0, "known": True, "units": 20}, {"noise": 0.02, "units": 10}, False),
        ({"noise": 0.0, "known": True, "units": 20}, {"noise": 0.03, "units": 10}, True),
        # The last units end before another choice pays.
        ({"noise": 0.1, "known": True, "units": 20}, {"noise": 0.2, "units": 5}, True),
        ({"noise": 0.1, "known": True, "units": 20}, {"noise": 0.2, "units": 4}, False),
    ],
)
def test_when_the_noise_is_another_one(before, now, again):
    assert bool(basis(**before)._noise_changed(shop(**now))) is again


@pytest.mark.parametrize(
    ("noise", "units", "plan", "again"),
    [
        (0.0, 15, False, True),
        (0.02, 15, False, True),
        (0.0, 16, False, False),
        (0.03, 9, False, False),
        (0.0, 9, True, False),
    ],
)
def test_a_rule_without_a_plan_is_checked_each_quarter_of_an_epoch(noise, units, plan, again):
    """20 units an epoch."""
    policy = basis(noise=0.0, known=True, units=20, plan=plan)
    assert bool(policy._strays(shop(noise=noise, units=units))) is again


@pytest.mark.parametrize(("workers", "judged", "known"), [(4, 1, False), (4, 2, True), (5, 2, False), (5, 3, True)])
def test_the_noise_is_known_after_a_unit_for_every_second_worker(workers, judged, known):
    assert auto._known(shop(workers, judged=judged)) is known


def test_a_new_policy_has_chosen_nothing():
    policy = Auto()
    assert policy.chosen is MATCH_RESERVE
    assert (policy._noise, policy._units, policy._known) == (0.0, 0, False)
    assert isinstance(policy._replicated, Replicated)


@pytest.mark.parametrize(("trials", "many"), [(128, False), (129, True)])
def test_too_many_trials(trials, many):
    assert Auto()._too_many(Desk((0,), (1,), trials=trials).schedule) is many


@pytest.mark.parametrize(("trials", "chooses"), [(24, True), (25, False)])
def test_several_trials_for_each_worker_need_no_plan(monkeypatch, trials, chooses):
    policy, renewed = Auto(), []
    monkeypatch.setattr(policy, "_renew", lambda *_: renewed.append(1))
    policy._choose(shop(4, trials), RNG)
    assert bool(renewed) is chooses


def test_after_a_time_without_a_choice_a_new_one_is_made(monkeypatch):
    policy, renewed = Auto(), []
    monkeypatch.setattr(policy, "_renew", lambda *_: renewed.append(1))
    policy._news = policy._shop_view.news
    policy._choose(shop(4, 25), RNG)
    policy._choose(shop(4, 5), RNG)
    assert renewed


def test_searches_that_add_trials_have_another_policy():
    desk = Desk((0,), (1,), trials=2, valid=0)
    desk.schedule.more_to_come = True
    assert Auto()(desk.schedule, RNG) is not None


# ------------------------------------------------------------------------------------------------ dry runs


class Ratios:
    """Ratios to the bound by the names of candidates: without noise, and of each dry run with noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, without: dict[str, float], **noisy: list[float]) -> None:
        self.without, self.noisy, self.sigmas, self.runs = without, noisy, list[float](), list[str]()
        monkeypatch.setattr(auto, "_ratio", self)
        monkeypatch.setattr(auto, "lognormal", lambda sigma, seed: self.sigmas.append(sigma) or sigma)

    def __call__(self, state: ShopState, candidate: Candidate, factor: Any) -> float:
        if factor is exact:
            return self.without[candidate.name]
        self.runs.append(candidate.name)
        return self.noisy[candidate.name][self.runs.count(candidate.name) - 1]


@pytest.mark.parametrize(
    ("known", "noise", "ratio", "exactly"),
    [
        (True, 0.0, 1.0001, True),
        (True, 0.001, 1.0002, True),
        (True, 0.0, 1.001, False),
        (True, 0.002, 1.0, False),
        (False, 0.0, 1.0, False),
    ],
)
def test_a_plan_at_the_bound_will_end_there(monkeypatch, known, noise, ratio, exactly):
    Ratios(monkeypatch, {"a": ratio})
    policy = basis(noise=0.0, known=known, units=20)
    assert policy._exactly(shop(noise=noise), planned("a")) is exactly


@pytest.mark.parametrize(
    ("noise", "judged", "ratios", "best"),
    [
        (0.0, 2, {"match-reserve": 1.0, "a": 1.0001, "b": 1.1}, "a"),  # equal, and a plan
        (0.0, 2, {"match-reserve": 1.0, "a": 1.0 + auto.EQUAL, "b": 1.1}, "a"),
        (0.0, 2, {"match-reserve": 1.0, "a": 1.01, "b": 1.1}, "match-reserve"),
        (0.001, 2, {"match-reserve": 1.0, "a": 1.0, "b": 1.0}, "a"),
        (0.0, 2, {"match-reserve": 1.2, "a": 1.1, "b": 1.0}, "b"),
        (0.01, 2, {"match-reserve": 1.2, "a": 1.1, "b": 1.0}, "b"),
        (0.0, 1, {"match-reserve": 1.2, "a": 1.1, "b": 1.0}, "b"),
        (0.0, 1, {"match-reserve": 1.0, "a": 1.0, "b": 1.1}, "drawn"),  # equal, and nothing is known
        (0.02, 2, {"match-reserve": 1.0, "a": 1.0, "b": 1.1}, "drawn"),
    ],
)
def test_the_best_without_noise(monkeypatch, noise, judged, ratios, best):
    Ratios(monkeypatch, ratios)
    found = []
    monkeypatch.setattr(auto, "_drawn", lambda state, some, rng, **how: found.append((some, how)) or planned("drawn"))
    candidates = [MATCH_RESERVE, planned("a"), planned("b")]
    assert auto._best(shop(noise=noise, judged=judged), candidates, RNG).name == best
    if best == "drawn":
        ((some, how),) = found
        assert ([each.name for each in some], how) == (["match-reserve", "a"], {"sigma": 0.05, "gain": 0.0})


def test_with_noise_all_are_drawn_and_must_gain_a_percent(monkeypatch):
    found = []
    monkeypatch.setattr(auto, "_drawn", lambda state, some, rng, **how: found.append(how) or some[0])
    auto._best(shop(noise=0.1, judged=9), [MATCH_RESERVE, planned("a")], RNG)
    assert found == [{"sigma": 0.1, "gain": 0.01}]


@pytest.mark.parametrize(
    ("noisy", "best", "runs"),
    [
        ({"a": [1.0, 1.0, 1.0], "b": [1.0, 1.0, 1.0]}, "a", 6),
        ({"a": [1.02, 1.02, 1.02], "b": [1.0, 1.0, 1.0]}, "b", 6),
        ({"a": [1.005, 1.005, 1.005], "b": [1.0, 1.0, 1.0]}, "a", 6),  # no gain of a percent
        ({"a": [1.0], "b": [1.1]}, "a", 2),  # hopeless
        ({"a": [1.0, 1.0], "b": [0.99, 1.08]}, "a", 4),
        ({"a": [1.0, 1.0, 1.0], "b": [0.99, 1.0, 0.9]}, "b", 6),
    ],
)
def test_the_best_of_dry_runs_with_noise(monkeypatch, noisy, best, runs):
    ratios = Ratios(monkeypatch, {}, **noisy)
    assert auto._drawn(shop(), [planned("a"), planned("b")], RNG, sigma=0.1, gain=0.01).name == best
    assert len(ratios.runs) == runs
    assert ratios.sigmas == [0.1] * (runs // 2)


def test_three_candidates_of_which_one_is_hopeless(monkeypatch):
    ratios = Ratios(monkeypatch, {}, a=[1.0, 1.0, 1.0], b=[1.2], c=[1.01, 1.01, 0.9])
    assert auto._drawn(shop(), [planned(name) for name in "abc"], RNG, sigma=0.1, gain=0.0).name == "c"
    assert ratios.runs == ["a", "b", "c", "a", "c", "a", "c"]


@pytest.mark.parametrize(("noise", "plan"), [(0.21, False), (0.2, True)])
def test_no_plan_where_it_is_too_noisy(monkeypatch, noise, plan):
    monkeypatch.setattr(auto, "_best", lambda state, candidates, rng: candidates[-1])
    policy = basis(noise=0.0, known=True, units=20)
    assert (policy._choice(shop(noise=noise), RNG, None).plan is not None) is plan


@pytest.mark.parametrize(
    ("known", "ratios", "kept", "chosen"),
    [
        (True, {"portfolio, strictly": 1.0}, None, "portfolio, strictly"),
        (True, {"portfolio, strictly": 1.1}, None, "best"),
        (True, {"kept": 1.0}, "kept", "kept"),
        (True, {"kept": 1.1, "portfolio, strictly": 1.0}, "kept", "portfolio, strictly"),
        (True, {"kept": 1.1, "portfolio, strictly": 1.1}, "kept", "best"),
        # Nothing is known of the noise: a rule is good enough if it ends near the bound.
        (False, {"match-reserve": 1 + auto.PRICE}, None, "match-reserve"),
        (False, {"match-reserve": 1 + 2 * auto.PRICE}, None, "best"),
    ],
)
def test_a_plan_at_the_bound_is_taken_and_others_are_compared(monkeypatch, known, ratios, kept, chosen):
    Ratios(monkeypatch, ratios)
    compared = []
    monkeypatch.setattr(auto, "_best", lambda state, some, rng: compared.extend(some) or planned("best"))
    monkeypatch.setattr(auto, "_drawn", lambda state, some, rng, **how: some[0])
    monkeypatch.setattr(auto, "_can_wait", lambda *_: False)
    policy = basis(noise=0.0, known=known, units=20)
    state = shop(2, 3)
    plan = kept and Candidate(kept, lambda: match_and_reserve, Plan(state, rotation()))
    assert policy._choice(state, RNG, plan).name == chosen
    if chosen == "best":
        first = ["kept", "match-reserve"] if kept else ["match-reserve"]
        more = ["portfolio, strictly", "portfolio, as priorities", "rotation, strictly"]
        assert [each.name for each in compared] == [*first, *more]


@pytest.mark.parametrize(("workers", "ends"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_it_waits_for_a_unit_of_every_second_worker(monkeypatch, workers, ends):
    asked = []
    real = auto.later
    monkeypatch.setattr(auto, "later", lambda state, rule, **how: asked.append(how) or real(state, rule, **how))
    state = shop(workers, workers)
    state.now = 100.0
    assert auto._can_wait(state, MATCH_RESERVE, RNG) is True  # at the bound now, and from there
    assert asked == [{"laps": 1, "ends": ends}]


@pytest.mark.parametrize(("then", "waits"), [(100.2, True), (100.4, False)])
def test_waiting_may_cost_three_thousandths_of_the_bound(monkeypatch, then, waits):
    soon, plans = shop(2, 2), iter([Outcome(100.0, 100.0), Outcome(then - 7.0, 100.0)])
    soon.now = 7.0
    monkeypatch.setattr(auto, "later", lambda *_, **__: soon)
    monkeypatch.setattr(auto, "dry_run", lambda *_, **__: next(plans))
    assert auto._can_wait(shop(2, 2), MATCH_RESERVE, RNG) is waits


@pytest.mark.parametrize(("wait", "chosen"), [(True, "match-reserve"), (False, "best")])
def test_a_plan_is_put_off_if_that_costs_nothing(monkeypatch, wait, chosen):
    Ratios(monkeypatch, {"match-reserve": 2.0})
    monkeypatch.setattr(auto, "_best", lambda *_: planned("best"))
    monkeypatch.setattr(auto, "_drawn", lambda state, some, rng, **how: some[0])
    monkeypatch.setattr(auto, "_can_wait", lambda *_: wait)
    assert basis(noise=0.0, known=False, units=20)._choice(shop(2, 3), RNG, None).name == chosen


def test_the_chosen_rule_is_followed_and_its_plan_extended_where_it_ends(monkeypatch):
    """A plan is carried on when it no longer covers what is left of the epoch, and not before."""
    ruled, extended, covers = [], [], True

    class Covers(Plan):
        def covers(self, state, laps=0):
            return covers

        def extend(self, state):
            extended.append(state)

    state = shop(2, 3)
    choice = Candidate("planned", lambda: lambda state: ruled.append(state) or [], Covers(state, rotation()))
    extended.clear()
    policy = Auto()
    monkeypatch.setattr(policy, "_choice", lambda *_: choice)
    for _ in range(2):
        policy._choose(state, RNG)
    assert len(ruled) == 2 and extended == []
    covers = False
    policy._choose(state, RNG)
    assert len(ruled) == 3 and extended == [state]


@pytest.mark.parametrize(
    ("workers", "reads", "more", "left", "asked"),
    [
        (("fast", "quick"), None, True, 3, "nearly done"),
        (("fast", "quick"), None, True, 2, "as usual"),  # no more trials to come than there are
        (("fast", "quick"), None, False, 3, "as usual"),
        (("fast", "slow"), None, True, 3, "as usual"),  # chains are planned
        (("fast", "quick"), {"fast": (0,), "quick": (1,)}, True, 0, "nearly done"),
        (("fast", "quick"), {"fast": (0,), "quick": (1,)}, False, 0, "as usual"),
    ],
)
def test_which_searches_that_add_trials_have_another_policy(monkeypatch, workers, reads, more, left, asked):
    found = []
    monkeypatch.setattr(auto, "nearly_done", lambda *_: found.append("nearly done"))
    monkeypatch.setattr(Dispatcher, "__call__", lambda *_: found.append("as usual"))
    schedule = shop_floor(*workers, reads=reads)
    schedule.more_to_come, schedule.suggestions_left = more, left
    Auto()(schedule, RNG)
    assert found == [asked]
