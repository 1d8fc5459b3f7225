"""What a run does about nodes and a head that fall silent; no cluster is needed for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hopfleet.backends.ray import discovery, lifecycle, nodes
from hopfleet.backends.ray.backend import Ray
from hopfleet.backends.ray.cluster import RECONNECT, Reachability
from hopfleet.backends.ray.nodes import NodeHandle
from hopfleet.backends.ray.placement import Node, WorkerNeeds
from hopfleet.errors import WorkersLost

HERE = "10.0.0.9"


class Silent:
    """A peer that answers as the test says."""

    def __init__(self, address: str, answered: float) -> None:
        self.address, self.answered, self.verdict = address, answered, Reachability.ANSWERS

    def check(self, *, anew: bool) -> None:
        """Know already."""

    def close(self) -> None:
        """Hold nothing."""


class Run(Ray):
    """A run with nodes on hosts of their own, a head, and a clock."""

    def __init__(self, clock: list[float], hosts: int, **options: Any) -> None:
        super().__init__(**options)
        self.clock = clock
        self._looked = clock[0]
        self._here = HERE
        self._teams = [WorkerNeeds(device="cpu")]
        self._head = Silent("10.0.0.1", clock[0])  # type: ignore[assignment]
        for number in range(hosts):
            node = Node(f"n{number}", f"10.0.1.{number}", cpus=1)
            peer: Any = Silent(node.address, clock[0])
            used = NodeHandle(node, None, 1, (0,), clock[0], peer, ready=True, asked=True, answered=clock[0])
            self._nodes[node.id] = used

    def wait(self, seconds: float, *answering: str) -> None:
        """Let time pass in which only these nodes, and "head", answer."""
        for _ in range(int(seconds / 0.5)):
            self.clock[0] += 0.5
            for name, node in self._nodes.items():
                answers = name in answering
                node.raylet.verdict = Reachability.ANSWERS if answers else Reachability.UNREACHABLE
                if answers:
                    node.heard = max(node.heard, self.clock[0])
                    node.answered = node.raylet.answered = self.clock[0]
            if "head" in answering:
                self._head.answered = self.clock[0]  # type: ignore[union-attr]
            self._look()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    time = SimpleNamespace(monotonic=lambda: now[0])
    for module in (lifecycle, discovery, nodes):
        monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(nodes.Nodes, "close", lambda self, node: None)
    monkeypatch.setenv(RECONNECT, "3600")
    return now


def test_a_host_that_is_silent_while_others_answer_is_lost_soon(clock: list[float]) -> None:
    run = Run(clock, 3)
    run.wait(2.5, "n0", "n1", "head")
    assert set(run._nodes) == {"n0", "n1"}
    assert run.trouble() == ""


def test_when_all_are_silent_nobody_is_lost_and_the_run_says_that_it_waits(clock: list[float]) -> None:
    run = Run(clock, 3)
    run.wait(60)
    assert len(run._nodes) == 3
    assert "no other host has answered for 60 s, so the network of this machine may be down" in run.trouble()
    run.wait(1, "n0", "n1", "n2", "head")
    assert len(run._nodes) == 3 and run.trouble() == ""


def test_connections_get_as_long_again_to_recover(clock: list[float]) -> None:
    run = Run(clock, 2)
    run.wait(60)
    run.wait(0.5, "head")
    for node in run._nodes.values():
        node.raylet.verdict = Reachability.ANSWERS
    for _ in range(110):  # the raylets answer, and the agents are still silent
        clock[0] += 0.5
        run._head.answered = clock[0]  # type: ignore[union-attr]
        run._look()
    assert len(run._nodes) == 2


def test_a_host_that_stays_away_is_lost_when_another_is_back(clock: list[float]) -> None:
    run = Run(clock, 2)
    run.wait(20)
    run.wait(3, "n0", "head")
    assert set(run._nodes) == {"n0"}


def test_the_run_ends_when_the_outage_lasts_too_long(clock: list[float]) -> None:
    run = Run(clock, 2, outage=30)
    with pytest.raises(WorkersLost, match=r"has not answered for 3\d s; `hopfleet resume` continues the run"):
        run.wait(40)


def test_nodes_that_do_not_come_back_in_time_are_lost_and_others_are_waited_for(clock: list[float]) -> None:
    run = Run(clock, 1, outage=30)
    run._head.address = HERE  # type: ignore[union-attr]
    run.wait(29, "head")
    assert len(run._nodes) == 1, "there is no other host to compare with"
    run.wait(3, "head")
    assert not run._nodes
    assert "the last node is lost" in run.trouble() and "waiting for another node" in run.trouble()
    with pytest.raises(WorkersLost, match="no other node came within 30 s; `hopfleet resume`"):
        run.wait(31, "head")


def test_without_a_head_the_run_goes_on_for_a_while(clock: list[float]) -> None:
    run = Run(clock, 2, outage=60)
    run.wait(20, "n0", "n1")
    assert run.trouble() == "the head of the Ray cluster, 10.0.0.1, has not answered for 20 s; given up after 60 s"
    with pytest.raises(WorkersLost, match=r"the head of the Ray cluster, \S+, has not answered for 60 s"):
        run.wait(41, "n0", "n1")


def test_the_run_ends_before_ray_ends_the_process(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RECONNECT)
    run = Run(clock, 2)
    run.wait(45, "n0", "n1")
    with pytest.raises(WorkersLost, match="has not answered for 46 s"):
        run.wait(1, "n0", "n1")


def test_with_an_autoscaler_a_lost_node_is_not_left_as_well(clock: list[float]) -> None:
    run = Run(clock, 2, autoscale=True)
    run._nodes["n1"].raylet.verdict = Reachability.GONE
    run._pending.add(lifecycle.PendingWorker(WorkerNeeds(device="cpu"), place=("n0",)))  # which is in use, then
    run._look()
    assert set(run._nodes) == {"n0"}
