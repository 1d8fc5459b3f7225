"""A model to train with parameter servers, a cluster, and plans: what each costs and how fast it is.

In a step of synchronous training each worker fetches all parameters, computes gradients on its own batch, and sends
them back. The parameters are spread evenly over the servers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError

COPIES = 3
"""Copies of the parameters that a server holds: they themselves, their gradients, and the optimizer's state."""

WORKER_COPIES = 2
"""Copies of the parameters that a worker holds: they themselves and their gradients."""


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
    #: Seconds of a step that no further GPU makes shorter: updating the weights, and starting operations.
    fixed_seconds: float = 0.0
    #: Bytes for activations on the host and for batches, for each GPU.
    batch_memory: float = 0.0
    #: Bytes of the data set that each worker keeps on its node's disk.
    data: float = 0.0
    #: Whether workers are the members of a team: alike, with one GPU each, and one batch that all share and the first
    #: prepares; a server is a member, and exchanges nothing with itself. Otherwise each GPU has a batch of its own, and
    #: workers may differ.
    split: bool = False

    def __post_init__(self) -> None:
        for name in ("parameters", "flops", "batch"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name):g}: must be finite and above 0")
        for name in ("prepare_seconds", "fixed_seconds", "batch_memory", "data"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name):g}: must be finite and at least 0")
        if not 0 < self.longest <= 1:
            raise UsageError(f"longest={self.longest:g}: must be above 0 and at most 1, a part of all operations")

    def batch_seconds(self, gpu_flops: float) -> float:
        """Return the seconds of a batch on a GPU, without those that are fixed."""
        return self.batch * self.flops * self.longest / gpu_flops

    def step_rows(self, gpus: int) -> int:
        """Return the rows of a step on a number of GPUs."""
        return self.batch if self.split else gpus * self.batch

    def computing_seconds(self, gpu_flops: float, gpus: int) -> float:
        """Return the seconds for which each of a number of GPUs computes in a step."""
        return self.fixed_seconds + self.batch_seconds(gpu_flops) / (gpus if self.split else 1)

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
class Placement:
    """Where the tasks of a training run: nodes with a server each, and what each worker of each node takes."""

    servers: tuple[int, ...]
    workers: tuple[tuple[Need, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of workers of each node."""
        return tuple(map(len, self.workers))

    @property
    def all_workers(self) -> tuple[Need, ...]:
        return tuple(itertools.chain.from_iterable(self.workers))


def server_need(model: Model, servers: int) -> Need:
    """Return what each of a number of servers takes."""
    return Need(1, 0, COPIES * model.parameters / servers)


def worker_need(model: Model, cpus: int, gpus: int) -> Need:
    """Return what a worker with some CPUs and GPUs takes."""
    return Need(cpus, gpus, WORKER_COPIES * model.parameters + gpus * model.batch_memory, model.data)


def room(node: Node, worker: Need) -> int:
    """Return how many workers that are alike fit on a node."""
    limits = [node.cpus // worker.cpus, node.gpus // worker.gpus, node.memory // worker.memory]
    if worker.disk:
        limits.append(node.disk // worker.disk)
    return int(min(limits))


def rows_per_second(cluster: Cluster, model: Model, placement: Placement) -> float:
    """Return the expected throughput of a plan.

    A step takes as long as its computation, or the preparation of its rows, and then the transfers of the busiest
    worker or server, there and back.
    """
    servers, costs = placement.servers, cluster.seconds_per_byte
    share = model.parameters / len(servers)
    used = [(node, count) for node, count in enumerate(placement.counts) if count]
    if not used:
        return 0.0

    def own(server: int, node: int, count: int = 1) -> bool:
        """Whether the only worker of a node is the server itself."""
        return model.split and server == node and count == 1

    download = max(
        sum(costs[server][node] for server in servers if not own(server, node, count)) for node, count in used
    )
    upload = max(sum((count - own(server, node)) * costs[server][node] for node, count in used) for server in servers)
    seconds = step_seconds(cluster, model, placement.all_workers) + 2 * share * max(download, upload)
    return model.step_rows(sum(worker.gpus for worker in placement.all_workers)) / seconds


def step_seconds(cluster: Cluster, model: Model, workers: Sequence[Need]) -> float:
    """Return the seconds of a step, without transfers: all workers wait for the slowest."""
    computing = model.computing_seconds(cluster.gpu_flops, sum(worker.gpus for worker in workers))
    return max(computing, *(model.preparing_seconds(worker) for worker in workers))


def check(cluster: Cluster, model: Model, placement: Placement) -> None:
    """Raise UsageError if a placement does not fit: equations 2 to 6."""
    servers = set(placement.servers)
    if len(placement.workers) != len(cluster.nodes) or len(servers) != len(placement.servers):
        raise UsageError(
            f"a placement with servers on nodes {placement.servers} and workers on {len(placement.workers)} nodes: "
            f"must name each server's node once, and all {len(cluster.nodes)} nodes"
        )
    for index, (node, workers) in enumerate(zip(cluster.nodes, placement.workers, strict=True)):
        tasks = [*workers, *([server_need(model, len(servers))] if index in servers else [])]
        for what in ("cpus", "gpus", "memory", "disk"):
            taken, has = sum(getattr(task, what) for task in tasks), getattr(node, what)
            if taken > has:
                raise UsageError(
                    f"node {node.name}: {what}: its tasks take {taken:g}, and it has {has:g}; place fewer tasks there"
                )
