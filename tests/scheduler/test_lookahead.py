"""Workers that know what comes next, where hops cost network: the state machine, policies and whole experiments."""

from __future__ import annotations

import random

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.dispatch import foreseen
from hopfleet.scheduler.fusion import Fusion, companions
from hopfleet.scheduler.invariants import validate
from hopfleet.scheduler.policies.auto import Auto
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.progress import Outcome, Save
from hopfleet.scheduler.shop_state import initial_state
from hopfleet.scheduler.shop_view import ShopView
from tests.helpers.schedule_desk import Desk
from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import Fault, Setting

# --------------------------------------------------------------------------------------------- the state machine


def finish(desk: Desk, trial: str, seconds: float) -> None:
    """The unit of a trial on w1 ends well."""
    desk.schedule.finish("w1", desk.schedule.slots["w1"].unit_of(trial), seconds, {})


def test_what_comes_next_begins_when_all_is_done():
    desk = Desk(None, trials=3, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1, 1)
    desk.schedule.start("w1", Unit("t2", 1, 0), 2, 1)
    desk.schedule.start("w1", Unit("t3", 1, 1), 3, lookahead=True)
    validate(desk.schedule)
    slot = desk.schedule.slots["w1"]
    assert (slot.unit, slot.told[Unit("t3", 1, 1)], slot.unit_of("t3"), slot.warm) == (
        Unit("t1", 1, 0),
        3,
        Unit("t3", 1, 1),
        0,
    )
    assert desk["t3"].trains_on == "w1" and "t3" not in desk.schedule.ready
    assert desk.schedule.accepts("w1", Unit("t3", 1, 1), 3) and desk.schedule.runs("w1", 3)
    finish(desk, "t2", 1.0)
    assert list(slot.units) == [Unit("t1", 1, 0)]
    desk.schedule.now = 5.0
    finish(desk, "t1", 1.0)
    validate(desk.schedule)
    assert (slot.units, slot.lookahead, slot.started, slot.warm) == ({Unit("t3", 1, 1): 3}, {}, 5.0, 1)
    assert not desk.schedule.idle
    finish(desk, "t3", 1.0)
    assert list(desk.schedule.idle) == ["w1"] and desk["t3"].visits == [1]


def test_reports_may_overtake_each_other():
    desk = Desk(None, trials=2, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, lookahead=True)
    finish(desk, "t2", 1.0)
    validate(desk.schedule)
    assert not desk.schedule.idle and desk["t2"].visits == [1]
    finish(desk, "t1", 1.0)
    assert list(desk.schedule.idle) == ["w1"]


def test_several_come_next_together():
    desk = Desk(None, trials=3, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, 2, lookahead=True)
    desk.schedule.start("w1", Unit("t3", 1, 1), 3, 2, lookahead=True)
    validate(desk.schedule)
    finish(desk, "t1", 1.0)
    slot = desk.schedule.slots["w1"]
    assert (list(slot.units), slot.flotilla, slot.lookahead_flotilla) == ([Unit("t2", 1, 1), Unit("t3", 1, 1)], 2, 0)


def test_one_thing_comes_next_and_only_after_another():
    desk = Desk(None, trials=3, valid=0)
    with pytest.raises(InvariantBroken, match="exclusive access: w1 runs nothing that t1 trains on partition 0"):
        desk.schedule.start("w1", Unit("t1", 1, 0), 1, lookahead=True)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, lookahead=True)
    with pytest.raises(InvariantBroken, match="exclusive access: w1 already runs: t2 trains on partition 1"):
        desk.schedule.start("w1", Unit("t3", 1, 1), 3, lookahead=True)


def test_what_a_lost_worker_was_to_do_next_waits_for_others():
    desk = Desk(None, trials=2, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w1", Unit("t2", 1, 1), 2, lookahead=True)
    assert desk.schedule.leave("w1") == {Unit("t1", 1, 0): 1}
    validate(desk.schedule)
    assert sorted(desk.schedule.ready) == ["t1", "t2"] and not desk.schedule.idle


def test_a_save_that_overtook_its_unit_counts_for_nothing():
    desk = Desk(None, valid=0)
    desk.start("w1", "t1", 0)
    desk.schedule.save("t1", 7, Save(1, False, "w1"))
    desk.schedule.premature(VersionRef("t1", 1, 7))
    validate(desk.schedule)
    assert (desk["t1"].saved, desk["t1"].saves, desk["t1"].stale) == ({}, {}, [(1, 7)])


# ------------------------------------------------------------------------------------------- who may look ahead


def test_a_trial_goes_on_where_it_owes_something_else():
    desk = Desk((0, 1), (2,), partitions=3, epochs=2)
    progress = desk["t1"]
    assert progress.goes_on(frozenset({0, 1}), 0) and progress.goes_on(None, 0)
    assert not progress.goes_on(frozenset({0}), 0)
    progress.forced.extend([0, 2, 1])
    assert progress.goes_on(frozenset({2}), 0) and not progress.goes_on(frozenset({1}), 0)


def test_the_end_of_an_epoch_is_waited_for():
    desk = Desk((0,), (1,), epochs=2)
    desk.train("w1", "t1", 0)
    progress = desk["t1"]
    assert progress.goes_on(frozenset({1}), 1), "it is evaluated there"
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    desk.train("w2", "t1", 1)
    assert progress.goes_on(frozenset({1}), None), "the next epoch begins there"
    desk.schedule.settle("t1", Outcome(TrialState.STOPPED))
    assert progress.goes_on(frozenset({0}), None), "it is saved there"


def test_after_the_last_evaluation_a_worker_is_free():
    desk = Desk(None, partitions=1, epochs=1)
    desk.train("w1", "t1", 0)
    slot = desk.schedule.slots["w1"]
    assert desk.schedule.keeps(slot), "no worker evaluates it yet"
    desk.start("w1", "t1", 0, evaluate=True)
    assert not desk["t1"].goes_on(None, None) and not desk.schedule.keeps(slot)


def test_what_is_urgent_or_here_comes_before_what_a_policy_would_choose():
    desk = Desk((0,), (1,), trials=4, valid=0)
    desk.train("w1", "t3", 0)
    desk.schedule.saved(VersionRef("t3", 1, 0), durable=False)
    desk.start("w2", "t1", 1)
    slots = {"w2": desk.schedule.slots["w2"]}

    def next_up() -> str:
        found = foreseen(desk.schedule, longest_remaining, random.Random(0), slots)
        assert found is not None and found.worker == "w2"
        return found.unit.trial

    assert next_up() == "t2"
    desk.schedule.prioritise("t4", 1)
    assert next_up() == "t4"
    assert list(desk.schedule.idle) == ["w1"]
    desk.schedule.prioritise("t4", 0)
    for trial in ("t2", "t3", "t4"):
        desk.schedule.settle(trial, Outcome(TrialState.FAILED))
    assert foreseen(desk.schedule, longest_remaining, random.Random(0), slots) is None


# ----------------------------------------------------------------------------------------- what policies see


def test_the_shop_state_of_workers_that_are_told_ahead():
    desk = Desk((0,), (1,), trials=3, valid=1, epochs=1)
    desk.start("w1", "t1", 0)
    desk.schedule.start("w1", Unit("t2", 1, 0), 2, lookahead=True)
    shop_view = ShopView()
    state = shop_view.look(desk.schedule)
    assert (state.runs, state.idle_workers, state.idle_trials) == ({0: 0}, {1}, {2})
    assert (state.worker_free, state.trial_free) == ([2.0, 0.0], [1.0, 2.0, 0.0])
    assert state.todo[1] == {1: [1]}
    with desk.schedule.supposing({"w1": desk.schedule.slots["w1"]}):
        state = shop_view.look(desk.schedule)
        assert (state.runs, state.idle_workers, state.worker_free) == ({}, {0}, [0.0, 0.0])


def test_an_evaluation_takes_no_time_in_the_shop_state_and_what_follows_does():
    desk = Desk((0,), (1,), trials=2, epochs=1)
    desk.train("w1", "t1", 0)
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    desk.train("w2", "t1", 1)
    desk.start("w2", "t1", 0, evaluate=True)
    desk.schedule.start("w2", Unit("t2", 1, 1), 2, lookahead=True)
    desk.schedule.now = 3.0
    state = ShopView().look(desk.schedule)
    assert state.runs == {1: -1}
    assert state.worker_free[1] == state.trial_free[1] > 3.0


def test_replicas_are_shared_out_ahead_too():
    desk = Desk((0, 1), (1, 2), (0, 2), partitions=3, trials=6, valid=0)
    policy = Balanced()
    desk.train("w1", "t1", 0)
    for worker, trial, partition in (("w1", "t2", 0), ("w2", "t3", 1), ("w3", "t4", 2)):
        desk.start(worker, trial, partition)
    assert policy(desk.schedule, random.Random(0)) is None
    slots = dict(desk.schedule.slots)
    with desk.schedule.supposing(slots):
        chosen = policy(desk.schedule, random.Random(0))
    assert chosen is not None and chosen.unit.trial in desk.schedule.ready
    desk.schedule.start(chosen.worker, chosen.unit, 9, lookahead=True)
    validate(desk.schedule)
    del slots[chosen.worker]
    with desk.schedule.supposing(slots):
        other = policy(desk.schedule, random.Random(0))
    assert other is not None and other.unit.trial in desk.schedule.ready


def test_no_plan_is_made_where_trials_stay():
    state = initial_state([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0]])
    policy = Auto()
    for sticky in (True, False):
        state.sticky = sticky
        policy._choose(state, random.Random(0))
        assert (policy._news is None) is sticky
    desk = Desk((0,), (1,), trials=2)
    desk.schedule.sticky = True
    assert ShopView().look(desk.schedule).sticky


def test_enough_groups_are_left_for_everybody():
    desk = Desk((0,), (1,), trials=16)
    fusion = Fusion(lambda config: None, most=99)
    slot, unit = desk.schedule.slots["w1"], Unit("t1", 1, 0)
    assert [len(companions(desk.schedule, slot, unit, fusion, 0, groups)) + 1 for groups in (1, 2, 4, 8)] == [
        8,
        4,
        2,
        1,
    ]


# ---------------------------------------------------------------------------------------- whole experiments


PINNED = ((0,), (1,), (2,), (3,))


@pytest.mark.parametrize("policy", ["auto", "match-reserve", "longest-remaining", "random"])
def test_whole_experiments(policy):
    setting = Setting(workers=PINNED, partitions=4, trials=8, epochs=3, sticky=True, lookahead=True, policy=policy)
    driver = Driver(setting).run()
    starts = [x for x in driver.messages if isinstance(x, m.RunUnit) and x.unit.trains]
    assert sum(x.lookahead for x in starts) > len(starts) / 3
    assert all(x.state is TrialState.COMPLETED for x in driver.ended.values())


@pytest.mark.parametrize("kind", ["lose", "zombie", "late", "raise", "deaf", "partial", "crash", "vanish", "pause"])
def test_whatever_goes_wrong(kind):
    faults = tuple(Fault(step, kind, 3 * step) for step in range(6, 60, 9))
    setting = Setting(
        workers=PINNED, partitions=4, trials=8, epochs=2, sticky=True, lookahead=True, steady=False, save_seconds=0.5,
        faults=faults, together=2,
    )  # fmt: skip
    driver = Driver(setting).run()
    assert kind in driver.happened
    assert any(isinstance(x, m.RunUnit) and x.lookahead for x in driver.messages)
