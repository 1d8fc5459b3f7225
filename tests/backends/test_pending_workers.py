"""Who is started where, and when."""

from __future__ import annotations

import math

from hopfleet.backends.ray.pending_workers import PendingWorker, PendingWorkers


def test_workers_go_where_there_is_most_room_and_others_wait() -> None:
    pending = PendingWorkers()
    pending.add(*[PendingWorker()] * 4)
    assert pending.fill(10.0, {"a", "b"}, {"a": 1, "b": 2}) == [("b", 0), ("a", 0), ("b", 0)]
    assert pending.homeless({"a", "b"}) == [PendingWorker()]
    assert pending.fill(11.0, {"a", "b"}, {"a": 0, "b": 1}) == [("b", 0)]
    assert pending.homeless({"a", "b"}) == []


def test_who_takes_the_place_of_another_goes_to_its_node_while_that_is_there() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(0.0, "a", 1), PendingWorker(0.0, "gone", 2), PendingWorker(0.0, "gone", 3))
    assert pending.nodes() == {"a", "gone"}
    assert pending.homeless({"a"}) == [PendingWorker(0.0, "gone", 2), PendingWorker(0.0, "gone", 3)]
    # One node is being prepared: nobody but who belongs there goes there.
    assert pending.fill(0.0, {"a", "b"}, {"b": 1}) == [("a", 1), ("b", 2)]
    assert pending.homeless({"gone"}) == [PendingWorker(0.0, None, 3)], "it goes anywhere now"


def test_a_place_that_is_taken_is_no_room_for_others() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(node="a"), PendingWorker())
    assert pending.fill(0.0, {"a"}, {"a": 1}) == [("a", 0)]


def test_who_is_not_due_waits() -> None:
    pending = PendingWorkers()
    assert pending.pause(0.0) == math.inf
    pending.add(PendingWorker(5.0, "a", 1), PendingWorker(3.0, "a", 2))
    assert pending.pause(1.0) == 2.0
    assert pending.fill(3.0, {"a"}, {}) == [("a", 2)]
    assert pending.pause(3.0) == 2.0


def test_a_node_that_joins_houses_those_who_wait_the_longest() -> None:
    pending = PendingWorkers()
    pending.add(
        PendingWorker(failures=1),
        PendingWorker(node="a", failures=2),
        PendingWorker(node="gone", failures=3),
        PendingWorker(),
    )
    assert pending.house(2, {"a"}) == [1, 3]
    assert pending.homeless({"a"}) == [PendingWorker()]
    assert pending.nodes() == {"a"}
    assert pending.house(2, {"a"}) == [0]


def test_who_is_due() -> None:
    made = PendingWorkers()
    assert not made.due(9.0)
    made.add(PendingWorker(5.0, "a"))
    assert not made.due(4.0)
    assert made.due(5.0)
