"""The fifth invariant: while work remains, something runs or is coming, whatever the policy does."""

from __future__ import annotations

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.unit import Unit
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.slots import Assignment
from hopfleet.search import Random
from hopfleet.search.base import Goal
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver
from tests.helpers.controller_desk import Desk, of


def run(policy, *, partitions, trials=4):
    """Run an experiment on simulated workers that read these partitions; return its messages."""
    search = Random(trials=trials, max_epochs=2)
    search.setup({"x": 1}, seed=0, goal=Goal("train_loss", "min"))
    controller = Controller(search, policy, partitions=3, valid_partitions=0)
    backend = Simulated(partitions=partitions)
    messages = []
    driver = simulated_driver(controller, backend, journal=lambda now, more: messages.extend(more))
    backend.start(None, 3)
    assert driver.run([m.RunStarted("test", 3)])
    return messages


@pytest.mark.parametrize("partitions", [None, [[0], [1], [2]], [[0, 1], [1, 2], [2, 0]]])
def test_a_policy_that_waits_for_nothing_is_overruled_and_told_once(partitions):
    messages = run(lambda schedule, rng: None, partitions=partitions)
    (stall,) = of(messages, m.RunStalled)
    assert stall.overruled and "work remains, nothing runs and nothing is coming: 3 workers (w1 reads" in stall.text
    assert (
        "4 trials (t0001 owes" in stall.text and "of epoch 1/2, version 0 held by None, saved [], ready" in stall.text
    )
    assert len(of(messages, m.UnitFinished)) == 4 * 2 * 3 and messages[-1] == m.Finish(complete=True)


def test_a_policy_may_wait_for_what_runs():
    """Only one unit at a time is slow, but it is no stall."""

    def one_by_one(schedule, rng):
        busy = any(slot.units for slot in schedule.slots.values())
        return None if busy else POLICIES["longest-remaining"]()(schedule, rng)

    assert not of(run(one_by_one, partitions=None), m.RunStalled)


def test_a_policy_may_wait_for_a_model_that_is_being_saved():
    desk = Desk("w1", "w2", partitions=4, valid=0)

    def only_w2(schedule, rng):
        for slot in schedule.idle.values():
            for progress in schedule.ready.values():
                if slot.worker == "w2" and schedule.options(progress, slot):
                    return Assignment("w2", Unit(progress.trial.id, progress.epoch, min(progress.todo)))
        return None

    object.__setattr__(desk.controller.dispatcher, "policy", only_w2)
    (save,) = desk.finished()
    assert isinstance(save, m.SaveVersion)  # w1 could go on, and nothing runs
    (start,) = of(desk.saved(1, durable=False), m.RunUnit)
    assert start.worker == "w2"


def test_a_stall_without_remedy_is_told_once():
    """A trial waits for a save that the controller has forgotten."""
    desk = Desk("w1", partitions=2, valid=1, epochs=1)
    desk.finished()
    desk.finished()
    desk.controller.restore([m.TrialStopped("t0001", "test")])
    desk.evaluated(loss=1.0)
    assert desk["t0001"].saves and not desk.controller.finished and not of(desk.messages, m.RunStalled)
    desk["t0001"].saves.clear()
    desk["t0001"].saved.clear()
    logged = m.RecordLogged("w1", "t0001", "any event")
    (stall,) = desk.tell(logged)
    assert stall == m.RunStalled(stall.text, overruled=False) and "not ready" not in stall.text
    assert desk.tell(logged) == [], "told once"
    desk.controller.restore([m.RunStarted("test", 1)])
    assert not desk.controller.state.stalled, "a resumed run tells again"


def test_a_validation_partition_that_no_worker_can_read_is_fetched_and_otherwise_told():
    desk = Desk(valid=3)
    desk.tell(m.RunStarted("test", 2))
    desk.tell(m.WorkerJoined("w1", valid=(0,)))
    assert not of(desk.messages, m.PlacePartition), "w2 may bring the others"
    follow = desk.tell(m.WorkerJoined("w2", valid=(1,)))
    assert of(follow, m.PlacePartition) == [m.PlacePartition("w1", 2, valid=True)]
    assert desk.tell(m.PartitionPlaced("w1", 2)) == [], "a training partition that was not asked for"
    follow = desk.tell(m.PartitionUnavailable("w1", 2, "no room", valid=True))
    assert of(follow, m.PlacePartition, m.PartitionsMissing) == [m.PlacePartition("w2", 2, valid=True)]
    follow = desk.tell(m.PartitionUnavailable("w2", 2, "no room", valid=True))
    assert of(follow, m.PlacePartition, m.PartitionsMissing) == [m.PartitionsMissing((), (2,))]
    worker = next(slot.worker for slot in desk.controller.schedule.slots.values() if slot.unit)
    desk.finished(worker), desk.finished(worker)
    assert not of(desk.messages, m.RunStalled)
    follow = desk.tell(m.WorkerJoined("w3"))
    assert of(follow, m.PlacePartition, m.PartitionsMissing) == [m.PartitionsMissing(())]


def test_validation_partitions_of_a_lost_worker_are_evaluated_elsewhere():
    desk = Desk(partitions=1, epochs=1)
    desk.tell(m.RunStarted("test", 2))
    desk.tell(m.WorkerJoined("w1", valid=()))
    desk.tell(m.WorkerJoined("w2"))
    desk.finished("w1")
    assert desk.controller.schedule.slots["w2"].unit is None, "the model is on w1 alone"
    (unit,) = of(desk.saved(1), m.RunUnit)
    assert (unit.worker, unit.unit.partition, unit.unit.trains) == ("w2", 0, False)
    follow = desk.tell(m.WorkerLost("w2", "gone"))
    assert of(follow, m.PlacePartition, m.RunUnit) == [m.PlacePartition("w1", 0, valid=True)]
    (unit,) = of(desk.tell(m.PartitionPlaced("w1", 0, valid=True)), m.RunUnit)
    assert (unit.worker, unit.unit.trains) == ("w1", False)
    assert desk.evaluated("w1", loss=0.5)[-1] == m.Finish(complete=True)


def test_a_worker_that_retires_waits_until_its_validation_partitions_are_elsewhere():
    desk = Desk(trials=2, valid=2)
    desk.tell(m.RunStarted("test", 2))
    desk.tell(m.WorkerJoined("w1", valid=(0,))), desk.tell(m.WorkerJoined("w2", valid=(1,)))
    desk.tell(m.RequestMade("workers", {"count": 1}, number=1))
    assert desk.messages[-2:] == [m.WorkerRetired("w2"), m.PlacePartition("w1", 1, valid=True)]
    assert not of(desk.finished("w2"), m.ReleaseWorker)
    assert of(desk.tell(m.PartitionPlaced("w1", 1, valid=True)), m.ReleaseWorker) == [m.ReleaseWorker("w2")]


def test_an_evaluation_that_no_worker_can_do_is_a_stall():
    desk = Desk("w1", partitions=1)
    desk.controller.schedule.slots["w1"].valid = frozenset()  # and no message says so
    desk.finished()
    assert not of(desk.messages, m.RunStalled), "the model is being saved"
    (stall,) = of(desk.saved(1), m.RunStalled)
    assert not stall.overruled and "w1 reads all, validation []" in stall.text and "to evaluate on [0]" in stall.text


def test_a_stall_is_told_when_all_that_leave_have_left():
    desk = Desk("w1", "w2", partitions=1)
    desk.tell(m.RequestMade("workers", {"count": 1}, number=1))
    (gone,) = of(desk.messages, m.ReleaseWorker)
    for slot in desk.controller.schedule.slots.values():
        slot.valid = frozenset()  # and no message says so
    desk.finished("w1")
    assert gone.worker == "w2" and not of(desk.saved(1), m.RunStalled)
    assert of(desk.tell(m.WorkerLost("w2", "retired")), m.RunStalled)
