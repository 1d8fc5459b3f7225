"""The policies that look ahead: whole experiments under all of them, and what each is for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain.space import uniform
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import MissingExtra
from hopfleet.planner.costs import cnns, homogeneous
from hopfleet.planner.shop import Shop, ShopUnit
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.policies import exact as exact_policy
from hopfleet.scheduler.policies.auto import Auto
from hopfleet.scheduler.policies.exact import Exact
from hopfleet.scheduler.policies.match_reserve import MatchReserve, match_and_reserve
from hopfleet.scheduler.policies.planned import Mode
from hopfleet.scheduler.policies.portfolio import Portfolio
from hopfleet.scheduler.shop_state import initial_state
from hopfleet.scheduler.slots import Assignment
from hopfleet.search.asha import ASHA
from hopfleet.testing.virtual import Run, VirtualExperiment
from tests.helpers.online_runs import decide, run, solved
from tests.helpers.schedule_desk import Desk, trial
from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import FAULTS, Fault, Setting, covered

LOOKING_AHEAD = sorted(POLICIES.keys() - {"longest-remaining", "nearly-done", "random"})
pytestmark = pytest.mark.usefixtures("quick_solver")


# --------------------------------------------------------------------------------------------- properties


@st.composite
def experiments(draw: st.DrawFn) -> Setting:
    """Small ones, most with each partition on one worker, with and without faults."""
    partitions, count = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    homes = draw(st.lists(st.integers(0, count - 1), min_size=partitions, max_size=partitions))
    workers = [tuple(j for j in range(partitions) if homes[j] == worker) for worker in range(count)]
    if draw(st.integers(0, 3)) == 0:
        workers += draw(st.lists(st.sampled_from([None, (0,)]), max_size=2))
    assert covered(workers, partitions)
    trials, epochs = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    fault = st.builds(Fault, st.integers(0, 60), st.sampled_from(FAULTS), st.integers(0, 99))
    return Setting(
        workers=tuple(workers),
        partitions=partitions,
        valid=draw(st.integers(0, 2)),
        trials=trials,
        epochs=epochs,
        stops=draw(st.dictionaries(st.integers(0, trials - 1), st.integers(1, epochs), max_size=2)),
        max_live=draw(st.sampled_from([1, 3, 256])),
        seed=draw(st.integers(0, 2**16)),
        steady=draw(st.booleans()),
        save_seconds=draw(st.sampled_from([0.0, 0.5, 5.0])),
        faults=tuple(draw(st.lists(fault, max_size=6))),
    )


@pytest.mark.parametrize("policy", LOOKING_AHEAD)
@settings(deadline=None, max_examples=6)
@given(setting=experiments())
def test_whatever_happens(policy, setting):
    """The driver checks every invariant at every step, and that no worker waits for an event that never comes."""
    Driver(replace(setting, policy=policy)).run()


@pytest.mark.parametrize("policy", ["auto", "exact", "match-reserve", "portfolio"])
@pytest.mark.parametrize("times", [homogeneous(6, 4), homogeneous(6, 6), cnns(8, 4, random.Random(1))])
def test_exact_estimates_give_the_bound(policy, times):
    assert run(POLICIES[policy](), times) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("policy", LOOKING_AHEAD)
def test_near_the_bound(policy):
    assert run(POLICIES[policy](), cnns(8, 4, random.Random(2)), epochs=2, noise=0.1) < 1.25


def test_the_solver_is_asked_where_the_portfolio_is_not_at_the_bound(monkeypatch):
    """Both workers are ready at 5, but the only configuration cannot be at both: 7 is the best, not 6."""
    units = (ShopUnit(0, 0, 1.0), ShopUnit(0, 1, 1.0))
    hint = Timetable.of_order(Shop(1, 2, units, worker_ready=(5.0, 5.0)), [0, 1])
    asked = []
    monkeypatch.setattr(exact_policy, "solve", lambda shop, **options: (asked.append(shop) or options["hint"], True))
    exact_policy._question(hint)()
    assert asked == [hint.shop]
    exact_policy._question(Timetable.of_order(Shop.of_times([[1.0]]), [0]))()
    assert len(asked) == 1


def badly(shop: Shop, rng: random.Random) -> Timetable:
    return Timetable.of_order(shop, range(len(shop.units)))


def asks_later(answers: list[Timetable], polls: int):
    """Return a function that submits a job, whose answer comes after ``polls`` polls."""

    def submit(job):
        answers.append(job())
        left = iter([None] * polls)
        return lambda: next(left, answers[-1])

    return submit


def test_the_solver_s_plan_is_taken_when_it_comes(monkeypatch):
    """At once, later, or never, when the other plan is followed: there each trial is a unit behind the one before."""
    monkeypatch.setattr(exact_policy, "solve", lambda shop, **options: (solved(shop), True))
    ratios = []
    for polls in (0, 4, 999):
        policy = Exact(asks_later([], polls))
        policy._portfolio = badly
        ratios.append(run(policy, homogeneous(6, 6)))
    assert ratios[0] == pytest.approx(1.0)
    assert ratios[2] == pytest.approx(11 / 6)
    assert ratios[0] < ratios[1] < ratios[2]


def test_a_plan_that_came_too_late_is_not_taken(monkeypatch):
    """The answer is worse than what is followed."""
    monkeypatch.setattr(
        exact_policy, "solve", lambda shop, **options: (Timetable.of_order(shop, range(len(shop.units))), True)
    )
    policy = Exact()
    policy._portfolio = lambda shop, rng: solved(shop)
    assert run(policy, homogeneous(6, 6)) == pytest.approx(1.0)


def test_no_answer_about_another_shop(monkeypatch):
    """A trial that came while the solver was thinking makes it a new question."""
    answers: list[Timetable] = []
    desk = Desk((0,), (1,), trials=2, epochs=1, valid=0)
    policy = Exact(asks_later(answers, 99))
    assert decide(policy, desk) is not None
    desk.schedule.add(trial(3, 1))
    assert decide(policy, desk) is not None
    assert [len(answer.starts) for answer in answers] == [4, 6]


class Promoting:
    space: ClassVar = {"lr": uniform(0, 1)}

    def make(self):
        return ASHA(trials=8, max_epochs=4, eta=2)


def test_an_answer_may_come_when_trials_have_begun_other_epochs():
    answer = Timetable.of_order(Shop(3, 2, (ShopUnit(0, 0, 1.0), ShopUnit(1, 1, 1.0))), [1, 0])
    now = Shop(3, 2, (ShopUnit(2, 0, 1.0), ShopUnit(0, 0, 1.0), ShopUnit(0, 0, 1.0), ShopUnit(1, 1, 1.0)))
    planned = exact_policy._like(answer, solved)(now)
    assert planned.starts[1] == planned.starts[3] == 0.0
    assert min(planned.starts[0], planned.starts[2]) > 0.0


@pytest.mark.parametrize("polls", [0, 3, 9])
def test_the_solver_and_a_search_that_pauses_trials(polls):
    class Answered(Run):
        def _policy(self):
            return Exact(asks_later([], polls))

    for seed in range(4):
        experiment = VirtualExperiment(seed=seed, workers=3, partitions=3, held=[[0], [1], [2]], steady=False)
        Answered(Promoting(), experiment).go()


def test_the_solver_is_missed_before_work_begins(monkeypatch):
    monkeypatch.setattr(exact_policy, "installed", lambda: False)
    with pytest.raises(MissingExtra, match="hopfleet\\[solver\\]"):
        Exact()


def test_too_large_for_the_solver():
    assert exact_policy.too_large(16, 16) is None
    assert "5120 units" in exact_policy.too_large(320, 16)


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_goes_through_all_epochs(mode):
    """More epochs than are planned at first, since the plan stops at a number of units."""
    assert run(Portfolio(mode), homogeneous(5, 4), epochs=130, noise=0.01) < 1.1


def test_auto_is_no_worse_than_random():
    for noise in (0.0, 0.3):
        settings = [(cnns(8, 6, random.Random(seed)), seed) for seed in range(3)]
        chosen, randomly = (
            sum(run(POLICIES[name](), times, epochs=3, noise=noise, seed=seed) for times, seed in settings)
            for name in ("auto", "random")
        )
        assert chosen <= randomly


# --------------------------------------------------------------------------------------------- match-reserve


def test_the_most_urgent_pair_first():
    state = initial_state([[1.0, 1.0], [3.0, 1.0]])
    assert set(match_and_reserve(state)) == {(1, 0), (0, 1)}


def test_as_many_pairs_as_possible():
    """The heaviest pair alone would leave the other trial without a worker."""
    state = initial_state([[5.0, 5.0], [5.0, 5.0]])
    state.todo[0] = {0: [0], 1: [1]}
    state.todo[1] = {0: [0]}
    state.sum_up()
    assert set(match_and_reserve(state)) == {(0, 1), (1, 0)}


def test_a_worker_is_held_for_a_critical_trial():
    """Trial 0 has most left, and runs for one second more; worker 1 does better to wait for it than to take trial 1."""
    state = initial_state([[1.0, 9.0, 9.0], [1.0, 3.0, 1.0]])
    state.start(0, 0)
    assert list(match_and_reserve(state)) == [(1, 2)]


def test_nobody_is_held_who_cannot_afford_to_wait():
    state = initial_state([[1.0, 9.0, 9.0], [1.0, 3.0, 1.0]])
    state.start(0, 0)
    state.worker_left[1] = 19.5
    assert list(match_and_reserve(state)) == [(1, 1)]


def test_a_trial_is_held_for_a_critical_worker():
    state = initial_state([[1.0, 1.0], [9.0, 3.0], [9.0, 1.0]])
    state.start(0, 0)
    assert list(match_and_reserve(state)) == [(2, 1)]


def test_nobody_is_held_while_units_end_at_any_time():
    """Unless it is the most critical of all; here that is worker 0, which trial 1 has visited."""
    state = initial_state([[1.0, 9.0, 9.0], [1.0, 3.0, 1.0]])
    del state.todo[1][0]
    state.sum_up()
    state.start(0, 0)
    state.worker_left[0] = 19.0
    assert list(match_and_reserve(state)) == [(1, 2)]
    state.noise = 0.5
    assert list(match_and_reserve(state)) == [(1, 1)]


def test_nothing_to_match():
    state = initial_state([[1.0]])
    state.start(0, 0)
    assert not match_and_reserve(state)


def test_a_given_order_counts():
    state = initial_state([[1.0, 1.0], [9.0, 9.0]])
    state.forced = {1: 1}
    assert (1, 1) in match_and_reserve(state)
    assert (1, 0) not in match_and_reserve(state)


def test_a_model_that_is_being_saved_is_worth_an_instant():
    """t1 just ended on w1 and is the most urgent for w2, which does not grab t2 before it can be loaded."""
    desk = Desk((0,), (1,), trials=2, epochs=1)
    desk.train("w1", "t2", 0)
    desk.schedule.saved(VersionRef("t2", 1, 0), durable=False)
    desk.start("w2", "t2", 1)
    desk.train("w1", "t1", 0)
    desk.schedule.now = 0.5
    desk.schedule.abandon("w2", desk.schedule.slots["w2"].unit.trial)
    desk["t1"].trial = replace(desk["t1"].trial, epochs=9)
    policy = MatchReserve()
    assert decide(policy, desk) is None
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    assert decide(policy, desk) == Assignment("w2", Unit("t1", 1, 1))


def test_units_that_should_end_now_are_awaited():
    desk = Desk((0,), (1,), trials=3, epochs=1)
    desk.start("w1", "t1", 0)
    desk.schedule.now = 1.0
    policy = MatchReserve()
    assert decide(policy, desk) is None
    desk.schedule.now = 1.5
    assert decide(policy, desk).worker == "w2"


def others(first: Assignment) -> tuple[str, str]:
    """The other worker and the other trial."""
    return ({"w1", "w2"} - {first.worker}).pop(), ({"t1", "t2"} - {first.unit.trial}).pop()


def test_what_was_not_begun_is_chosen_again():
    desk = Desk((0,), (1,), trials=2, valid=0)
    policy = MatchReserve()
    first = decide(policy, desk)
    worker, name = others(first)
    desk.start(worker, name, int(worker[1]) - 1)
    assert decide(policy, desk) == first


def test_who_has_to_go_elsewhere_meanwhile_is_not_started():
    desk = Desk((0,), (1,), trials=2, valid=0)
    policy = MatchReserve()
    first = decide(policy, desk)
    _, name = others(first)
    desk.start(first.worker, first.unit.trial, first.unit.partition)
    desk[name].forced.append(first.unit.partition)
    assert decide(policy, desk) is None


def test_workers_that_are_supposed_to_be_idle_get_another_choice():
    """At the same moment, with as many idle workers and trials, it is another question."""
    desk = Desk((0,), (1,), trials=4, valid=0)
    policy = MatchReserve()
    for _ in range(2):
        choice = decide(policy, desk)
        desk.start(choice.worker, choice.unit.trial, choice.unit.partition)
    for worker in ("w1", "w2"):
        with desk.schedule.supposing({worker: desk.schedule.slots[worker]}):
            assert decide(policy, desk).worker == worker
    assert not desk.schedule.idle


@pytest.mark.parametrize("policy", [MatchReserve, Auto, Portfolio])
def test_everything_readable_everywhere(policy):
    desk = Desk(None, None, trials=2)
    desk.train("w1", "t1", 0)
    assert decide(policy(), desk).unit.trial == "t2"


@pytest.mark.parametrize("name", LOOKING_AHEAD)
def test_a_partition_that_is_nowhere(name):
    desk = Desk((0,), (1,), partitions=3, trials=2, valid=0)
    policy = POLICIES[name]()
    for _ in range(4):
        choice = decide(policy, desk)
        desk.train(choice.worker, choice.unit.trial, choice.unit.partition)
        desk.schedule.saved(VersionRef(choice.unit.trial, desk[choice.unit.trial].version, 0), durable=False)
    assert decide(policy, desk) is None
    desk.schedule.join("w3", (2,))
    assert decide(policy, desk).worker == "w3"
