"""Workers whose node is lost before they have joined, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hopfleet.backends.ray import lifecycle
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.ray.pending_workers import PendingWorker
from hopfleet.backends.ray.placement import WorkerNeeds
from hopfleet.backends.ray.workers import ActorHandle
from hopfleet.domain.messages import WorkerLost, WorkerUnavailable
from hopfleet.domain.placement import TeamShape

ONE, TWO = WorkerNeeds(device="cpu"), WorkerNeeds(device="cpu", shape=TeamShape("ddp", 2), spans=True)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Ray:
    """Nodes a and b, both full."""
    monkeypatch.setattr(lifecycle, "end", lambda actor: None)
    ray = Ray()
    monkeypatch.setattr(ray, "_known_nodes", SimpleNamespace(close=lambda node: None))
    ray._reset()
    ray._teams = [ONE]
    for name in "ab":
        node: Any = SimpleNamespace(node=SimpleNamespace(id=name, name=name), room=0, ready=True, partitions=(0,))
        ray._nodes[name] = node
    return ray


def worker(backend: Ray, name: str, *nodes: str, joined: bool = False) -> None:
    needs = ONE if len(nodes) == 1 else TWO
    first, *others = (ActorHandle(name=name, node=node, needs=needs, actor=None, exchange=None) for node in nodes)
    first.members, first.joined = others, joined
    backend._workers[name] = first


@pytest.mark.parametrize("nodes", [("b",), ("a", "b")], ids=["worker", "team"])
def test_the_controller_hears_that_a_worker_will_not_join(backend: Ray, nodes: tuple[str, ...]) -> None:
    worker(backend, "w1", *nodes)
    backend._lose_node(backend._nodes["b"], "its raylet is gone")
    (event,) = backend._events
    assert isinstance(event, WorkerUnavailable) and "b was lost: its raylet is gone" in event.reason
    assert len(backend._homeless()) == 1, "it may start on another node"
    backend._lose_node(backend._nodes["a"], "its raylet is gone")
    assert len(backend._events) == 1, "once"


def test_a_worker_that_has_joined_is_lost_instead(backend: Ray) -> None:
    worker(backend, "w1", "b", joined=True)
    backend._lose_node(backend._nodes["b"], "its raylet is gone")
    (event,) = backend._events
    assert isinstance(event, WorkerLost) and not event.replaced


def test_neither_does_one_that_was_to_start_again(backend: Ray) -> None:
    backend._pending.add(PendingWorker(ONE, 1e12, ("b",), 1), PendingWorker(ONE, 1e12, ("a",), 1))
    backend._lose_node(backend._nodes["b"], "its raylet is gone")
    assert len(backend._events) == len(backend._homeless()) == 1


def test_one_that_ends_by_itself_is_started_again(backend: Ray) -> None:
    worker(backend, "w1", "b")
    backend._lose(backend._workers["w1"], "its process ended")
    assert not backend._events and not backend._homeless()
    assert backend._pending.nodes() == {"b"}
