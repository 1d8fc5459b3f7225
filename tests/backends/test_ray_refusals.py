"""What is said of a Ray cluster that is not there, or not as it should be; no cluster is needed for that."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

import hopfleet as hop
from hopfleet.backends.ray.node_agent import About, skew
from hopfleet.backends.ray.nodes import explain
from hopfleet.backends.ray.placement import Node, choose_nodes, one_of_each, place_partitions, powers, share, spread
from hopfleet.errors import MissingExtra, UsageError

ray_is_here = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@ray_is_here
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", r"nothing answers at 127.0.0.1:1 \(ConnectionRefusedError.*is the cluster running"),
        ("ray://somewhere:10001", "ray job submit"),
        ("somewhere", "must be 'auto' or HOST:PORT"),
    ],
)
def test_an_address_where_no_cluster_is(address: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hop.Ray(address).offer("cpu", 1)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"hopfleet\[ray\]"):
        hop.Ray().offer("cpu", 1)


@pytest.mark.parametrize("replicas", [0, -1, 1.5, True])
def test_replicas(replicas: object) -> None:
    with pytest.raises(UsageError, match=f"replicas={replicas!r}: must be at least 1"):
        hop.Ray(replicas=replicas)  # type: ignore[arg-type]


@pytest.mark.parametrize("outage", [-1, True, "5 min", float("nan")])
def test_outage(outage: object) -> None:
    with pytest.raises(UsageError, match=f"outage={outage!r}: must be a number of seconds, at least 0"):
        hop.Ray(outage=outage)  # type: ignore[arg-type]


def test_versions_that_differ() -> None:
    here = About("a", "3.11.7", {"numpy": "2.4.6", "torch": "2.13.0"}, ("boot", "cache"), 2)
    assert skew(here, replace(here, host="b")) == []
    there = replace(here, python="3.12.1", packages={"numpy": "2.0.0"})
    assert skew(here, there) == [
        "Python 3.12.1 instead of 3.11.7",
        "numpy 2.0.0 instead of 2.4.6",
        "torch is missing instead of 2.13.0",
    ]


A = Node("a", "10.0.0.1", cpus=4, free_cpus=4)
B = Node("b", "10.0.0.2", cpus=8, free_cpus=3.5)
GPU = Node("g", "10.0.0.3", cpus=8, gpus=2, free_cpus=8, free_gpus=2)


def test_workers_are_spread_over_nodes() -> None:
    assert choose_nodes([A, B], 2, device="cpu", threads=1) == ["a", "b"]
    assert sorted(choose_nodes([A, B], 7, device="cpu", threads=1)) == ["a"] * 4 + ["b"] * 3
    assert sorted(choose_nodes([A, GPU], 6, device="auto", threads=1)) == ["a"] * 4 + ["g"] * 2
    assert choose_nodes([A, GPU], 2, device="cuda", threads=1) == ["g", "g"]
    assert spread({"a": 1, "b": 0}, 3) == ["a"]


def test_what_is_missing_where() -> None:
    with pytest.raises(UsageError) as refused:
        choose_nodes([A, B], 4, device="cpu", threads=2)
    assert str(refused.value) == (
        "workers=4: only 3 fit, at 2 CPUs each (10.0.0.1 (a): 4 of 4 CPUs free, room for 2; "
        "10.0.0.2 (b): 3.5 of 8 CPUs free, room for 1); use fewer workers, or add nodes (Ray's autoscaler does so for "
        "hop.Ray(autoscale=True))"
    )
    with pytest.raises(UsageError, match=r"only 2 fit, at 1 GPU each .*8 of 8 CPUs, 2 of 2 GPUs free, room for 2"):
        choose_nodes([A, GPU], 3, device="cuda", threads=1)


def test_partitions_go_where_the_workers_are() -> None:
    assert place_partitions(6, {"a": 2, "b": 1}, 1) == {"a": (0, 1, 3, 4), "b": (2, 5)}
    twice = place_partitions(4, {"a": 1, "b": 1, "c": 1}, 2)
    assert sorted(partition for mine in twice.values() for partition in mine) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert place_partitions(1, {"a": 1, "b": 1}, 1) == {"a": (0,), "b": (0,)}, "nobody has nothing to do"
    assert place_partitions(2, {"a": 1}, 3) == {"a": (0, 1)}


def test_faster_nodes_get_more() -> None:
    assert place_partitions(8, {"cpu": 1.0, "gpu": 3.0}, 1) == {"cpu": (2, 6), "gpu": (0, 1, 3, 4, 5, 7)}
    held = {"cpu": (5,), "gpu": (0,)}
    assert place_partitions(6, {"cpu": 1.0, "gpu": 2.0}, 1, held) == {"cpu": (3, 5), "gpu": (0, 1, 2, 4)}


def test_what_nodes_can_do() -> None:
    sorts = {"a": "slow", "b": "fast", "c": "fast"}
    assert powers({"a": 3, "b": 2}, sorts, {"slow": 1.0, "fast": 4.0}) == {"a": 3.0, "b": 8.0, "c": 4.0}
    assert powers({"a": 3, "b": 2}, sorts, {"fast": 4.0}) == {"a": 3.0, "b": 2.0, "c": 1.0}, "not known of all"


def test_who_is_too_slow_for_a_partition_shares_one() -> None:
    placed = place_partitions(4, {"slow": 1.0, "fast": 50.0, "middle": 40.0}, 1)
    assert len(placed["slow"]) == 1
    assert set(placed["slow"]) < {*placed["fast"], *placed["middle"]}, "nobody waits for it"
    assert sum(map(len, placed.values())) == 5
    assert place_partitions(2, {"slow": 1.0}, 1) == {"slow": (0, 1)}, "nobody is there to share with"


def test_sorts_of_nodes() -> None:
    assert (A.sort, B.sort, GPU.sort) == ("4 CPUs", "8 CPUs", "8 CPUs, 2 GPUs")
    assert replace(GPU, kind="H200").sort == "8 CPUs, 2 GPUs H200"
    sorts = {node.id: node.sort for node in (A, GPU, replace(A, id="c"), B)}
    assert one_of_each(sorts) == ["a", "g", "b"]


def test_who_joins_gets_what_is_missing_and_what_is_rare() -> None:
    assert share(4, {"a": (0, 1), "b": (1, 2)}) == (0, 3)
    assert share(4, {"a": (0, 1, 2, 3)}) == (0, 1)
    assert share(2, {}) == (0, 1)


def test_what_ray_says_in_short() -> None:
    said = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: WorkerActor\n\tactor_id: 01\n\tpid: 7\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker exits with a connection error. End of file. Some common causes include: (1) the OOM killer, (2) others."
    )
    short = "its process ended: Worker exits with a connection error. End of file."
    assert explain(RuntimeError(said)) == short
    assert explain(RuntimeError("The node died.\n\tpid: 7\nToo bad.")) == "The node died. Too bad."
    wrapped = RuntimeError("a traceback of many lines")
    wrapped.cause = ValueError("what it was")  # type: ignore[attr-defined]
    assert explain(wrapped) == "what it was"
    assert explain(RuntimeError()) == "RuntimeError"
