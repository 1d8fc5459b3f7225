"""Policies that follow a plan, made by the test: when they make it, follow it, and let it be."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hopfleet.domain.version_ref import VersionRef
from hopfleet.planner.exact import LIMIT
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.scheduler.plan import Plan
from hopfleet.scheduler.policies import exact as exact_policy
from hopfleet.scheduler.policies.exact import Exact
from hopfleet.scheduler.policies.planned import Mode, Planned
from hopfleet.scheduler.shop_state import initial_state
from hopfleet.scheduler.slots import Assignment
from tests.helpers.schedule_desk import Desk, trial

RNG = random.Random(0)


class Planner:
    """Plans trial after trial, each from the first worker to the last or, ``backwards``, the other way round."""

    def __init__(self, *, backwards: bool = False) -> None:
        self.backwards, self.shops = backwards, list[Shop]()

    def __call__(self, shop: Shop, rng: random.Random) -> Timetable:
        self.shops.append(shop)
        return in_order(shop, backwards=self.backwards)


def in_order(shop: Shop, *, backwards: bool = False) -> Timetable:
    order = sorted(range(len(shop.units)), key=lambda index: (shop.units[index].config, shop.units[index].worker))
    return Timetable.of_order(shop, order[::-1] if backwards else order)


def desk_of(trials: int = 2, epochs: int = 1, partitions: int = 2) -> Desk:
    return Desk(*[(j,) for j in range(partitions)], partitions=partitions, trials=trials, epochs=epochs, valid=0)


def finish(desk: Desk, *workers: str) -> None:
    desk.schedule.now += 1.0
    for worker in workers:
        unit = desk.schedule.slots[worker].unit
        desk.schedule.finish(worker, unit, 1.0, {})
        progress = desk[unit.trial]
        desk.schedule.saved(VersionRef(unit.trial, progress.version, 0), durable=False)
        if progress.awaits_evaluation:
            desk.schedule.end_epoch(unit.trial)


def started(policy: Planned, desk: Desk) -> list[tuple[str, int]]:
    """Start all that the policy wants to start now; return the trials and partitions."""
    found = []
    while (choice := policy(desk.schedule, RNG)) is not None:
        assert isinstance(choice, Assignment)
        desk.schedule.start(choice.worker, choice.unit, 1)
        found.append((choice.unit.trial, choice.unit.partition))
    return found


# ---------------------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize(
    ("mode", "starts"),
    [
        (Mode.STRICT, [("t2", 1)]),  # worker 1 waits for t2, which was planned first
        (Mode.PRIORITY, [("t2", 1), ("t1", 0)]),
        (Mode.NONE, [("t1", 0), ("t2", 1)]),  # as match-reserve does
    ],
)
def test_a_plan_is_followed_strictly_by_priority_or_not_at_all(mode, starts):
    planner = Planner(backwards=True)
    assert started(Planned(planner, mode), desk_of()) == starts
    assert bool(planner.shops) is (mode is not Mode.NONE)


def test_one_plan_is_made_and_made_again_when_trials_come():
    desk, planner = desk_of(), Planner()
    policy = Planned(planner)
    assert started(policy, desk) == [("t1", 0)]
    finish(desk, "w1")
    assert started(policy, desk) == [("t2", 0), ("t1", 1)]
    assert len(planner.shops) == 1
    desk.schedule.add(trial(3, 1))
    finish(desk, "w1", "w2")
    started(policy, desk)
    assert [len(shop.units) for shop in planner.shops] == [4, 3]


def test_a_plan_is_carried_on_when_it_is_used_up(monkeypatch):
    monkeypatch.setattr("hopfleet.scheduler.plan.MOST_UNITS", 0)
    desk, planner = desk_of(trials=1, epochs=6), Planner()
    policy = Planned(planner)
    visits = []
    while desk["t1"].units_left:
        (found,) = started(policy, desk)
        visits.append(found[1])
        finish(desk, f"w{found[1] + 1}")
    assert visits == [0, 1] * 6
    assert [len(shop.units) for shop in planner.shops] == [2] * 6  # two epochs at first, then one at a time


def test_no_plan_is_made_while_an_order_is_fixed():
    """Match-reserve chooses, and a plan is made afterwards."""
    desk, planner = desk_of(trials=1, epochs=2), Planner(backwards=True)
    policy = Planned(planner)
    assert started(policy, desk) == [("t1", 1)]
    finish(desk, "w2")
    assert started(policy, desk) == [("t1", 0)]
    finish(desk, "w1")
    plans = len(planner.shops)
    desk.schedule.roll_back("t1", 1)
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    assert started(policy, desk) == [("t1", 0)]
    assert (len(planner.shops), policy._plan) == (plans, None)
    finish(desk, "w1")
    assert started(policy, desk) == [("t1", 1)]
    assert len(planner.shops) == plans + 1


# --------------------------------------------------------------------------------------------------- solver


class Solver:
    """Answers when it is told to, with the plan that the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, backwards: bool) -> None:
        monkeypatch.setattr(exact_policy, "installed", lambda: True)
        monkeypatch.setattr(exact_policy, "solve", self.solve)
        self.backwards, self.asked, self.polls, self.ready = backwards, list[Shop](), 0, False
        self.questions = 0

    def solve(self, shop: Shop, *, seconds: float, hint: Timetable) -> tuple[Timetable, str]:
        assert seconds == exact_policy.SECONDS and hint.shop == shop
        self.asked.append(shop)
        return in_order(shop, backwards=self.backwards), "proven"

    def submit(self, job):
        result = job()
        self.questions += 1

        def poll() -> Timetable | None:
            self.polls += 1
            return result if self.ready else None

        return poll

    def policy(self, planner: Planner, **options) -> Exact:
        policy = Exact(self.submit, **options)
        policy._portfolio = planner
        return policy


def test_the_solver_is_asked_once_and_its_plan_followed_when_it_comes(monkeypatch):
    """Until then t1 goes first, as the portfolio planned."""
    solver, planner, desk = Solver(monkeypatch, backwards=True), Planner(), desk_of(trials=3)
    policy = solver.policy(planner)
    assert started(policy, desk) == [("t1", 0)]
    assert len(solver.asked) == 1 and solver.polls > 0
    finish(desk, "w1")
    assert started(policy, desk) == [("t2", 0), ("t1", 1)]
    assert len(solver.asked) == 1
    finish(desk, "w1", "w2")
    asked, solver.ready = solver.polls, True
    # What is left of the answer is no better than what is left of the plan.
    assert started(policy, desk) == [("t3", 0), ("t2", 1)]
    assert (solver.polls, policy._hint) == (asked + 1, None)
    finish(desk, "w1", "w2")
    started(policy, desk)
    assert (solver.polls, len(solver.asked)) == (asked + 1, 1)  # it has been answered


@pytest.mark.parametrize(("answer", "starts"), [(False, [("t1", 0)]), (True, [("t2", 1), ("t1", 0)])])
def test_a_better_answer_is_taken_and_an_equal_one_is_not(monkeypatch, answer, starts):
    """The portfolio lets the second worker wait for t1; the answer, if another, does not."""
    solver, desk = Solver(monkeypatch, backwards=False), desk_of()
    solver.ready = True
    if answer:
        monkeypatch.setattr(
            exact_policy, "solve", lambda shop, **_: (Timetable.of_order(shop, best_order(shop)), "proven")
        )
    policy = solver.policy(Planner())
    assert sorted(started(policy, desk)) == sorted(starts)


def best_order(shop: Shop) -> list[int]:
    """Both trials at once, each at its own worker first."""
    return sorted(range(len(shop.units)), key=lambda i: shop.units[i].config != shop.units[i].worker)


def test_an_equal_answer_leaves_the_plan_as_it_is(monkeypatch):
    """Backwards takes as long, and would begin with t2."""
    solver = Solver(monkeypatch, backwards=True)
    solver.ready = True
    assert started(solver.policy(Planner()), desk_of()) == [("t1", 0)]


def test_news_make_it_another_question(monkeypatch):
    solver, desk = Solver(monkeypatch, backwards=True), desk_of()
    policy = solver.policy(Planner())
    started(policy, desk)
    desk.schedule.add(trial(3, 1))
    finish(desk, "w1")
    started(policy, desk)
    assert solver.questions == 2
    solver.ready = True
    finish(desk, "w1", "w2")
    started(policy, desk)
    assert solver.questions == 2


def test_nobody_is_asked_without_a_plan(monkeypatch):
    solver, desk = Solver(monkeypatch, backwards=True), desk_of()
    started(solver.policy(Planner(), mode=Mode.NONE), desk)
    assert (solver.asked, solver.polls) == ([], 0)


def test_at_once_the_answer_is_there(monkeypatch):
    Solver(monkeypatch, backwards=True)
    timetable = in_order(Shop.of_times([[1.0]]))
    assert exact_policy.at_once(lambda: timetable)() is timetable
    assert sorted(started(Exact(), desk_of())) in ([("t1", 0), ("t2", 1)], [("t1", 1), ("t2", 0)])


def best(shop: Shop) -> Timetable:
    return Timetable.of_order(shop, best_order(shop))


def test_a_timetable_at_the_bound_is_the_answer_itself(monkeypatch):
    solver = Solver(monkeypatch, backwards=True)
    hint = best(Shop.of_times([[1.0, 1.0], [1.0, 1.0]]))
    assert exact_policy._question(hint)() is hint
    assert not solver.asked
    worse = in_order(hint.shop)
    assert exact_policy._question(worse)() == in_order(hint.shop, backwards=True)
    assert solver.asked == [hint.shop]


@pytest.mark.parametrize(("units", "asked"), [(LIMIT, True), (LIMIT + 1, False)])
def test_the_solver_is_asked_about_as_many_units_as_it_can_take(monkeypatch, units, asked):
    solver = Solver(monkeypatch, backwards=True)
    shop = Shop.of_times([[1.0] * (units - 1)])
    rows = Shop(2, shop.workers, (*shop.units, type(shop.units[0])(1, 0, 1.0)))
    hint = Timetable.of_order(rows, range(units))
    late = Timetable(rows, (*hint.starts[:-1], 2.0 * units))
    assert (exact_policy._question(late)() is late) is not asked
    assert bool(solver.asked) is asked
    assert (exact_policy.too_large(units, 1) is None) is asked


def pairs(timetable: Timetable) -> Sequence[tuple[int, int]]:
    order = sorted(range(len(timetable.starts)), key=timetable.starts.__getitem__)
    return [(timetable.shop.units[i].config, timetable.shop.units[i].worker) for i in order]


def test_only_the_first_epoch_is_like_the_answer():
    shop = Shop.of_times([[1.0], [1.0], [1.0]])
    planner = exact_policy._like(in_order(shop), lambda shop: in_order(shop, backwards=True))
    forwards = [(0, 0), (1, 0), (2, 0)]
    assert [pairs(planner(shop)) for _ in range(3)] == [forwards, forwards[::-1], forwards[::-1]]


def test_of_several_units_of_a_pair_the_last_ones_are_left():
    """Trial 0 visits the worker twice, at 2 and at 0; one of these is over, so it comes after trial 1."""
    unit = Shop.of_times([[1.0]]).units[0]
    other = type(unit)(1, 0, 1.0)
    answer = Timetable(Shop(2, 1, (unit, unit, other)), (2.0, 0.0, 1.0))
    planned = exact_policy._like(answer, in_order)(Shop(2, 1, (unit, other)))
    assert pairs(planned) == [(1, 0), (0, 0)]


def test_a_plan_is_extended_where_it_no_longer_covers_what_is_left(monkeypatch):
    covers, extended = True, []
    monkeypatch.setattr(Plan, "covers", lambda plan, state, laps=0: covers)
    policy, state = Planned(Planner()), initial_state([[1.0, 2.0], [2.0, 1.0]])
    policy._choose(state, RNG)
    monkeypatch.setattr(Plan, "extend", lambda plan, state: extended.append(state))
    policy._choose(state, RNG)
    assert extended == []
    covers = False
    policy._choose(state, RNG)
    assert extended == [state]
