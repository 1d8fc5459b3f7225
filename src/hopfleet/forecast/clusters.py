"""Clusters to plan for: described in a file, the machines of a backend, or this machine.

A file names the nodes and what a byte between them costs::

    gpu_flops: 1.0e13                # by default, as measured on this machine
    bandwidth: 1.25e9                # bytes per second between any two nodes ...
    links: {a: {b: 1.25e8}}          # ... except where it was measured; a link has the same rate in both directions
    nodes:
      - {name: a, cpus: 16, gpus: 4, memory: 64.0e9, reserved: {gpus: 1}}
      - {name: b, cpus: 16, gpus: 4, memory: 64.0e9}
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

from hopfleet.backends.base import Measurable
from hopfleet.errors import UsageError
from hopfleet.planner.dike.problem import Cluster, Node
from hopfleet.support import links
from hopfleet.support.documents import number, read_document
from hopfleet.support.machine import Machine

WITHIN = 8e9
"""Bytes per second between processes of one node, unless a file says otherwise."""

RESOURCES = ("cpus", "gpus", "memory", "disk")


def read_cluster(path: str | os.PathLike[str], flops: float) -> Cluster:
    """Return the cluster that a JSON or YAML file describes; by default, its GPUs have ``flops``.

    Raise UsageError that names what is wrong.
    """
    content = _known(read_document(path), {"nodes", "bandwidth", "links", "within", "gpu_flops"}, str(path))
    described = content.get("nodes")
    if not isinstance(described, list) or not all(isinstance(each, dict) for each in described):
        raise UsageError(f"{path}: nodes must be a list such as [{{name: a, cpus: 8, gpus: 2, memory: 32.0e9}}]")
    nodes = tuple(_node(each, position) for position, each in enumerate(described))
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"node {name}: is described {names.count(name)} times; give each node its own name")
    rates = _rates(content.get("links") or {}, names)
    usual = _rate(content.get("bandwidth"), "bandwidth") if "bandwidth" in content else None
    within = 1 / _rate(content.get("within", WITHIN), "within")

    def cost(one: str, other: str) -> float:
        if one == other:
            return within
        rate = rates.get((one, other)) or rates.get((other, one)) or usual
        if rate is None:
            raise UsageError(f"the link from {one} to {other} has no rate: give links: {{{one}: {{{other}: ...}}}}")
        return 1 / rate

    costs = tuple(tuple(cost(one, other) for other in names) for one in names)
    return Cluster(nodes, costs, number(content.get("gpu_flops", flops), "gpu_flops"))


def this_cluster(machine: Machine, device: str, devices: int, flops: float, size: int, *, threads: int = 1) -> Cluster:
    """Return this machine as a cluster of one node; the cost of ``size`` bytes between its processes is measured.

    If CPUs train, a device has as many cores as a worker has ``threads``.
    """
    node = Node("this machine", machine.cores, 0 if device == "cpu" else devices, machine.memory)
    return Cluster((_computing(node, device, threads),), ((links.within(size),),), flops)


def measured_cluster(
    backend: Measurable, device: str, flops: float, size: int, *, threads: int = 1
) -> tuple[Cluster, str]:
    """Return the machines of a backend, and the kind of their devices, which ``device="auto"`` leaves open.

    The cost of ``size`` bytes between any two of them is measured.
    """
    nodes, costs = backend.measure_links(size)
    if device == "auto":
        device = "cuda" if any(node.gpus for node in nodes) else "cpu"
    useful = [at for at, node in enumerate(nodes) if node.cpus]
    if not useful:
        raise UsageError(f"no node of the cluster has a free core (nodes: {len(nodes)}): end what runs there")
    kept = tuple(tuple(costs[one][other] for other in useful) for one in useful)
    return Cluster(tuple(_computing(nodes[at], device, threads) for at in useful), kept, flops), device


def described(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster in the form of a file."""
    names, costs = [node.name for node in cluster.nodes], cluster.seconds_per_byte
    rates = {
        one: {other: 1 / costs[at][to] for to, other in enumerate(names) if to != at} for at, one in enumerate(names)
    }
    nodes = [{"name": node.name, "cpus": node.cpus, "gpus": node.gpus, "memory": node.memory} for node in cluster.nodes]
    return {"gpu_flops": cluster.gpu_flops, "within": 1 / costs[0][0], "links": rates, "nodes": nodes}


def _computing(node: Node, device: str, threads: int) -> Node:
    """Return a node with its devices.

    If CPUs train, all but one core compute, ``threads`` for each device; each device has one of its cores to share
    with what prepares rows, as a process on a GPU has a core of its own.
    """
    if device != "cpu":
        return node
    computing = max(1, (node.cpus - 1) // threads)
    return dataclasses.replace(node, cpus=max(1, node.cpus - computing * (threads - 1)), gpus=computing)


def _node(described: Mapping[str, Any], position: int) -> Node:
    name = str(described.get("name", f"n{position + 1}"))
    _known(described, {"name", "reserved", *RESOURCES}, f"node {name}")
    reserved = described.get("reserved") or {}
    _known(reserved, set(RESOURCES), f"node {name}: reserved")
    free = {}
    for what in RESOURCES:
        usual = {"disk": math.inf, "gpus": 0}.get(what)
        total = number(described.get(what, usual), f"node {name}: {what}")
        taken = number(reserved.get(what, 0), f"node {name}: reserved {what}")
        if not 0 <= total < math.inf and (what, total) != ("disk", math.inf):
            raise UsageError(f"node {name}: {what}: {total:g}: must be finite and at least 0")
        if not 0 <= taken <= total:
            raise UsageError(f"node {name}: {taken:g} {what} reserved of {total:g}: must be from 0 to {total:g}")
        free[what] = total - taken
    return Node(name, int(free["cpus"]), int(free["gpus"]), free["memory"], free["disk"])


def _rates(links: Any, names: list[str]) -> dict[tuple[str, str], float]:
    if not isinstance(links, Mapping) or not all(isinstance(each, Mapping) for each in links.values()):
        raise UsageError("links: must be like {a: {b: 1.25e9}}, in bytes per second")
    rates = {}
    for one, others in links.items():
        for other, rate in others.items():
            for name in (str(one), str(other)):
                if name not in names:
                    raise UsageError(f"links: {name} is no node; there are {', '.join(names)}")
            rates[str(one), str(other)] = _rate(rate, f"the link from {one} to {other}")
    return rates


def _rate(value: Any, what: str) -> float:
    rate = number(value, what)
    if not 0 < rate < math.inf:
        raise UsageError(f"{what}: {rate:g} bytes per second: must be above 0 and finite; leave out what has no link")
    return rate


def _known(content: Any, names: set[str], where: str) -> Mapping[str, Any]:
    unknown = sorted(map(str, content.keys() - names)) if isinstance(content, Mapping) else [repr(content)]
    if unknown:
        raise UsageError(f"{where}: {', '.join(unknown)}: unknown; there are {', '.join(sorted(names))}")
    return content  # type: ignore[no-any-return]
