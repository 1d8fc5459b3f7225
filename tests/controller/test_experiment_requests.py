"""Requests for the whole experiment: more trials, other dimensions, pauses and workers."""

from __future__ import annotations

import pytest

from hopfleet.domain import messages as m
from hopfleet.search import Grid, Random
from tests.helpers.controller_desk import of
from tests.helpers.request_desk import RequestDesk

pytestmark = pytest.mark.usefixtures("few_saves")


def test_more_trials_and_more_epochs():
    desk = RequestDesk("w1", epochs=1, trials=2)
    text, follow = desk.granted("extend", trials=1, epochs=2)
    assert text == "1 more trial; all train until epoch 3"
    assert follow[0] == m.SearchExtended(1, 2)
    assert [(x.trial, x.epochs) for x in of(follow, m.TrialResumed)] == [("t0001", 3), ("t0002", 3)]
    assert of(follow, m.TrialAdded)[0].epochs == 3
    assert desk.refused("extend").startswith("extend by what?")
    assert desk.refused("extend", trials=-1).startswith("trials=-1")


def test_more_trials_alone_lengthen_nobody():
    desk = RequestDesk("w1")
    _, follow = desk.granted("extend", trials=1)
    assert not of(follow, m.TrialResumed)
    assert len(of(follow, m.TrialAdded)) == 1


def test_other_dimensions():
    desk = RequestDesk("w1")
    text, follow = desk.granted("extend", trials=2, space={"x": "uniform(5, 6)"})
    assert text == "2 more trials; x changed"
    assert all(5 <= x.config["x"] <= 6 for x in of(follow, m.TrialAdded))
    assert desk.refused("extend", space={"y": 1}) == "y=1: the space has no 'y'; it has x"
    assert "must be plain numbers and lists" in desk.refused("extend", space={"x": "uniform(low, 6)"})


def test_a_search_that_cannot_be_extended_says_so():
    class Fixed(Random):
        extend, check_extension = Grid.extend, Grid.check_extension

    desk = RequestDesk("w1", search=Fixed(1, 1))
    assert "a grid has one trial per point" in desk.refused("extend", trials=1)


def test_all_pause_and_go_on():
    desk = RequestDesk("w1", trials=2)
    assert desk.refused("proceed") == "the experiment is not paused"
    desk.granted("pause")
    assert not of(desk.finished(), m.RunUnit)
    assert desk.refused("pause") == "the experiment is paused already"
    assert of(desk.granted("proceed")[1], m.RunUnit)


def test_workers_come():
    desk = RequestDesk("w1", "w2")
    assert desk.refused("workers", count=2) == "there are 2 workers already"
    assert desk.refused("workers", count=0) == "count=0: must be an integer of at least 1"
    assert desk.granted("workers", count=4) == ("from 2 to 4 workers", [m.AddWorkers(2)])
    assert desk.ask("workers", by=1) == []  # it is answered when they are there
    desk.tell(m.WorkerJoined("w3"))
    assert m.AddWorkers(1) in desk.tell(m.WorkerJoined("w4"))


def test_workers_go_when_they_are_done_those_without_work_first():
    desk = RequestDesk("w1", "w2", "w3", trials=2)
    _, follow = desk.granted("workers", count=1)
    assert follow == [m.WorkerRetired("w3"), m.WorkerRetired("w2"), m.ReleaseWorker("w3")]
    follow = desk.finished("w2")
    assert m.ReleaseWorker("w2") in follow
    assert not of(follow, m.RunUnit)
    desk.tell(m.WorkerLost("w2", "no longer wanted"))
    assert list(desk.controller.schedule.idle) == []


def test_nobody_waits_for_the_successor_of_a_retired_worker():
    desk = RequestDesk("w1", "w2", trials=2)
    desk.granted("workers", count=1)
    desk.granted("stop", trial="t0002", now=True)
    desk.tell(m.WorkerLost("w2", "killed"))
    assert desk.refused("workers", count=1) == "there is 1 worker already"


def test_a_request_for_workers_waits_for_the_successor_of_a_stopped_one():
    desk = RequestDesk("w1", "w2", trials=2)
    desk.granted("stop", trial="t0002", now=True)
    desk.tell(m.WorkerLost("w2", "killed", replaced=True))
    assert desk.ask("workers", count=1) == []
    assert of(desk.tell(m.WorkerJoined("w3")), m.RequestAnswered)


def test_what_only_a_leaving_worker_has_is_placed_before_it_goes():
    desk = RequestDesk()
    desk.tell(m.RunStarted("test", workers=2))
    desk.tell(m.WorkerJoined("w1", partitions=(0,)))
    desk.tell(m.WorkerJoined("w2", partitions=(1,)))
    _, steps = desk.granted("workers", count=1)
    assert m.WorkerRetired("w2") in steps and m.PlacePartition("w1", 1) in steps
    assert m.ReleaseWorker("w2") not in steps
    follow = desk.tell(m.PartitionPlaced("w1", 1))
    assert m.ReleaseWorker("w2") in follow
    assert desk.controller.schedule.replicas(1) == 1


def test_a_run_of_retired_workers_drains():
    desk = RequestDesk("w1", "w2", trials=1)
    desk.granted("workers", count=1)
    desk.tell(m.RequestMade("drain"))
    follow = desk.finished()
    assert m.Finish(complete=False) in [*follow, *desk.saved(1)]
