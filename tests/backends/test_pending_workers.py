"""Who is started where, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hopfleet.backends.ray.pending_workers import PendingWorker, PendingWorkers
from hopfleet.backends.ray.placement import Place, WorkerNeeds, places
from hopfleet.domain.placement import TeamShape

ONE = WorkerNeeds(device="cpu")
THREE = WorkerNeeds(device="cpu", shape=TeamShape("ddp", 3), spans=True)


def choice(needs: WorkerNeeds, room: Mapping[str, int]) -> list[Place]:
    """Return a place for a worker on CPUs."""
    return places(room, 1, needs, dict.fromkeys(room, "cpu"))


def filled(pending: PendingWorkers, now: float, nodes: set[str], room: Mapping[str, int]) -> list[tuple[Place, int]]:
    """Return the place and the failures of each worker that is taken."""
    return [(each.place, each.failures) for each in pending.fill(now, nodes, room, choice)]


def test_workers_go_where_there_is_most_room_and_others_wait() -> None:
    pending = PendingWorkers()
    pending.add(*[PendingWorker(ONE)] * 4)
    assert filled(pending, 10.0, {"a", "b"}, {"a": 1, "b": 2}) == [(("b",), 0), (("a",), 0), (("b",), 0)]
    assert pending.homeless({"a", "b"}) == [PendingWorker(ONE)]
    assert filled(pending, 11.0, {"a", "b"}, {"a": 0, "b": 1}) == [(("b",), 0)]
    assert pending.homeless({"a", "b"}) == []


def test_who_takes_the_place_of_another_goes_to_its_node_while_that_is_there() -> None:
    pending = PendingWorkers()
    gone = [PendingWorker(ONE, 0.0, ("gone",), failures) for failures in (2, 3)]
    pending.add(PendingWorker(ONE, 0.0, ("a",), 1), *gone)
    assert pending.nodes() == {"a", "gone"}
    assert pending.homeless({"a"}) == gone
    # One node is being prepared: only the worker that belongs there goes there.
    assert filled(pending, 0.0, {"a", "b"}, {"b": 1}) == [(("a",), 1), (("b",), 2)]
    assert pending.homeless({"gone"}) == [PendingWorker(ONE, 0.0, (), 3)], "it goes anywhere now"


def test_a_place_that_is_taken_is_no_room_for_others() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(ONE, place=("a",)), PendingWorker(ONE))
    assert filled(pending, 0.0, {"a"}, {"a": 1}) == [(("a",), 0)]


def test_who_is_not_due_waits() -> None:
    pending = PendingWorkers()
    assert pending.pause(0.0) == math.inf
    pending.add(PendingWorker(ONE, 5.0, ("a",), 1), PendingWorker(ONE, 3.0, ("a",), 2))
    assert pending.pause(1.0) == 2.0
    assert filled(pending, 3.0, {"a"}, {}) == [(("a",), 2)]
    assert pending.pause(3.0) == 2.0


def test_a_node_that_joins_houses_those_who_wait_the_longest() -> None:
    pending = PendingWorkers()
    pending.add(
        PendingWorker(THREE, failures=9),
        PendingWorker(ONE, failures=1),
        PendingWorker(ONE, place=("a",), failures=2),
        PendingWorker(ONE, place=("gone",), failures=3),
        PendingWorker(ONE),
    )
    assert [each.failures for each in pending.house([ONE, ONE], {"a"})] == [1, 3]
    assert pending.homeless({"a"}) == [PendingWorker(THREE, failures=9), PendingWorker(ONE)]
    assert pending.nodes() == {"a"}
    housed = pending.house([ONE, THREE, ONE], {"a"})
    assert housed == [PendingWorker(ONE), PendingWorker(THREE, failures=9), PendingWorker(ONE)], "the last one is new"
    assert pending.homeless({"a"}) == []


def test_who_is_due() -> None:
    made = PendingWorkers()
    assert not made.due(9.0)
    made.add(PendingWorker(ONE, 5.0, ("a",)))
    assert not made.due(4.0)
    assert made.due(5.0)


def test_a_team_waits_for_room_and_spans_nodes() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(THREE, place=("a", "gone", "gone")))
    assert pending.homeless({"a", "b"}) == [PendingWorker(THREE, place=("a", "gone", "gone"))]
    assert filled(pending, 0.0, {"a", "b"}, {"a": 2}) == []
    assert filled(pending, 0.0, {"a", "b"}, {"a": 2, "b": 2}) == [(("a", "a", "b"), 0)]


def test_each_worker_finds_the_room_that_it_needs() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(THREE), PendingWorker(ONE))
    assert filled(pending, 0.0, {"a"}, {"a": 2}) == [(("a",), 0)]
    assert pending.homeless({"a"}) == [PendingWorker(THREE)]
