"""The policy fleet: trials visit the same rows soon after one another, in groups that end together."""

from __future__ import annotations

import random

import pytest

from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.fusion import Fusion, companions
from hopfleet.scheduler.policies.fleet import fleet
from hopfleet.scheduler.slots import Assignment
from tests.helpers.schedule_desk import Desk

ANY = Fusion(lambda config: None, memory=100, size=1)


def choice(desk: Desk) -> Assignment:
    found = fleet(desk.schedule, random.Random(0))
    assert found is not None
    return found


def train(desk: Desk, trial: str, *partitions: int, seconds: float = 1.0) -> None:
    """Train an epoch of a trial on w1."""
    desk.train("w1", trial, *partitions, seconds=seconds)
    desk.schedule.end_epoch(trial, None)


def timed(desk: Desk, *seconds: float) -> None:
    """Let the trials have these measured unit times."""
    for number, value in enumerate(seconds, 1):
        desk[f"t{number}"].seconds, desk[f"t{number}"].measured = value, 1


def started(desk: Desk) -> list[list[str]]:
    """Start groups until no worker is idle; return the trials of each."""
    groups = []
    while desk.schedule.idle:
        found = choice(desk)
        slot = desk.schedule.slots[found.worker]
        units = [
            found.unit,
            *companions(desk.schedule, slot, found.unit, ANY, together=found.together),
        ]
        for attempt, unit in enumerate(units, 1):
            desk.schedule.start(found.worker, unit, attempt, 1)
        groups.append([unit.trial for unit in units])
    return groups


def test_groups_take_equal_times():
    desk = Desk(None, None, trials=6, epochs=5)
    timed(desk, 1, 5, 2, 4, 3, 1)
    assert started(desk) == [["t2", "t5"], ["t4", "t1", "t3", "t6"]]  # 8 seconds each


def test_companions_by_number_would_not():
    desk = Desk(None, None, trials=6, epochs=5)
    timed(desk, 1, 5, 2, 4, 3, 1)
    unit = choice(desk).unit
    found = companions(desk.schedule, desk.schedule.slots["w1"], unit, ANY)
    assert [each.trial for each in found] == ["t1", "t3", "t4"][: len(found)]


def test_a_fast_worker_takes_a_larger_group():
    desk = Desk(None, None, trials=8, epochs=9)
    for at in range(2):
        for number in range(1, 9):
            for worker, seconds in (("w1", 1.0), ("w2", 3.0)):
                desk.schedule.estimates.measured(f"t{number}", number, worker, at, seconds)
    timed(desk, *[2.0] * 8)
    assert [len(group) for group in started(desk)] == [6, 2]


def test_workers_prepare_different_rows_and_then_exchange_them():
    desk = Desk(None, None, partitions=4, valid=0, trials=4, epochs=9)
    first = choice(desk)
    assert first.unit == Unit("t1", 1, 0) and first.together == ("t2",)
    desk.start("w1", "t1", 0)
    second = choice(desk)
    assert second.unit.partition == 1
    desk.schedule.start("w2", Unit("t3", 1, 1), 2)
    for worker, trial in (("w1", "t1"), ("w2", "t3")):
        desk.schedule.finish(worker, desk.schedule.slots[worker].unit_of(trial), 1.0, {})
        desk.schedule.saved(VersionRef(trial, 1, 0), durable=False)
    # t2, t3 and t4 owe partition 0, which w1 has read.
    found = choice(desk)
    assert (found.worker, found.unit.partition) == ("w1", 0) and found.unit.trial != "t1"


def test_what_other_epochs_have_prepared_does_not_count():
    desk = Desk(None, partitions=2, valid=0, trials=3, epochs=9)
    train(desk, "t1", 1, 0)
    train(desk, "t2", 1, 0)
    # The first epoch is the oldest; both of its partitions are prepared, and partition 0 is warm.
    assert choice(desk).unit == Unit("t3", 1, 0)
    train(desk, "t3", 0, 1)
    # In the second epoch none is.
    assert choice(desk).unit.epoch == 2 and choice(desk).unit.partition == 0


def test_a_trial_that_would_end_last_goes_ahead():
    desk = Desk(None, partitions=2, valid=0, trials=4, epochs=3)
    desk.schedule.join("w2", None)
    train(desk, "t4", 0, 1, seconds=9.0)
    desk.schedule.saved(VersionRef("t4", 2, 0), durable=False)
    timed(desk, 1, 1, 1)
    found = choice(desk)
    assert found.unit.trial == "t4" and found.unit.epoch == 2 and found.together == ()


@pytest.mark.parametrize("memory", [1, 2, 100])
def test_memory_limits_what_the_policy_wants(memory):
    desk = Desk(None, trials=4, epochs=3)
    found = choice(desk)
    fusion = Fusion(lambda config: None, memory=memory, size=1)
    units = companions(desk.schedule, desk.schedule.slots["w1"], found.unit, fusion, together=found.together)
    assert len(units) == min(memory, 4) - 1


def test_no_idle_worker():
    desk = Desk(None, trials=2)
    desk.start("w1", "t1", 0)
    assert fleet(desk.schedule, random.Random(0)) is None


def test_a_worker_that_can_take_nothing_is_passed_over():
    desk = Desk((0,), (1,), trials=1, valid=0, epochs=3)
    desk.train("w1", "t1", 0)
    # The model is on w1 alone, which has nothing left for it; w2 has.
    assert fleet(desk.schedule, random.Random(0)) is None
    desk.schedule.saved(VersionRef("t1", 1, 0), durable=False)
    assert choice(desk) == Assignment("w2", Unit("t1", 1, 1), ())
