"""Files that describe clusters."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.forecast.clusters import WITHIN, described, measured_cluster, read_cluster, this_cluster
from hopfleet.planner.dike.problem import Node
from hopfleet.support.machine import Machine

TEXT = """
bandwidth: 1e9
links: {a: {b: 1e8}}
nodes:
  - {name: a, cpus: 8, gpus: 2, memory: 32e9, reserved: {gpus: 1, cpus: 2}}
  - {name: b, cpus: 4, memory: 16e9}
  - {cpus: 4, gpus: 1, memory: 16e9, disk: 1e12}
"""


def written(folder: Path, content: object, name: str = "cluster.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_yaml(tmp_path):
    cluster = read_cluster(written(tmp_path, TEXT, "cluster.yaml"), 5e12)
    a, b, c = cluster.nodes
    assert (a.name, a.cpus, a.gpus, b.gpus, c.name, c.disk) == ("a", 6, 1, 0, "n3", 1e12)
    assert cluster.seconds_per_byte[0][1:] == (1e-8, 1e-9)
    assert cluster.seconds_per_byte[1][0] == 1e-8 and cluster.seconds_per_byte[1][1] == 1 / WITHIN
    assert cluster.gpu_flops == 5e12


def test_yaml_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r"this needs PyYAML, .*'hopfleet\[yaml\]'; JSON files need nothing"):
        read_cluster(written(tmp_path, TEXT, "cluster.yaml"), 1.0)


NODE = {"name": "a", "cpus": 2, "gpus": 1, "memory": 1e9}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", r"cluster.json: must be JSON"),
        ("[1]", r"cluster.json: holds a list; it must hold names with values"),
        ({"nodes": [NODE], "speed": 1}, "speed: unknown; there are bandwidth, gpu_flops"),
        ({"nodes": {}}, "nodes must be a list such as"),
        ({"nodes": [{**NODE, "gpu": 1}]}, "node a: gpu: unknown; there are cpus"),
        ({"nodes": [{**NODE, "cpus": None}]}, "node a: cpus: None: must be a number"),
        ({"nodes": [{**NODE, "reserved": {"gpus": 2}}]}, "node a: 2 gpus reserved of 1: must be from 0 to 1"),
        ({"nodes": [{**NODE, "reserved": {"cpus": -1}}]}, "node a: -1 cpus reserved of 2: must be from 0 to 2"),
        ({"nodes": [{**NODE, "reserved": {"cpus": "nan"}}]}, "node a: nan cpus reserved of 2"),
        ({"nodes": [{**NODE, "reserved": {"cpus": 2}}]}, "node a: 0 CPUs, 1 GPUs.*leave the node out"),
        ({"nodes": [{**NODE, "memory": "nan"}]}, "node a: memory: nan: must be finite and at least 0"),
        ({"nodes": [{**NODE, "gpus": -1}]}, "node a: gpus: -1: must be finite and at least 0"),
        ({"nodes": [{**NODE, "gpus": 0}]}, "no node of the cluster has a free GPU.*device='cpu'"),
        ({"nodes": [{**NODE, "reserved": 3}]}, "node a: reserved: 3: unknown"),
        ({"nodes": [NODE, NODE]}, "node a: is described 2 times"),
        ({"nodes": [NODE, {**NODE, "name": "b"}]}, "the link from a to b has no rate: give links"),
        ({"nodes": [NODE], "bandwidth": 0}, "bandwidth: 0 bytes per second: must be above 0"),
        ({"nodes": [NODE], "links": {"a": {"z": 1}}}, "links: z is no node; there are a"),
        ({"nodes": [NODE], "links": [1]}, "links: must be like"),
        ({"nodes": []}, "a cluster needs at least one node"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_mistakes(tmp_path, content, said):
    with pytest.raises(UsageError, match=said):
        read_cluster(written(tmp_path, content), 1e12)


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"cluster.json: cannot be read \(No such file"):
        read_cluster(tmp_path / "cluster.json", 1.0)
    (tmp_path / "odd.yaml").write_text("a: [")
    with pytest.raises(UsageError, match="must be JSON, or YAML"):
        read_cluster(tmp_path / "odd.yaml", 1.0)


def test_this_machine():
    without = this_cluster(Machine(4, 8 << 30), "cpu", 1, 1e9, 1 << 16)
    assert (without.nodes[0].gpus, without.nodes[0].cpus) == (3, 4)
    assert 0 < without.seconds_per_byte[0][0] < 1e-3
    threaded = this_cluster(Machine(9, 8 << 30), "cpu", 1, 1e9, 1 << 16, threads=3).nodes[0]
    assert (threaded.gpus, threaded.cpus) == (2, 5)
    with_gpus = this_cluster(Machine(4, 8 << 30), "cuda", 2, 1e12, 1 << 16)
    assert (with_gpus.nodes[0].gpus, with_gpus.nodes[0].cpus) == (2, 4)


class Machines:
    """A backend with three nodes, one of them without a free core."""

    def __init__(self, *cpus: int) -> None:
        self.nodes = tuple(Node(f"n{at}", count, 0, 1e9) for at, count in enumerate(cpus))

    def measure_links(self, size: int) -> tuple[tuple[Node, ...], tuple[tuple[float, ...], ...]]:
        count = len(self.nodes)
        return self.nodes, tuple(tuple((1 + 10 * one + other) / size for other in range(count)) for one in range(count))


def test_the_machines_of_a_backend(tmp_path):
    found, device = measured_cluster(Machines(4, 0, 2), "auto", 1e9, 10**9)
    assert device == "cpu"
    assert [(node.name, node.cpus, node.gpus) for node in found.nodes] == [("n0", 4, 3), ("n2", 2, 1)]
    assert found.seconds_per_byte == ((1e-9, 3e-9), (21e-9, 23e-9))
    # A description in the form of a file says the same, except for the costs within further nodes.
    again = read_cluster(written(tmp_path, described(found)), 1.0)
    assert again.nodes == found.nodes and again.gpu_flops == found.gpu_flops
    assert again.seconds_per_byte[1][0] == pytest.approx(21e-9)


def test_machines_without_a_free_core():
    with pytest.raises(UsageError, match=r"no node of the cluster has a free core \(nodes: 2\)"):
        measured_cluster(Machines(0, 0), "cpu", 1e9, 1)
