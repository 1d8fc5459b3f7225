"""Requests in edge cases: workers about to join, runs about to begin, models that no worker holds."""

from __future__ import annotations

import pytest

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.space import uniform
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import Random
from hopfleet.search.base import Goal


class Steering:
    """A controller and its messages; ``train`` reports whatever runs on a worker as finished."""

    def __init__(self, *workers, trials=1, epochs=2, partitions=2, fixed=False, seed=0, started=None):
        search = Random(trials, epochs)
        search.setup({"x": uniform(0, 1)}, seed=seed, goal=Goal("train_loss", "min"))
        self.controller = Controller(
            *(search, POLICIES["longest-remaining"]()),
            partitions=partitions,
            valid_partitions=0,
            seed=seed,
            fixed_order=fixed,
        )
        self.clock = 0.0
        self.messages = []
        self.tell(started or m.RunStarted("test"))
        for worker in workers:
            self.tell(m.WorkerJoined(worker))

    def tell(self, event):
        follow = self.controller.handle(event)
        self.messages += [event, *follow]
        validate(self.controller.schedule)
        for message in follow:
            if isinstance(message, m.CopyVersion):
                follow = [*follow, *self.tell(m.VersionSaved(message.ref, True, "", 0))]
        return follow

    def ask(self, request, **arguments):
        return self.tell(m.RequestMade(request, arguments, "ada", 1))

    def train(self, worker="w1", durable=True):
        slot = self.controller.schedule.slots[worker]
        unit, version = slot.unit, self.controller.schedule.trials[slot.unit.trial].version + 1
        where = (worker, unit, slot.attempt)
        self.clock += 1.0
        sums = {"train_loss": RowSum.of(1.0, 1)}
        follow = self.tell(m.UnitFinished(*where, version, self.clock - 1.0, self.clock, sums=sums))
        for save in [message for message in follow if isinstance(message, m.SaveVersion)]:
            saved = m.VersionSaved(save.ref, save.durable, "", 0)
            follow = [*follow, *self.tell(saved)]
        return follow


def answers(messages):
    return [message.text for message in messages if isinstance(message, m.RequestAnswered)]


def test_the_number_of_workers_is_settled_when_all_have_come():
    steering = Steering(started=m.RunStarted("test", workers=2))
    assert answers(steering.ask("workers", count=3)) == []
    assert answers(steering.tell(m.WorkerJoined("w1"))) == []
    follow = steering.tell(m.WorkerJoined("w2"))
    assert answers(follow) == ["from 2 to 3 workers"]
    assert m.AddWorkers(1) in follow
    assert answers(steering.ask("workers", by=1)) == []
    assert answers(steering.tell(m.WorkerJoined("w3"))) == ["from 3 to 4 workers"]


def test_a_run_is_not_finished_while_a_request_has_no_answer():
    steering = Steering("w1", epochs=1)
    steering.train()
    steering.train()
    assert steering.tell(m.RunStarted("test", workers=2, requests=2)) == []
    assert (
        steering.ask("workers", count=1)
        == steering.ask("extend", epochs=1)
        == steering.tell(m.WorkerJoined("w1"))
        == []
    )
    follow = steering.tell(m.WorkerJoined("w2"))
    assert answers(follow) == ["from 2 to 1 workers", "all train until epoch 2"]
    assert m.ReleaseWorker("w2") in follow
    steering.train()
    steering.train()
    assert steering.controller.finished


def test_a_worker_that_was_stopped_is_replaced_before_others_are_counted():
    steering = Steering("w1", "w2", trials=2)
    stopped = steering.ask("stop", trial="t0001", now=True)
    (command,) = [message for message in stopped if isinstance(message, m.StopUnit)]
    steering.tell(m.WorkerLost(command.worker, "its process ended", replaced=True))
    assert answers(steering.ask("workers", count=2)) == []
    assert answers(steering.tell(m.WorkerJoined("w3"))) == ["there are 2 workers already"]


def test_a_run_answers_the_requests_that_waited_for_it_before_it_is_finished():
    steering = Steering("w1", epochs=1)
    steering.train()
    steering.train()
    assert steering.controller.finished
    assert steering.tell(m.RunStarted("test", workers=1, requests=2)) == []
    assert not steering.controller.finished
    assert m.Finish(complete=True) not in steering.ask("extend", trials=0)
    follow = steering.ask("resume", trial="t0001", epochs=2)
    assert answers(follow) == ["t0001 goes on from epoch 1 until epoch 2"]
    assert steering.tell(m.RunStarted("test", workers=1, requests=1)) == []
    steering.ask("stop", trial="t0001")
    assert steering.controller.finished


def test_a_new_run_is_not_paused():
    steering = Steering("w1")
    steering.ask("pause")
    assert steering.controller.held
    steering.tell(m.RunStarted("test"))
    assert not steering.controller.held


@pytest.mark.parametrize("seed", range(6))
def test_a_clone_from_the_middle_of_an_epoch_visits_each_partition_once(seed):
    """In a fixed order too: the clone's own order, without what its parent has visited in that epoch."""
    steering = Steering("w1", partitions=5, epochs=2, fixed=True, seed=seed)
    schedule = steering.controller.schedule
    for _ in range(7):
        steering.train()
    steering.ask("stop", trial="t0001")
    steering.train()
    assert "t0001" in schedule.parked
    assert schedule.parked["t0001"].saved[8]
    steering.tell(m.RunStarted("test", requests=1))
    steering.ask("clone", trial="t0001", warm=True, epochs=3)
    steering.tell(m.WorkerJoined("w1"))
    while not steering.controller.finished:
        steering.train()
    visits = schedule.parked["t0002"].visits
    assert len(visits) == 15
    assert [sorted(visits[start : start + 5]) for start in (0, 5, 10)] == [list(range(5))] * 3
    validate_history(steering.messages, partitions=5)
