"""Evaluations where workers can read only some validation partitions."""

from __future__ import annotations

import random

import pytest

from hopfleet.domain.unit import Unit, Work
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.dispatch import next_assignment
from hopfleet.scheduler.invariants import stall, validate
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment
from tests.helpers.schedule_desk import Desk


def desk_of(*valid, trials=1, partitions=1):
    """A desk whose workers read all training partitions and these validation partitions, of three."""
    desk = Desk(partitions=partitions, valid=3, trials=trials)
    for number, mine in enumerate(valid, 1):
        desk.schedule.join(f"w{number}", None, valid=mine)
    validate(desk.schedule)
    return desk


def next_of(schedule: Schedule) -> Assignment | None:
    """The next evaluation; this policy never starts a training unit."""
    return next_assignment(schedule, lambda schedule, rng: None, random.Random(0))


def evaluation(worker: str, trial: str, partition: int) -> Assignment:
    return Assignment(worker, Unit(trial, 1, partition, Work.EVALUATE))


def save(desk: Desk, name: str) -> None:
    desk[name].saved[desk[name].version] = None
    desk.schedule._refresh(desk[name])


def test_each_worker_evaluates_on_what_it_can_read():
    desk = desk_of((1,), (2, 0), (0,))
    desk.train("w1", "t1", 0)
    assert next_of(desk.schedule) == evaluation("w1", "t1", 1), "no hop"
    desk.start("w1", "t1", 1, evaluate=True)
    assert next_of(desk.schedule) is None, "the model is in the memory of w1 alone"
    save(desk, "t1")
    assert next_of(desk.schedule) == evaluation("w2", "t1", 0)
    desk.start("w2", "t1", 0, evaluate=True)
    assert next_of(desk.schedule) is None, "w3 cannot read partition 2"


def test_a_worker_starts_no_evaluation_that_it_cannot_read():
    desk = desk_of((1,))
    desk.train("w1", "t1", 0)
    with pytest.raises(InvariantBroken, match="t1 is evaluated on partition 0 in epoch 1, which w1 cannot read"):
        desk.start("w1", "t1", 0, evaluate=True)
    assert "w1 reads all, validation [1]" in stall(desk.schedule)
    assert "to evaluate on [0, 1, 2]" in stall(desk.schedule)


def test_what_the_holder_can_read_waits_for_it_while_others_can_train():
    desk = desk_of((0, 1), (1, 2), trials=2)
    desk.train("w1", "t1", 0)
    save(desk, "t1")
    desk.start("w1", "t2", 0)  # the holder is busy

    def train(schedule, rng):
        return Assignment("w2", Unit("t1", 9, 9))  # stands for any training unit

    first = next_assignment(desk.schedule, train, random.Random(0))
    assert first == evaluation("w2", "t1", 2), "the holder cannot read partition 2, so training comes later"
    desk.start("w2", "t1", 2, evaluate=True)
    desk.schedule.finish("w2", first.unit, 1.0, {})
    desk.schedule.ready["t9"] = desk["t2"]
    assert next_assignment(desk.schedule, train, random.Random(0)).unit.epoch == 9
    del desk.schedule.ready["t9"]
    assert next_of(desk.schedule) == evaluation("w2", "t1", 1), "there is nothing else to do"


def test_without_a_holder_any_worker_that_can_read_is_as_good():
    desk = desk_of((0,), (1,), (2,))
    desk.train("w1", "t1", 0)
    save(desk, "t1")
    desk.schedule.leave("w1")
    assert next_of(desk.schedule) == evaluation("w2", "t1", 1)


def test_only_workers_with_an_evaluation_to_come_are_told_nothing_ahead():
    desk = desk_of((0,), (1, 2), (), trials=4, partitions=2)
    desk.train("w1", "t1", 0, 1)
    for worker, name in (("w1", "t2"), ("w2", "t3"), ("w3", "t4")):
        desk.start(worker, name, 0)
    slots = desk.schedule.slots
    # t2 to t4 may go on where they are; without them, evaluations of t1 alone count.
    for slot in slots.values():
        slot.units = {}
    assert [desk.schedule.keeps(slots[worker]) for worker in ("w1", "w2", "w3")] == [True, True, False]


def test_a_worker_with_all_partitions_reads_all():
    desk = desk_of((0, 1, 2), (0,), (0, 1))
    assert desk.schedule.slots["w1"].valid is None
    desk.schedule.place_valid("w3", 2)
    assert [slot.valid for slot in desk.schedule.slots.values()] == [None, {0}, None]


def test_metrics_over_the_whole_set_are_for_workers_that_can_read_all_of_it():
    desk = desk_of((0, 1), None, trials=2)
    desk.train("w1", "t1", 0)
    save(desk, "t1")
    desk.schedule.gathers = True
    assert next_of(desk.schedule) == evaluation("w2", "t1", 0)
    with pytest.raises(InvariantBroken, match="which w1 cannot read"):
        desk.start("w1", "t1", 0, evaluate=True)
