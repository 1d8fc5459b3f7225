"""The policies that look ahead: whole experiments under all of them, and what each is for."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.space import uniform
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import MissingExtra
from hopfleet.planner.costs import cnns, homogeneous
from hopfleet.planner.portfolio import plan
from hopfleet.planner.shop import Shop, ShopUnit
from hopfleet.planner.timetable import Timetable
from hopfleet.runtime import driver as runtime
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.plan import Plan, rotation
from hopfleet.scheduler.policies import POLICIES, balanced
from hopfleet.scheduler.policies import exact as exact_policy
from hopfleet.scheduler.policies import portfolio as portfolio_policy
from hopfleet.scheduler.policies.auto import Auto
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.exact import Exact
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.policies.match_reserve import MatchReserve, match_and_reserve
from hopfleet.scheduler.policies.planned import Mode
from hopfleet.scheduler.policies.portfolio import Portfolio
from hopfleet.scheduler.progress import Outcome
from hopfleet.scheduler.shop_state import initial_state
from hopfleet.scheduler.slots import Assignment
from hopfleet.search.asha import ASHA
from hopfleet.search.base import Goal
from hopfleet.search.random import Random
from hopfleet.simulation.backend import Simulated
from hopfleet.testing.virtual import Run
from hopfleet.testing.virtual import Setting as Experiment
from tests.helpers.schedule_desk import Desk, trial
from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import FAULTS, Fault, Setting, covered

LOOKING_AHEAD = sorted(POLICIES.keys() - {"longest-remaining", "nearly-done", "random"})


@pytest.fixture(autouse=True)
def quick_solver(monkeypatch):
    monkeypatch.setattr(exact_policy, "SECONDS", 0.02)
    monkeypatch.setattr(portfolio_policy, "FIRST_EFFORT", 2_000)


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


# ---------------------------------------------------------------------------------- whole runs, and their ratio


def run(policy: Policy, times: list[list[float]], *, epochs: int = 1, noise: float = 0.0, seed: int = 0) -> float:
    """Makespan by the bound, with partition j on worker j, and ``times`` as what is expected."""
    trials, partitions = len(times), len(times[0])
    search = Random(trials=trials, max_epochs=epochs)
    search.setup({"x": 1}, seed=0, goal=Goal("train_loss", "min"))
    estimates = Estimates([1] * partitions, prior=lambda number, worker, partition: times[number][partition])
    controller = Controller(search, policy, partitions=partitions, valid_partitions=0, seed=seed, estimates=estimates)
    workers, loads = [0.0] * partitions, [0.0] * trials

    def seconds(command: m.RunUnit, trial: Trial) -> float:
        draw = random.Random(f"{seed} {trial.number} {command.unit.epoch} {command.unit.partition}")
        took = times[trial.number][command.unit.partition] * draw.lognormvariate(0.0, noise)
        workers[command.unit.partition] += took
        loads[trial.number] += took
        return took

    backend = Simulated(seconds, partitions=[[partition] for partition in range(partitions)])
    backend.start(None, partitions)
    end = 0.0
    loop = runtime.Driver(controller, backend)
    for events in loop.moments([m.RunStarted("test", partitions)]):
        for event in events:
            if isinstance(event, m.UnitFinished):
                end = backend.elapsed
                event = replace(event, sums={"train_loss": RowSum.of(1.0, 1)})
            loop.step([event])
    return end / max(*workers, *loads)


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


def solved(shop: Shop) -> Timetable:
    return plan(shop, random.Random(0))


def asks_later(answers: list[Timetable], polls: int):
    """Answers after so many polls."""

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
        Answered(Promoting(), Experiment(seed=seed, workers=3, partitions=3, held=[[0], [1], [2]], steady=False)).go()


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


# ------------------------------------------------------------------------------------------ when it is live


def decide(policy, desk):
    return policy(desk.schedule, random.Random(0))


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


# ---------------------------------------------------------------------------------------------- replicas


def test_replicas_are_shared_out_by_speed():
    """Two workers hold both partitions; the slow one gets less."""
    estimates = Estimates([1, 1], prior=lambda number, worker, partition: 1.0 if worker == "w1" else 9.0)
    desk = Desk((0, 1), (0, 1), (), trials=4, epochs=1, valid=0)
    desk.schedule.estimates = estimates
    policy = Balanced()
    first = decide(policy, desk)
    assert first.worker == "w1"
    desk.start("w1", first.unit.trial, first.unit.partition)
    # It would end after all the others: better to leave everything to w1.
    assert decide(policy, desk) is None


def test_replicas_without_scipy_are_left_to_the_longest_remaining(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(Balanced, "__call__", lambda *_: pytest.fail("balanced"))
    desk = Desk((0, 1), (0, 1), (), trials=4, epochs=1, valid=0)
    assert decide(Auto(), desk) == decide(longest_remaining, desk) is not None


def test_while_workers_are_still_coming_short_units_come_first():
    estimates = Estimates([1, 1, 1], prior=lambda number, worker, partition: 9.0 - number)
    desk = Desk((0, 1), (1, 2), partitions=3, trials=4, epochs=1, valid=0)
    desk.schedule.estimates = estimates
    desk.schedule.starting = 1
    policy = Balanced()
    for name in ("t4", "t3"):
        choice = decide(policy, desk)
        assert choice.unit.trial == name
        desk.start(choice.worker, name, choice.unit.partition)
    assert decide(policy, desk) is None
    desk.schedule.join("w3", (2, 0))
    assert decide(policy, desk).unit.trial in ("t1", "t2")


def test_unit_times_that_turn_out_otherwise_need_a_new_balance(monkeypatch):
    made = []
    original = balanced.balance
    monkeypatch.setattr(balanced, "balance", lambda cells, **ready: made.append(ready) or original(cells, **ready))
    desk = Desk((0, 1), (0, 1), (), trials=4, epochs=1, valid=0)
    desk.schedule.estimates = Estimates([1, 1], prior=lambda number, worker, partition: 1.0)
    policy = Balanced()
    first = decide(policy, desk)
    desk.start(first.worker, first.unit.trial, first.unit.partition)
    second = decide(policy, desk)
    desk.start(second.worker, second.unit.trial, second.unit.partition)
    assert made == [{"worker_ready": {}, "config_ready": {}}]
    desk.schedule.finish(first.worker, first.unit, 1.0, {})
    assert decide(policy, desk) is not None
    assert len(made) == 1, "it took as long as expected"
    desk.schedule.finish(second.worker, second.unit, 40.0, {})
    third = decide(policy, desk)
    assert len(made) == 2
    desk.start(third.worker, third.unit.trial, third.unit.partition)
    desk.schedule.finish(third.worker, third.unit, 40.0, {})
    decide(policy, desk)


def test_trials_that_end_leave_nothing_behind():
    desk = Desk((0, 1), (0, 1), (), trials=3, epochs=1, valid=0)
    policy = Balanced()
    assert decide(policy, desk) is not None
    desk.schedule.settle("t1", Outcome(TrialState.STOPPED))
    desk.schedule.park("t1", TrialState.STOPPED)
    for _ in range(4):
        choice = decide(policy, desk)
        assert choice.unit.trial in ("t2", "t3")
        desk.train(choice.worker, choice.unit.trial, choice.unit.partition)
        desk.schedule.saved(VersionRef(choice.unit.trial, desk[choice.unit.trial].version, 0), durable=False)
    assert decide(policy, desk) is None


def test_replicas_of_some_and_none_of_others():
    desk = Desk((0,), (0,), partitions=2, trials=1, valid=0)
    policy = Balanced()
    choice = decide(policy, desk)
    assert choice.unit.partition == 0
    desk.train(choice.worker, "t1", 0)
    assert decide(policy, desk) is None


def test_a_few_new_trials_need_no_new_balance(monkeypatch):
    made = []
    original = balanced.balance
    monkeypatch.setattr(balanced, "balance", lambda cells, **ready: made.append(1) or original(cells, **ready))
    desk = Desk((0, 1), (0, 1), (), trials=20, epochs=1, valid=0)
    policy = Balanced()
    assert decide(policy, desk) is not None
    desk.schedule.add(trial(21, 1))
    assert decide(policy, desk) is not None
    assert len(made) == 1
    desk.schedule.add(trial(22, 1))
    desk.schedule.add(trial(23, 1))
    assert decide(policy, desk) is not None
    assert len(made) == 2


# -------------------------------------------------------------------------------------------------- auto


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


# --------------------------------------------------------------------------------------------- estimates


def learned(prior, spread, rounds=8, sigma=0.2):
    """Estimates of eight trials whose true costs are ``spread`` apart, and those costs."""
    rng = random.Random(3)
    estimates = Estimates([1] * 4, prior=prior)
    costs = [math.exp(rng.gauss(0.0, spread)) for _ in range(8)]
    for visit in range(rounds):
        for number, cost in enumerate(costs):
            partition = (number + visit) % 4
            seconds = cost * rng.lognormvariate(0.0, sigma)
            estimates.measured(f"t{number}", number, f"w{partition}", partition, seconds)
    return estimates, costs


def test_a_prior_that_holds_is_kept():
    """What trials differ by is no more than chance."""
    estimates, _ = learned(lambda number, worker, partition: 1.0, 0.0)
    times = [estimates.expected(f"t{number}", number, "w0", 0) for number in range(8)]
    assert max(times) / min(times) < 1.1
    assert estimates.noise == pytest.approx(0.2, rel=0.3)


@pytest.mark.parametrize("prior", [None, lambda number, worker, partition: 1.0])
def test_what_stands_out_is_learned(prior):
    estimates, costs = learned(prior, 1.0)
    for number, cost in enumerate(costs):
        assert estimates.expected(f"t{number}", number, "w0", 0) == pytest.approx(cost, rel=0.4)


def test_surprises_of_long_ago_are_forgotten():
    estimates = Estimates([1], prior=lambda number, worker, partition: 1.0)
    for seconds in [9.0] * 4 + [1.0] * 1000:
        estimates.measured("t1", 0, "w1", 0, seconds)
    assert estimates.noise < 0.05


def test_a_trial_that_ended_says_nothing_of_others():
    estimates = Estimates([1])
    estimates.measured("t1", 0, "w1", 0, 5.0)
    assert estimates.expected("t2", 1, "w1", 0) == pytest.approx(5.0)
    estimates.forget("t1")
    estimates.forget("t1")
    assert estimates.expected("t2", 1, "w1", 0) == 1.0
