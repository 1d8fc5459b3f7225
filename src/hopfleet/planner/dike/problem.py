"""A model to train with parameter servers, a cluster, and plans: what each costs and how fast it is.

In a step of synchronous training each worker fetches all parameters, computes gradients on its own batch, and sends
them back. The parameters are spread evenly over the servers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and what is free on it."""

    name: str
    cpus: int
    gpus: int
    #: Bytes of memory.
    memory: float
    #: Bytes of disk.
    disk: float = math.inf


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, and what it costs to move a byte between them."""

    nodes: tuple[Node, ...]
    #: Seconds for each byte from one node to another, as measured; on the diagonal, those within a node.
    seconds_per_byte: tuple[tuple[float, ...], ...]
    #: Floating-point operations per second of a GPU.
    gpu_flops: float

    def __post_init__(self) -> None:
        count = len(self.nodes)
        if not count:
            raise UsageError("nodes=(): a cluster needs at least one node")
        for node in self.nodes:
            if node.cpus < 1 or node.gpus < 0 or node.memory <= 0 or node.disk <= 0:
                raise UsageError(
                    f"node {node.name}: {node.cpus} CPUs, {node.gpus} GPUs, {node.memory:g} bytes of memory, "
                    f"{node.disk:g} of disk: it needs at least one CPU, memory and disk; leave the node out"
                )
        if not any(node.gpus for node in self.nodes):
            raise UsageError(
                "no node of the cluster has a free GPU, and workers need one each: add a node that has, or train on "
                "CPUs, with device='cpu'"
            )
        if [len(row) for row in self.seconds_per_byte] != [count] * count:
            raise UsageError(f"seconds_per_byte: must have {count} rows and {count} columns, one for each node")
        for source, row in zip(self.nodes, self.seconds_per_byte, strict=True):
            for target, cost in zip(self.nodes, row, strict=True):
                if not 0 <= cost < math.inf:
                    raise UsageError(
                        f"{cost:g} seconds per byte from {source.name} to {target.name}: must be finite and at least "
                        "0; a link without bandwidth cannot be used, so leave one of the nodes out"
                    )
        if not 0 < self.gpu_flops < math.inf:
            raise UsageError(f"gpu_flops={self.gpu_flops:g}: must be finite and above 0")


@dataclass(frozen=True, slots=True)
class Model:
    """What training a model takes."""

    #: Bytes of all parameters.
    parameters: float
    #: Floating-point operations for each row, forward and backward.
    flops: float
    #: Rows in a batch of one GPU.
    batch: int
    #: The part of the operations that lies on the longest path: others run beside them.
    longest: float = 1.0
    #: Seconds of one CPU core to prepare a row.
    prepare_seconds: float = 0.0
    #: Bytes for activations on the host and for batches, for each GPU.
    batch_memory: float = 0.0
    #: Bytes of the data set that each worker keeps on its node's disk.
    data: float = 0.0
    #: Whether all GPUs share one batch, which the first worker prepares; otherwise each has a batch of its own.
    split: bool = False

    def __post_init__(self) -> None:
        for name in ("parameters", "flops", "batch"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name):g}: must be finite and above 0")
        for name in ("prepare_seconds", "batch_memory", "data"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name):g}: must be finite and at least 0")
        if not 0 < self.longest <= 1:
            raise UsageError(f"longest={self.longest:g}: must be above 0 and at most 1, a part of all operations")

    def batch_seconds(self, gpu_flops: float) -> float:
        """Return the seconds of a batch on a GPU."""
        return self.batch * self.flops * self.longest / gpu_flops

    def step_rows(self, gpus: int) -> int:
        """Return the rows of a step on a number of GPUs."""
        return self.batch if self.split else gpus * self.batch

    def computing_seconds(self, gpu_flops: float, gpus: int) -> float:
        """Return the seconds for which each of a number of GPUs computes in a step."""
        return self.batch_seconds(gpu_flops) / (gpus if self.split else 1)

    def preparing_seconds(self, worker: Need) -> float:
        """Return the seconds for which a worker prepares rows in a step."""
        return self.batch * (1 if self.split else worker.gpus) * self.prepare_seconds / worker.cpus


@dataclass(frozen=True, slots=True)
class Need:
    """What one task takes of its node."""

    cpus: int
    gpus: int
    memory: float
    disk: float = 0.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A number of servers and what each task takes. All workers are alike: in a step, all wait for the slowest."""

    servers: int
    server: Need
    worker: Need

    def room(self, node: Node, *, server: bool) -> int:
        """Return how many workers fit on a node, beside a server if there is one."""
        cpus, memory = node.cpus - server * self.server.cpus, node.memory - server * self.server.memory
        if cpus < 0 or memory < 0:
            return -1
        worker = self.worker
        limits = [cpus // worker.cpus, node.gpus // worker.gpus, memory // worker.memory]
        if worker.disk:
            limits.append(node.disk // worker.disk)
        return int(min(limits))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the tasks of an assignment run: nodes with a server each, and the number of workers of each node."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]


def traffic(cluster: Cluster, model: Model, placement: Placement) -> float:
    """Return the cost of the workers' downloads in a step, in seconds of links: equation 1."""
    share, costs = model.parameters / len(placement.servers), cluster.seconds_per_byte
    return share * sum(
        count * costs[server][node] for server in placement.servers for node, count in enumerate(placement.workers)
    )


def rows_per_second(cluster: Cluster, model: Model, assignment: Assignment, placement: Placement) -> float:
    """Return the expected throughput of a plan.

    A step takes as long as its computation, or the preparation of its rows, and then the transfers of the busiest
    worker or server, there and back.
    """
    share, costs = model.parameters / len(placement.servers), cluster.seconds_per_byte
    used = [(node, count) for node, count in enumerate(placement.workers) if count]
    download = max((sum(costs[server][node] for server in placement.servers) for node, _ in used), default=0.0)
    upload = max(sum(count * costs[server][node] for node, count in used) for server in placement.servers)
    gpus = sum(placement.workers) * assignment.worker.gpus
    if not gpus:
        return 0.0
    seconds = step_seconds(cluster, model, assignment.worker, gpus) + 2 * share * max(download, upload)
    return model.step_rows(gpus) / seconds


def step_seconds(cluster: Cluster, model: Model, worker: Need, gpus: int) -> float:
    """Return the seconds of a step on a number of GPUs, without transfers."""
    return max(model.computing_seconds(cluster.gpu_flops, gpus), model.preparing_seconds(worker))


def check(cluster: Cluster, assignment: Assignment, placement: Placement) -> None:
    """Raise UsageError if a placement does not fit: equations 2 to 6."""
    if len(placement.workers) != len(cluster.nodes) or len(set(placement.servers)) != assignment.servers:
        raise UsageError(
            f"a placement with {len(set(placement.servers))} servers and workers on {len(placement.workers)} nodes: "
            f"must have {assignment.servers} servers and name all {len(cluster.nodes)} nodes"
        )
    for index, (node, count) in enumerate(zip(cluster.nodes, placement.workers, strict=True)):
        if count > assignment.room(node, server=index in placement.servers):
            raise UsageError(f"node {node.name} has no room for {count} workers{_and_server(index, placement.servers)}")


def _and_server(index: int, servers: Sequence[int]) -> str:
    return " and a server" if index in servers else ""
