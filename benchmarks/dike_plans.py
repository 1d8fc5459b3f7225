"""All plans of a small cluster with parameter servers, enumerated one by one.

This is the yardstick for ``planner.dike`` and shares nothing with it but the description of cluster and model: any set
of nodes may have a server each, and each node any workers that fit it together, each with its own numbers of CPUs and
GPUs. No plan is left out; the options of a node that mean the same for a step are counted and evaluated once.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from hopfleet.planner.dike.problem import Cluster, Model, Node

Option = tuple[int, int, float]
"""The workers of a node as a step sees them: their number, their GPUs, and the seconds until all have prepared."""

LARGEST = 3_000_000
"""Combinations of the options of all nodes that are held in memory at once."""


def options(node: Node, model: Model, server_memory: float | None) -> Counter[Option] | None:
    """Return what workers a node may have, beside a server of that many bytes; None if the server does not fit."""
    cpus, memory = node.cpus, node.memory
    if server_memory is not None:
        cpus, memory = cpus - 1, memory - server_memory
    if cpus < 0 or memory < 0:
        return None
    found: Counter[Option] = Counter()
    for workers in _workers(cpus, node.gpus, (1, 1)):
        held = sum(2 * model.parameters + gpus * model.batch_memory for _, gpus in workers)
        if held <= memory and len(workers) * model.data <= node.disk:
            slowest = max((model.batch * gpus * model.prepare_seconds / cores for cores, gpus in workers), default=0.0)
            found[len(workers), sum(gpus for _, gpus in workers), slowest] += 1
    return found


def _workers(cpus: int, gpus: int, least: tuple[int, int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield all sets of workers, as (CPUs, GPUs) in rising order, that fit into a number of CPUs and GPUs."""
    yield ()
    for shape in itertools.product(range(1, cpus + 1), range(1, gpus + 1)):
        if shape >= least:
            for others in _workers(cpus - shape[0], gpus - shape[1], shape):
                yield shape, *others


def best_of_all(cluster: Cluster, model: Model) -> tuple[float, int]:
    """Return the highest throughput of all plans, in rows per second, and their number."""
    best, tried = 0.0, 0
    for count in range(1, len(cluster.nodes) + 1):
        parts = [
            [options(node, model, memory) for memory in (None, 3 * model.parameters / count)] for node in cluster.nodes
        ]
        for servers in itertools.combinations(range(len(cluster.nodes)), count):
            chosen = [parts[node][node in servers] for node in range(len(cluster.nodes))]
            if any(each is None for each in chosen):
                continue
            kept = [each for each in chosen if each is not None]
            best = max(best, _fastest(cluster, model, servers, [list(each) for each in kept]))
            tried += math.prod(each.total() for each in kept) - 1
    return best, tried


def combinations(cluster: Cluster, model: Model) -> int:
    """Return how many combinations of options the nodes have, without servers."""
    return math.prod(len(options(node, model, None) or ()) for node in cluster.nodes)


def _fastest(cluster: Cluster, model: Model, servers: tuple[int, ...], of_nodes: list[list[Option]]) -> float:
    nodes = len(of_nodes)

    def along(node: int, values: list[float]) -> np.ndarray:
        """Return values of a node's options, along the axis of that node."""
        return np.array(values).reshape([-1 if axis == node else 1 for axis in range(nodes)])

    gpus = sum(along(node, [each[1] for each in some]) for node, some in enumerate(of_nodes))
    seconds = np.asarray(model.batch * model.flops * model.longest / cluster.gpu_flops)
    downloads = np.zeros(())
    uploads = [np.zeros(())] * len(servers)
    for node, some in enumerate(of_nodes):
        seconds = np.maximum(seconds, along(node, [each[2] for each in some]))
        reached = sum(cluster.seconds_per_byte[server][node] for server in servers)
        downloads = np.maximum(downloads, along(node, [reached if each[0] else 0.0 for each in some]))
        for number, server in enumerate(servers):
            cost = cluster.seconds_per_byte[server][node]
            uploads[number] = uploads[number] + along(node, [each[0] * cost for each in some])
    busiest = downloads
    for upload in uploads:
        busiest = np.maximum(busiest, upload)
    return float((model.batch * gpus / (seconds + 2 * model.parameters / len(servers) * busiest)).max())
