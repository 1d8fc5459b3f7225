"""Flotillas that go on where they are: the only worker knows the next partition before it has finished the last one."""

from __future__ import annotations

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.invariants import validate, validate_history
from tests.helpers.schedule_desk import Desk
from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import Fault, Setting

# --------------------------------------------------------------------------------------------- the state machine


def together(desk: Desk, partition: int, attempt: int, *, lookahead: bool = False) -> None:
    for number in (1, 2):
        unit = Unit(f"t{number}", 1, partition)
        desk.schedule.start("w1", unit, attempt + number, attempt, lookahead=lookahead)
        validate(desk.schedule)


def test_a_trial_is_told_what_follows_its_own_unit():
    desk = Desk(None, trials=2, partitions=3, valid=0)
    together(desk, 0, 10)
    together(desk, 2, 20, lookahead=True)
    slot = desk.schedule.slots["w1"]
    for number in (1, 2):
        desk.schedule.finish("w1", Unit(f"t{number}", 1, 0), 1.0, {})
        validate(desk.schedule)
        assert desk[f"t{number}"].trains_on == "w1" and not desk.schedule.ready
    assert (list(slot.units), slot.flotilla, slot.lookahead) == ([Unit("t1", 1, 2), Unit("t2", 1, 2)], 20, {})
    for number in (1, 2):
        desk.schedule.finish("w1", Unit(f"t{number}", 1, 2), 1.0, {})
    validate(desk.schedule)
    assert [desk[trial].visits for trial in ("t1", "t2")] == [[0, 2], [0, 2]]
    assert sorted(desk.schedule.ready) == ["t1", "t2"] and list(desk.schedule.idle) == ["w1"]


@pytest.mark.parametrize("end", ["abandon", "give_up"])
def test_nothing_follows_a_unit_that_did_not_happen(end):
    desk = Desk(None, trials=2, partitions=3, valid=0)
    together(desk, 0, 10)
    together(desk, 1, 20, lookahead=True)
    getattr(desk.schedule, end)("w1", "t1")
    validate(desk.schedule)
    assert desk["t1"].trains_on is None and desk["t1"].visits == []
    assert not desk.schedule.accepts("w1", Unit("t1", 1, 1), 21), "a report of what was to follow comes too late"
    desk.schedule.finish("w1", Unit("t2", 1, 0), 1.0, {})
    assert list(desk.schedule.slots["w1"].units) == [Unit("t2", 1, 1)]
    desk.schedule.abandon("w1", "t2")
    assert sorted(desk.schedule.ready) == ["t1", "t2"] and desk["t2"].visits == [0]


def test_a_lost_worker_had_not_begun_what_was_to_follow():
    desk = Desk(None, trials=2, partitions=3, valid=0)
    together(desk, 0, 10)
    together(desk, 1, 20, lookahead=True)
    assert desk.schedule.leave("w1") == {Unit("t1", 1, 0): 11, Unit("t2", 1, 0): 12}
    validate(desk.schedule)
    assert sorted(desk.schedule.ready) == ["t1", "t2"]


@pytest.mark.parametrize(
    ("worker", "unit", "words"),
    [
        ("w1", Unit("t1", 1, 0), "completeness: t1 trains on partition 0 in epoch 1 is not owed"),
        ("w1", Unit("t1", 2, 1), "completeness: t1 trains on partition 1 in epoch 2 is not owed"),
        ("w2", Unit("t1", 1, 1), "isolation: t1 trains on partition 1 in epoch 1, but it runs already"),
    ],
)
def test_a_trial_goes_on_in_its_epoch_and_at_its_worker(worker, unit, words):
    desk = Desk(None, None, trials=2, valid=0)
    desk.schedule.start("w1", Unit("t1", 1, 0), 1)
    desk.schedule.start("w2", Unit("t2", 1, 0), 2)
    with pytest.raises(InvariantBroken, match=words):
        desk.schedule.start(worker, unit, 3, lookahead=True)


def test_a_fixed_order_is_kept():
    desk = Desk(None, partitions=3, valid=0)
    progress = desk["t1"]
    assert progress.owed_after(1, None) == {0, 2} and progress.owed_after(1, frozenset({1, 2})) == {2}
    progress.forced.extend([1, 2, 0, 2])
    assert progress.owed_after(1, None) == {2}
    for partition in (1, 2):
        progress.visit(partition)
    assert progress.owed_after(0, None) == set(), "the order goes on in the next epoch"


# ---------------------------------------------------------------------------------------- whole experiments

SETTING = {"partitions": 4, "trials": 4, "epochs": 3, "together": 4, "brisk": True}


@pytest.mark.parametrize("policy", ["auto", "match-reserve", "longest-remaining", "random"])
@pytest.mark.parametrize("fixed", [False, True])
def test_whole_experiments(policy, fixed):
    driver = Driver(Setting(**SETTING, policy=policy, fixed=fixed)).run()
    starts = [x for x in driver.messages if isinstance(x, m.RunUnit) and x.unit.trains]
    assert fixed or sum(x.lookahead for x in starts) >= len(starts) / 4, "in a fixed order, each has its own"
    assert all(x.state is TrialState.COMPLETED for x in driver.ended.values())
    validate_history(driver.messages, 4)


@pytest.mark.parametrize("kind", ["lose", "late", "raise", "deaf", "partial", "crash", "vanish", "pause", "forget"])
def test_whatever_goes_wrong(kind):
    faults = tuple(Fault(step, kind, 3 * step) for step in range(6, 60, 9))
    driver = Driver(Setting(**SETTING, steady=False, save_seconds=0.5, faults=faults)).run()
    assert kind in driver.happened
    assert any(isinstance(x, m.RunUnit) and x.lookahead for x in driver.messages)
