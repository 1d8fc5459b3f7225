"""The assignments that are worth placing. Three prunings leave a few of millions."""

from __future__ import annotations

import math

from hopfleet.errors import UsageError
from hopfleet.planner.dike.problem import Assignment, Cluster, Model, Need

COPIES = 3
"""Copies of the parameters that a server holds: they themselves, their gradients, and the optimizer's state."""

WORKER_COPIES = 2
"""Copies of the parameters that a worker holds: they themselves and their gradients."""


def assignments(cluster: Cluster, model: Model) -> list[Assignment]:
    """Return the assignments to compare.

    All workers are alike; each has at least one GPU and lies on one node; its CPUs keep its GPUs busy, as far as the
    nodes have them. There are from one server to one for each node.
    """
    found: list[Assignment] = []
    for gpus in _worker_gpus(cluster):
        worker = worker_need(cluster, model, gpus)
        for servers in range(1, len(cluster.nodes) + 1):
            server = Need(1, 0, COPIES * model.parameters / servers)
            assignment = Assignment(servers, server, worker)
            if _has_room(cluster, assignment):
                found.append(assignment)
    if not found:
        largest = max(cluster.nodes, key=lambda node: node.memory)
        raise UsageError(
            f"a model of {model.parameters:g} bytes fits no node: a worker takes {WORKER_COPIES} times that, and node "
            f"{largest.name} has {largest.memory:g} bytes of memory at most; use strategies that split the model"
        )
    return found


def _worker_gpus(cluster: Cluster) -> list[int]:
    """Return the numbers of GPUs of a worker that leave as few as possible unused, one for each number of workers."""
    counts = [node.gpus for node in cluster.nodes if node.gpus]
    by_workers = {sum(count // gpus for count in counts): gpus for gpus in range(1, max(counts) + 1)}
    return sorted(gpus for workers, gpus in by_workers.items() if workers >= len(counts) or gpus == 1)


def worker_need(cluster: Cluster, model: Model, gpus: int) -> Need:
    """Return what a worker takes: as many CPUs as keep its GPUs busy, if its node can give them to all its workers."""
    busy = gpus * model.batch * model.prepare_seconds / model.batch_seconds(cluster.gpu_flops)
    shares = [max(1, node.cpus - 1) // (node.gpus // gpus) for node in cluster.nodes if node.gpus >= gpus]
    cpus = max(1, min(math.ceil(busy), *shares, max(node.cpus for node in cluster.nodes)))
    return Need(cpus, gpus, WORKER_COPIES * model.parameters + gpus * model.batch_memory, model.data)


def _has_room(cluster: Cluster, assignment: Assignment) -> bool:
    alone = [assignment.room(node, server=False) for node in cluster.nodes]
    beside = [assignment.room(node, server=True) for node in cluster.nodes]
    homes = sum(room >= 0 for room in beside)
    # One worker needs a node; if all nodes have a server, beside one.
    free = any(room > 0 for room in (beside if assignment.servers == len(beside) else alone))
    return homes >= assignment.servers and free
