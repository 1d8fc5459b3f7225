"""What is said of a Ray cluster that is not there, or not as it should be; no cluster is needed for that."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.backends.ray.node_agent import About, about, skew
from hopfleet.backends.ray.nodes import explain
from hopfleet.backends.ray.placement import (
    Node,
    WorkerNeeds,
    choose_nodes,
    how_many,
    one_node_each,
    one_of_each,
    places_on,
    powers,
    share,
    shares,
    spread,
    why_unready,
)
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import MissingExtra, UsageError

ray_is_here = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@pytest.mark.slow
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


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """Answer each connection with these bytes, and close it when the other side does."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(answer)
            self.request.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while self.request.recv(1 << 12):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


@ray_is_here
@pytest.mark.parametrize("answer", [b"-ERR unknown command 'PRI'\r\n", b"", b"\0\0\0\4"])
def test_another_service_at_the_address(answer: bytes) -> None:
    with server(answer) as address, pytest.raises(UsageError, match=f"nothing answers at {address} .another service"):
        hop.Ray(address).offer("cpu", 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that Ray is asked for."""
    asked: list[str] = []

    def init(*, address: str, **_: object) -> None:
        asked.append(address)
        raise RuntimeError("enough is known")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return asked


@ray_is_here
def test_the_last_cluster_of_this_machine_is_gone(monkeypatch: pytest.MonkeyPatch, started: list[str]) -> None:
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: "127.0.0.1:1")
    said = pytest.warns(UserWarning, match=r"at 127.0.0.1:1, does not answer .*a cluster for this run starts")
    with said, pytest.raises(UsageError, match="enough is known"):
        hop.Ray().offer("cpu", 1)
    assert started == ["local"]


@ray_is_here
def test_the_last_cluster_of_this_machine_answers(monkeypatch: pytest.MonkeyPatch, started: list[str]) -> None:
    with server(b"\0\0\x06\4\0\0\0\0\0") as address:
        monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: address)
        with pytest.raises(UsageError, match="enough is known"):
            hop.Ray().offer("cpu", 1)
        assert started == [address]


@ray_is_here
def test_no_cluster_on_this_machine(monkeypatch: pytest.MonkeyPatch, started: list[str]) -> None:
    monkeypatch.setattr("ray._private.utils.read_ray_address", lambda: "")
    with pytest.raises(UsageError, match="enough is known"):
        hop.Ray().offer("cpu", 1)
    assert started == ["local"]
    with pytest.raises(UsageError, match="address='auto': no Ray cluster is known on this machine"):
        hop.Ray("auto").offer("cpu", 1)


@ray_is_here
def test_a_wrong_token_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        try:
            raise RuntimeError("Failed to connect to GCS: ray.exceptions.AuthenticationError: InvalidAuthToken")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster") from error

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("hopfleet.backends.ray.cluster._unreachable", lambda address: "")
    with pytest.raises(UsageError, match=r"address='10.0.0.1:6379': the cluster refuses the token .* RAY_AUTH_TOKEN"):
        hop.Ray("10.0.0.1:6379").offer("cpu", 1)


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


def test_other_code_of_the_same_version_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    here = about()
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"edited")
    (said,) = skew(here, about())
    assert re.fullmatch(r"hopfleet (\S+) with code \w{8} instead of \1 with code \w{8}", said)


A = Node("a", "10.0.0.1", cpus=4, free_cpus=4)
B = Node("b", "10.0.0.2", cpus=8, free_cpus=3.5)
C = Node("c", "10.0.0.4", cpus=3, free_cpus=3)
D = Node("d", "10.0.0.5", cpus=2, free_cpus=2)
GPU = Node("g", "10.0.0.3", cpus=8, gpus=2, free_cpus=8, free_gpus=2)


def needs(device: str = "cpu", threads: int = 1, **share: Any) -> WorkerNeeds:
    return WorkerNeeds(device=device, threads=threads, **share)


def team(size: int, strategy: str = "ddp") -> TeamShape:
    return TeamShape(strategy, size)


def test_workers_are_spread_over_nodes() -> None:
    assert choose_nodes([A, B], [needs()] * 2) == [("a",), ("b",)]
    assert sorted(choose_nodes([A, B], [needs()] * 7)) == [("a",)] * 4 + [("b",)] * 3
    assert sorted(choose_nodes([A, GPU], [needs("auto")] * 6)) == [("a",)] * 4 + [("g",)] * 2
    assert choose_nodes([A, GPU], [needs("cuda")] * 2) == [("g",), ("g",)]
    assert spread({"a": 1, "b": 0}, 3) == ["a"]


def test_places_of_teams() -> None:
    pair, apart = needs(shape=team(2)), needs(shape=team(3), spans=True)
    assert sorted(choose_nodes([A, B], [pair] * 3)) == [("a", "a"), ("a", "a"), ("b", "b")]
    assert choose_nodes([A, B], [apart] * 2) == [("a", "a", "a"), ("b", "b", "b")]
    four = needs(shape=team(4), spans=True)
    assert choose_nodes([B, C, D], [four] * 2) == [("b", "b", "b", "c"), ("c", "c", "d", "d")]
    assert choose_nodes([A, GPU], [needs("cuda", shape=team(2))]) == [("g", "g")]
    with pytest.raises(UsageError, match=r"only 0 fit, at 1 CPU for each of 5 members each .* fit on one node; use"):
        choose_nodes([A, B], [needs(shape=team(5))])
    with pytest.raises(UsageError, match=r"only 1 fit.*device='auto' gives GPUs on some nodes.*\(device='cpu'\); use"):
        choose_nodes([A, GPU], [needs("auto", shape=team(3), spans=True)] * 2)


def test_workers_of_several_shapes_share_the_nodes() -> None:
    single, pair, three = needs(), needs(shape=team(2, "pipeline")), needs(shape=team(3), spans=True)
    # Large teams come first, so that small ones take what is left.
    assert choose_nodes([A, D], [single, pair, three]) == [("a",), ("d", "d"), ("a", "a", "a")]
    assert places_on([D], [single, three, pair]) == [(), (), ("d", "d")]
    assert places_on([D], []) == []
    assert [how_many(nodes, [single, pair]) for nodes in ([D], [A], [A, B, C], [])] == [1, 2, 6, 0]
    assert how_many([replace(C, id=name) for name in "xyz"], [pair]) == 3, "a node of three has room for one pair"
    assert how_many([C, D], [three]) == 1
    with pytest.raises(UsageError) as refused:
        choose_nodes([C], [single, pair, pair])
    assert "workers=3: only 2 fit, at 1 CPU or 1 CPU for each of 2 members each" in str(refused.value)
    assert "a team with 'pipeline' must fit on one node;" in str(refused.value)


def test_members_are_apart_if_the_network_is_to_be_measured() -> None:
    pair = needs(shape=team(2), spans=True, apart=True)
    assert choose_nodes([A, D], [pair]) == [("a", "d")]
    assert choose_nodes([A], [pair]) == [("a", "a")]
    assert choose_nodes([A, D], [replace(pair, spans=False)]) in ([("a", "a")], [("d", "d")])


def test_workers_begin_at_home() -> None:
    pair = needs(shape=team(2))
    assert choose_nodes([A, B], [replace(pair, home=A.name)] * 2 + [pair]) == [("a", "a"), ("a", "a"), ("b", "b")]
    # Without homes, pairs would be on both nodes.
    single = replace(needs(), home=B.name)
    assert choose_nodes([A, D], [single, replace(pair, home=D.name)]) == [("a",), ("d", "d")], "B is gone"


def test_teams_on_one_node_each_take_what_room_there_is() -> None:
    assert one_node_each({"a": 5, "b": 4}, [3, 2, 2, 2]) == [("a",) * 3, ("b",) * 2, ("a",) * 2, ("b",) * 2]
    assert one_node_each({"a": 2, "b": 2}, [4, 2, 1]) == [("a", "a"), ("b", "b"), ()], "a larger node was lost"
    assert one_node_each({}, [1]) == [()]


def test_a_team_that_lost_members_is_smaller() -> None:
    three = needs(shape=team(3), spans=True)
    assert [three.reduced(size).shape for size in (2, 1, 0)] == [team(2), SINGLE, SINGLE]


def test_where_no_team_can_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop.Ray, "_connect", lambda backend: None)
    monkeypatch.setattr("hopfleet.backends.ray.cluster.living", lambda: [A, GPU])
    assert hop.Ray().teams_blocker("cpu", 1) == hop.Ray().teams_blocker("cuda", 1) == ""
    assert "devices of different kinds" in hop.Ray().teams_blocker("auto", 1)
    assert "autoscale=True" in hop.Ray(autoscale=True).teams_blocker("cpu", 1)
    assert hop.Ray().offer("cpu", 2, [SINGLE, team(2)], spanning={"ddp"})[0] == 4, "of twelve CPUs, at two each"
    offer = hop.Ray(replicas=2).offer("cpu", 1)
    assert (offer.nodes, offer.replicas) == ({A.name: 4, GPU.name: 8}, 2)


def test_a_plan_names_the_nodes_of_members() -> None:
    planned = needs(shape=team(3), spans=True, members=(B.name, A.name, B.name))
    assert [planned.room(node) for node in (A, B, C)] == [1, 2, 0]
    assert choose_nodes([A, B, C], [planned]) == [("b", "a", "b")]
    assert planned.among([A, B, C]) is planned
    assert planned.among([A, C]).members == (), "a node of the plan is gone"


def test_workers_are_packed_on_few_nodes() -> None:
    assert choose_nodes([B, A], [needs()] * 3, pack=True) == [("a",)] * 3
    assert choose_nodes([B, A], [needs()] * 6, pack=True) == [("a",)] * 4 + [("b",)] * 2


def test_what_is_missing_where() -> None:
    with pytest.raises(UsageError) as refused:
        choose_nodes([A, B], [needs(threads=2)] * 4)
    assert str(refused.value) == (
        "workers=4: only 3 fit, at 2 CPUs each (10.0.0.1 (a): 4 of 4 CPUs free, room for 2; "
        "10.0.0.2 (b): 3.5 of 8 CPUs free, room for 1); use fewer workers, or add nodes (Ray's autoscaler does so for "
        "hop.Ray(autoscale=True))"
    )
    with pytest.raises(UsageError, match=r"only 2 fit, at 1 GPU each .*8 of 8 CPUs, 2 of 2 GPUs free, room for 2"):
        choose_nodes([A, GPU], [needs("cuda")] * 3)


def test_shares_of_nodes() -> None:
    assert needs("cuda", cpus=4).on(GPU) == {"CPU": 4, "GPU": 1}
    assert needs("cuda", cpus=6).room(GPU) == 1, "the CPUs are short"
    assert needs("auto", cpus=2).on(A) == {"CPU": 2}
    assert needs("auto", gpus=0).on(GPU) == {"CPU": 1}, "GPUs are left to others"
    assert needs("cuda", gpus=0.5).room(GPU) == 4
    assert needs("cuda", gpus=0.4).room(GPU) == 4, "a rest of one GPU and a rest of another are no share"
    assert needs("cuda", gpus=0.4).room(replace(GPU, free_gpus=1.5)) == 3


def test_memory_resources_and_labels() -> None:
    rich = replace(A, free={"memory": 5 * 2**30, "licence": 2.0}, labels={"zone": "b"})
    wanted = needs(memory=2 * 2**30, resources={"licence": 1}, labels={"zone": "b"})
    assert wanted.on(rich) == wanted.anywhere == {"CPU": 1, "memory": 2 * 2**30, "licence": 1}
    assert wanted.room(rich) == 2
    assert wanted.room(replace(rich, free={**rich.free, "licence": 1.0})) == 1
    assert wanted.room(replace(rich, labels={})) == wanted.room(A) == 0
    assert str(wanted) == "1 CPU, 2 GiB of memory, 1 licence, label zone=b"
    assert wanted.explain(A) == (
        "10.0.0.1 (a): 4 of 4 CPUs, 0 GiB of memory, 0 licence free, room for 0, without label zone=b"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cpus": -1}, "cpus=-1: must be a number, at least 0"),
        ({"gpus": 2}, "gpus=2: must be between 0 and 1"),
        ({"memory": "4G"}, "memory='4G': must be a number of bytes"),
        ({"resources": {"GPU": 1}}, "resources={'GPU': 1}: give gpus= for 'GPU'"),
        ({"resources": {"licence": 0}}, "resources={'licence': 0}: must map names to amounts greater than 0"),
        ({"resources": ["licence"]}, "resources=['licence']: must be a dict"),
        ({"labels": {"zone": 1}}, "labels={'zone': 1}: must map names to values, both strings"),
        ({"placement": "STRICT"}, "placement='STRICT': must be 'SPREAD' or 'PACK'"),
    ],
)
def test_what_workers_cannot_take(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        hop.Ray(**given)


def test_why_no_worker_is_ready() -> None:
    asked = {"agent": True, "fetching": (), "waiting": (), "loading": ()}
    assert why_unready(needs(), A, **asked) == ""
    assert "10.0.0.1 (a): its node agent has not answered" in why_unready(needs(), A, **{**asked, "agent": False})
    assert why_unready(needs(), A, **{**asked, "fetching": (0, 3)}) == "10.0.0.1 (a): still fetches partitions 0, 3"
    full = replace(A, free_cpus=0.0)
    assert why_unready(needs(threads=2), full, **{**asked, "waiting": ["w1"], "loading": ["w2"]}) == (
        "10.0.0.1 (a): Ray has not started w1, at 2 CPUs each (10.0.0.1 (a): 0 of 4 CPUs free, room for 0); "
        "w2 still loads the task and the modules that the task imports"
    )


def test_what_nodes_can_do() -> None:
    sorts = {"a": "slow", "b": "fast", "c": "fast"}
    assert powers({"a": 3, "b": 2}, sorts, {"slow": 1.0, "fast": 4.0}) == {"a": 3.0, "b": 8.0, "c": 4.0}
    assert powers({"a": 3, "b": 2}, sorts, {"fast": 4.0}) == {"a": 3.0, "b": 2.0, "c": 1.0}, "not known of all"


def test_sorts_of_nodes() -> None:
    assert (A.sort, B.sort, GPU.sort) == ("4 CPUs", "8 CPUs", "8 CPUs, 2 GPUs")
    assert replace(GPU, kind="H200").sort == "8 CPUs, 2 GPUs H200"
    sorts = {node.id: node.sort for node in (A, GPU, replace(A, id="c"), B)}
    assert one_of_each(sorts) == ["a", "g", "b"]


def test_who_joins_gets_what_is_missing_and_what_is_rare() -> None:
    assert share(4, {"a": (0, 1), "b": (1, 2)}) == (0, 3)
    assert share(4, {"a": (0, 1, 2, 3)}) == (0, 1)
    assert share(2, {}) == (0, 1)
    assert shares(4, 2, {"a": ((0, 1), None), "b": ((1, 2), None)}) == ((0, 3), None), "all have all validation data"
    assert shares(4, 4, {"a": ((0, 1), (2, 3)), "b": ((1, 2), (3, 0))}) == ((0, 3), (0, 1))
    assert shares(2, 3, {}) == ((0, 1), None)


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
