"""The shapes of workers that are worth placing, for each pace of a step.

Two workers of a node can be merged into one that has the CPUs and GPUs of both: it prepares and computes no slower,
fetches the parameters once, and takes less memory. So no plan is faster than the best of those with at most one worker
on each node, and at a given pace that worker has as many GPUs as its node's CPUs keep busy. The members of a team
cannot be merged, since each is a process on one device: they are alike, with any number of CPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hopfleet.planner.dike.problem import WORKER_COPIES, Cluster, Model, Need, server_need, worker_need

ROUNDING = 1e-9
"""The part of a pace by which preparing may seem to take longer, since times are rounded."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a worker takes on each node, and how many there may be.

    Arrays have two rows: without a server on the node, and beside one.
    """

    #: Seconds for which a worker prepares rows in a step, at most.
    pace: float
    cpus: np.ndarray
    gpus: np.ndarray
    #: The most workers of each node; beside a server, -1 if the server does not fit.
    most: np.ndarray


def paces(cluster: Cluster, model: Model) -> list[float]:
    """Return the seconds that the preparation of a step may take, beginning with the fewest that matter."""
    if model.split:
        return [model.preparing_seconds(member) for member in reversed(members(cluster, model))]
    computing = model.computing_seconds(cluster.gpu_flops, 1)
    kinds = {(node.cpus - server, node.gpus) for node in cluster.nodes for server in (0, 1)}
    pairs = {(cpus, gpus) for cpus, most in kinds if cpus for gpus in range(1, most + 1)}
    found = {model.preparing_seconds(Need(cpus, gpus, 0.0)) for cpus, gpus in pairs}
    return [computing, *sorted(pace for pace in found if pace > computing)]


def members(cluster: Cluster, model: Model) -> list[Need]:
    """Return the shapes of workers with one GPU each: from one CPU up to as many as can make a step shorter."""
    fastest = model.computing_seconds(cluster.gpu_flops, sum(node.gpus for node in cluster.nodes))
    enough = math.ceil(model.batch * model.prepare_seconds / fastest)
    most = max(node.cpus for node in cluster.nodes if node.gpus)
    return [worker_need(model, cpus, 1) for cpus in range(1, max(1, min(enough, most)) + 1)]


def shapes(cluster: Cluster, model: Model, servers: int, pace: float) -> Shapes:
    """Return the shapes of workers that prepare a step within ``pace`` seconds, in plans with a number of servers."""
    server = server_need(model, servers)
    cpus, memory = (
        np.array([[getattr(node, what) - taken for node in cluster.nodes] for taken in (0, getattr(server, what))])
        for what in ("cpus", "memory")
    )
    devices = np.array([node.gpus for node in cluster.nodes])
    disk = np.array([node.disk >= model.data for node in cluster.nodes])
    if not model.split:
        gpus = np.broadcast_to(devices, cpus.shape)
        if model.prepare_seconds:
            kept_busy = pace * (1 + ROUNDING) * cpus // (model.batch * model.prepare_seconds)
            gpus = np.minimum(gpus, np.maximum(0, kept_busy)).astype(int)
        if model.batch_memory:
            held = (memory - WORKER_COPIES * model.parameters) // model.batch_memory
            gpus = np.minimum(gpus, np.maximum(0, held)).astype(int)
        fits = (cpus >= 1) & (gpus >= 1) & disk & (memory >= WORKER_COPIES * model.parameters)
        return Shapes(pace, cpus, gpus, np.where((cpus < 0) | (memory < 0), [[0], [-1]], fits.astype(int)))
    member = next(each for each in members(cluster, model) if model.preparing_seconds(each) <= pace)
    limits = [cpus // member.cpus, np.broadcast_to(devices, cpus.shape), memory // member.memory]
    if member.disk:
        limits.append(np.broadcast_to(np.array([node.disk for node in cluster.nodes]) // member.disk, cpus.shape))
    most = np.minimum.reduce(limits).astype(int)
    # A server of a team is one of its members, or has the place of one.
    most[1] = np.where((cpus[1] < 0) | (memory[1] < 0) | (most[0] < 1), -1, np.maximum(0, most[1]))
    return Shapes(pace, np.full(cpus.shape, member.cpus), np.ones(cpus.shape, int), most)


def trimmed(model: Model, worker: Need, seconds: float) -> Need:
    """Return a worker with no more CPUs than it needs to prepare a step within ``seconds``."""
    enough = math.ceil(worker.cpus * model.preparing_seconds(worker) / (seconds * (1 + ROUNDING)))
    return worker_need(model, max(1, min(worker.cpus, enough)), worker.gpus)
