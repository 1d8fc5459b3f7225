"""Where partitions are placed as workers come and go, one event at a time."""

from __future__ import annotations

import pytest

from hopfleet.domain import messages as m
from hopfleet.domain.version_ref import VersionRef
from tests.helpers.controller_desk import Desk, of

pytestmark = pytest.mark.usefixtures("few_saves")


# ---------------------------------------------------------------------------------------------- partitions


def pinned(*workers, about_to_join=0, **options):
    """Workers that can read some partitions only; w1 is the first."""
    desk = Desk(**options)
    desk.tell(m.RunStarted("test", workers=len(workers) + about_to_join))
    for number, partitions in enumerate(workers, 1):
        desk.joined = desk.tell(m.WorkerJoined(f"w{number}", partitions=partitions))
    return desk


def test_nothing_is_placed_while_workers_are_about_to_join():
    desk = pinned((0,), (1,))
    assert not of(desk.messages, m.PlacePartition, m.PartitionsMissing)
    follow = desk.tell(m.WorkerLost("w2", "killed", replaced=True))
    assert not of(follow, m.PlacePartition, m.PartitionsMissing)
    assert not of(desk.tell(m.WorkerJoined("w3", partitions=(1,))), m.PlacePartition)


def test_a_worker_that_will_not_join_is_not_waited_for():
    desk = pinned((0,), about_to_join=1)
    assert not of(desk.messages, m.PlacePartition, m.PartitionsMissing)
    follow = desk.tell(m.WorkerUnavailable("its node was lost"))
    assert of(follow, m.PlacePartition) == [m.PlacePartition("w1", 1)]
    # A worker that joins in its place is welcome.
    desk.tell(m.WorkerJoined("w2", partitions=(1,)))
    assert desk.controller.schedule.starting == 0


def test_partitions_of_a_worker_that_is_gone_are_placed_elsewhere():
    desk = pinned((0,), (1,))
    follow = desk.tell(m.WorkerLost("w2", "killed"))
    assert of(follow, m.PlacePartition) == [m.PlacePartition("w1", 1)]
    assert not of(follow, m.PartitionsMissing)
    assert desk.controller.refuses(m.PartitionPlaced("w1", 0))
    desk.tell(m.PartitionPlaced("w1", 1))
    assert desk.controller.refuses(m.PartitionPlaced("w1", 1))  # once is enough
    assert desk.controller.schedule.slots["w1"].partitions == {0, 1}


def test_a_partition_that_nobody_can_get_is_named_and_awaited():
    desk = pinned((0,), (1,))
    desk.tell(m.WorkerLost("w2", "killed"))
    follow = desk.tell(m.PartitionUnavailable("w1", 1, "no room"))
    assert follow == [m.PartitionsMissing((1,))]
    assert desk.controller.missing == (1,)
    desk.finished()
    assert not of(desk.messages[-3:], m.Finish)  # it waits
    follow = desk.tell(m.WorkerJoined("w3", partitions=(1,)))
    assert of(follow, m.PartitionsMissing) == [m.PartitionsMissing(())]


def test_who_was_to_get_a_partition_and_is_lost_is_not_waited_for():
    desk = pinned((0,), (1,), (0,))
    desk.tell(m.WorkerLost("w2", "killed"))
    told = of(desk.messages, m.PlacePartition)[-1].worker
    follow = desk.tell(m.WorkerLost(told, "killed"))
    (again,) = of(follow, m.PlacePartition)
    assert again.partition == 1 and again.worker != told


def test_a_worker_without_partitions_gets_copies():
    desk = pinned((0,), (1, 2), partitions=3)
    follow = desk.tell(m.WorkerJoined("w3", partitions=()))
    assert of(follow, m.PlacePartition) == [m.PlacePartition("w3", 1), m.PlacePartition("w3", 2)]


def test_a_partition_may_come_to_a_worker_that_is_about_to_go():
    desk = pinned((0,), (1,), (0, 1))
    desk.tell(m.WorkerJoined("w4", partitions=()))
    desk.tell(m.RequestMade("workers", {"count": 3}, "ada", 1))
    gone = of(desk.messages, m.WorkerRetired)[-1].worker
    assert gone == "w4"
    (placed, *_) = [x for x in of(desk.messages, m.PlacePartition) if x.worker == gone]
    before = desk.controller.schedule.replicas(placed.partition)
    desk.tell(m.PartitionPlaced(gone, placed.partition))
    assert desk.controller.schedule.replicas(placed.partition) == before


def test_a_trial_that_stayed_is_ready_for_what_its_worker_got():
    """The model is on w1 alone, which has nothing for it until a partition is placed there."""
    desk = pinned((0,), (1,))
    desk.finished()
    desk.tell(m.WorkerLost("w2", "killed"))
    follow = desk.tell(m.PartitionPlaced("w1", 1))
    assert [(x.worker, x.unit.partition) for x in of(follow, m.RunUnit)] == [("w1", 1)]


def test_it_stands_while_a_person_or_a_disk_wants_it_to():
    desk = Desk("w1")
    assert not desk.controller.stands
    desk.tell(m.RequestMade("pause"))
    assert desk.controller.stands
    desk.tell(m.RequestMade("proceed"))
    assert not desk.controller.stands
    desk.finished()
    desk.finished()
    desk.tell(m.SaveDelayed("w1", VersionRef("t0001", 2, desk.saving(2)), "the disk is full"))
    assert desk.controller.stands
    desk.saved(2)
    assert not desk.controller.stands
