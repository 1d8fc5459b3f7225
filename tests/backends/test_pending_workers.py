"""Who is started where, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hopfleet.backends.ray.pending_workers import PendingWorker, PendingWorkers
from hopfleet.backends.ray.placement import Place, WorkerNeeds, places


def one(room: Mapping[str, int], size: int = 1) -> list[Place]:
    """Return a place for a team of CPUs, which may span nodes."""
    return places(room, 1, WorkerNeeds(device="cpu", size=size, spans=True), dict.fromkeys(room, "cpu"))


def test_workers_go_where_there_is_most_room_and_others_wait() -> None:
    pending = PendingWorkers()
    pending.add(*[PendingWorker()] * 4)
    assert pending.fill(10.0, {"a", "b"}, {"a": 1, "b": 2}, one) == [(("b",), 0), (("a",), 0), (("b",), 0)]
    assert pending.homeless({"a", "b"}) == [PendingWorker()]
    assert pending.fill(11.0, {"a", "b"}, {"a": 0, "b": 1}, one) == [(("b",), 0)]
    assert pending.homeless({"a", "b"}) == []


def test_who_takes_the_place_of_another_goes_to_its_node_while_that_is_there() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(0.0, ("a",), 1), PendingWorker(0.0, ("gone",), 2), PendingWorker(0.0, ("gone",), 3))
    assert pending.nodes() == {"a", "gone"}
    assert pending.homeless({"a"}) == [PendingWorker(0.0, ("gone",), 2), PendingWorker(0.0, ("gone",), 3)]
    # One node is being prepared: nobody but who belongs there goes there.
    assert pending.fill(0.0, {"a", "b"}, {"b": 1}, one) == [(("a",), 1), (("b",), 2)]
    assert pending.homeless({"gone"}) == [PendingWorker(0.0, (), 3)], "it goes anywhere now"


def test_a_place_that_is_taken_is_no_room_for_others() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(place=("a",)), PendingWorker())
    assert pending.fill(0.0, {"a"}, {"a": 1}, one) == [(("a",), 0)]


def test_who_is_not_due_waits() -> None:
    pending = PendingWorkers()
    assert pending.pause(0.0) == math.inf
    pending.add(PendingWorker(5.0, ("a",), 1), PendingWorker(3.0, ("a",), 2))
    assert pending.pause(1.0) == 2.0
    assert pending.fill(3.0, {"a"}, {}, one) == [(("a",), 2)]
    assert pending.pause(3.0) == 2.0


def test_a_node_that_joins_houses_those_who_wait_the_longest() -> None:
    pending = PendingWorkers()
    pending.add(
        PendingWorker(failures=1),
        PendingWorker(place=("a",), failures=2),
        PendingWorker(place=("gone",), failures=3),
        PendingWorker(),
    )
    assert pending.house(2, {"a"}) == [1, 3]
    assert pending.homeless({"a"}) == [PendingWorker()]
    assert pending.nodes() == {"a"}
    assert pending.house(2, {"a"}) == [0]


def test_who_is_due() -> None:
    made = PendingWorkers()
    assert not made.due(9.0)
    made.add(PendingWorker(5.0, ("a",)))
    assert not made.due(4.0)
    assert made.due(5.0)


def test_a_team_waits_for_room_and_spans_nodes() -> None:
    pending = PendingWorkers()
    pending.add(PendingWorker(place=("a", "gone", "gone")))
    assert pending.homeless({"a", "b"}) == [PendingWorker(place=("a", "gone", "gone"))]
    assert pending.fill(0.0, {"a", "b"}, {"a": 2}, lambda room: one(room, 3)) == []
    assert pending.fill(0.0, {"a", "b"}, {"a": 2, "b": 2}, lambda room: one(room, 3)) == [(("a", "a", "b"), 0)]
