"""The links of a Ray cluster: each node fetches bytes from each other one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hopfleet.backends.ray import cluster
from hopfleet.backends.ray.nodes import end, on
from hopfleet.backends.ray.placement import Node
from hopfleet.errors import UsageError, describe
from hopfleet.planner.dike.problem import Node as FreeNode
from hopfleet.support import links

Costs = tuple[tuple[float, ...], ...]


class LinkProbe:
    """A process on a node that serves bytes and fetches them from other nodes."""

    def __init__(self, address: str) -> None:
        self._server = links.LinkServer(address)

    def port(self) -> int:
        return self._server.port

    def fetch(self, address: str, port: int, size: int) -> float:
        """Return the seconds of each byte from another node."""
        return links.seconds_per_byte(address, port, size)


def free(node: Node) -> FreeNode:
    """Return what is free on a node."""
    return FreeNode(node.name, int(node.free_cpus), int(node.free_gpus), node.free_amount("memory"))


def measure(nodes: Sequence[Node], size: int) -> Costs:
    """Return the seconds of each byte from one node to another; on the diagonal, those within a node.

    A node has one transfer at a time, so that none slows another down.
    """
    ray = cluster.require_ray()
    probes: list[Any] = []
    try:
        for node in nodes:
            probe = ray.remote(LinkProbe).options(num_cpus=0, scheduling_strategy=on(node.id))
            probes.append(probe.remote(node.address))
        ports: list[int] = _answers(nodes, [probe.port.remote() for probe in probes])
        costs = [[0.0] * len(nodes) for _ in nodes]
        both = ([*pairs, *((b, a) for a, b in pairs)] for pairs in links.rounds(len(nodes)))
        for pairs in itertools.chain([[(at, at) for at in range(len(nodes))]], both):
            # Of two nodes, one fetches at a time.
            for some in (pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]):
                asked = [probes[to].fetch.remote(nodes[of].address, ports[of], size) for of, to in some]
                found = _answers([nodes[to] for _, to in some], asked)
                for (of, to), seconds in zip(some, found, strict=True):
                    costs[of][to] = seconds
        return tuple(map(tuple, costs))
    finally:
        for probe in probes:
            end(probe)


def _answers(nodes: Sequence[Node], asked: Sequence[Any]) -> list[Any]:
    ray = cluster.require_ray()
    found = []
    for node, reference in zip(nodes, asked, strict=True):
        try:
            found.append(ray.get(reference, timeout=2 * links.TIMEOUT))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            raise UsageError(
                f"the links of {node.name} cannot be measured ({describe(cause)}); let nodes connect to any port of "
                "each other, or describe the cluster in a file"
            ) from error
    return found
