"""The search among placements with one number of servers and one pace of preparation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hopfleet.planner.dike.problem import Cluster, Model, Placement, step_seconds, worker_need
from hopfleet.planner.dike.shapes import shapes, trimmed

SAME = 1 + 1e-12
"""How much faster a placement must be to count as faster, since times are rounded."""


@dataclass(frozen=True, slots=True)
class FoundPlacement:
    """Nodes with a server, the number of workers of each node, and their throughput at the pace of the search."""

    speed: float
    servers: tuple[int, ...]
    counts: tuple[int, ...]
    search: PlacementSearch


class PlacementSearch:
    """Placements of a number of servers, with workers that prepare a step within ``pace`` seconds."""

    def __init__(self, cluster: Cluster, costs: np.ndarray, model: Model, servers: int, pace: float) -> None:
        self._cluster, self._model, self.servers = cluster, model, servers
        self._shapes = shapes(cluster, model, servers, pace)
        self._costs = costs
        #: Seconds of a byte that a server does not exchange with itself, where it is a worker, too.
        self._own = costs.diagonal() if model.split else np.zeros(len(costs))
        #: Nodes that have room for a server.
        self.able = np.flatnonzero(self._shapes.most[1] >= 0).tolist()

    @property
    def workers(self) -> int:
        """The most workers there may be, if no node has a server."""
        return int(self._shapes.most[0].sum())

    @property
    def size(self) -> int:
        """The number of placements."""
        return math.comb(len(self.able), self.servers) * int(math.prod((1 + self._shapes.most[0]).tolist()))

    def bound(self) -> float:
        """Return a throughput that no placement exceeds.

        It is reached if each worker has the servers that it reaches best, and all servers are equally busy.
        """
        most = self._shapes.most[0]
        used = np.flatnonzero(most)
        if len(self.able) < self.servers or not len(used):
            return 0.0
        least = np.sort(self._costs[self.able][:, used], axis=0)[: self.servers].sum(0)
        gpus = self._shapes.gpus[0][used]
        order = np.argsort(least / gpus, kind="stable")
        order = np.repeat(order, most[used][order])
        total = gpus[order].cumsum()
        saved = np.sort(self._own[self.able])[-self.servers :].sum()
        uploads = np.maximum(0.0, least[order].cumsum() - saved) / self.servers
        by_servers = self._speed(total, uploads, self.servers).max()
        # The worker that reaches its servers best has to wait for them, too.
        by_workers = self._speed(total, max(0.0, least.min() - self._own.max()), self.servers).max()
        return float(min(by_servers, by_workers))

    def best(self, speed: float) -> FoundPlacement | None:
        """Return the best of all placements; None if none is faster than ``speed``."""
        most = self._shapes.most
        grid = np.indices(tuple(most[0] + 1)).reshape(len(most[0]), -1).T[1:]
        candidates = list(itertools.combinations(self.able, self.servers))
        found = None
        for bound, servers in sorted(zip(self._bounds(candidates), candidates, strict=True), reverse=True):
            if bound <= speed * SAME:
                break
            counts = grid[(grid <= self._limits(servers)[0]).all(1)]
            if better := self._faster(speed, servers, counts):
                found, speed = better, better.speed
        return found

    def _bounds(self, candidates: Sequence[tuple[int, ...]]) -> list[float]:
        """Return throughputs that no placements with these sets of servers exceed: if all servers are equally busy."""
        at, _, gpus, counts, downloads = self._ordered(candidates)
        saved = self._own[at].sum(1, keepdims=True)
        uploads = np.maximum(0.0, (downloads * counts).cumsum(1) - saved) / at.shape[1]
        return list(self._speed(gpus.cumsum(1), uploads, at.shape[1]).max(1).tolist())

    def _ordered(self, candidates: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, ...]:
        """Return sets of servers, the nodes in the order in which each set reaches them best, and what they have.

        That is their GPUs, their workers and the seconds of a byte from all servers.
        """
        at = np.array(candidates)
        among = np.zeros((len(at), len(self._costs)), bool)
        np.put_along_axis(among, at, True, axis=1)
        room, gpus = (np.where(among, here[1], here[0]) for here in (self._shapes.most, self._shapes.gpus))
        downloads = among @ self._costs
        far = np.divide(downloads, gpus, out=np.full(gpus.shape, np.inf), where=room > 0)
        order = np.argsort(far, axis=1, kind="stable")
        return at, order, *(np.take_along_axis(each, order, 1) for each in (room * gpus, room, downloads))

    def fill(self, candidates: Sequence[tuple[int, ...]]) -> FoundPlacement:
        """Return the best of some sets of servers, if nodes are filled that they reach best, one after another."""
        at, order, gpus, room, downloads = self._ordered(candidates)
        serves = at[:, :, None] == order[:, None, :]
        own = np.where(serves.any(1), self._own[order], 0.0)
        sent = self._costs[at[:, :, None], order[:, None, :]] * room[:, None, :]
        uploads = (sent - np.where(serves & (room > 0)[:, None, :], own[:, None, :], 0.0)).cumsum(2).max(1)
        downloads = np.where(room > 0, downloads - np.where(room == 1, own, 0.0), 0.0)
        downloads = np.maximum.accumulate(downloads, axis=1)
        speeds = self._speed(gpus.cumsum(1), np.maximum(downloads, uploads), at.shape[1])
        chosen, last = (int(each) for each in np.unravel_index(int(speeds.argmax()), speeds.shape))
        counts = np.zeros(len(self._costs), int)
        counts[order[chosen, : last + 1]] = room[chosen, : last + 1]
        return FoundPlacement(float(speeds[chosen, last]), candidates[chosen], tuple(counts.tolist()), self)

    def distances(self, found: FoundPlacement) -> list[float]:
        """Return the seconds per byte from each node to all workers that were placed."""
        return list((self._costs @ np.array(found.counts)).tolist())

    def improve(self, found: FoundPlacement) -> FoundPlacement:
        """Move servers, and add, remove or move workers, while the throughput grows."""
        while True:
            servers = found.servers
            swaps = [
                tuple(sorted({*servers, coming} - {leaving}))
                for leaving in servers
                for coming in self.able
                if coming not in servers
            ]
            better = self._faster(found.speed, servers, self._nearby(found))
            if swaps and (moved := self.fill(swaps)).speed > (better or found).speed * SAME:
                better = moved
            if better is None:
                return found
            found = better

    def placement(self, found: FoundPlacement) -> Placement:
        """Return a placement in which each worker has no more CPUs than it needs."""
        _, gpus, cpus = self._limits(found.servers)
        workers = [(worker_need(self._model, *each),) * n for n, *each in zip(found.counts, cpus, gpus, strict=True)]
        seconds = step_seconds(self._cluster, self._model, list(itertools.chain.from_iterable(workers)))
        fitting = (tuple(trimmed(self._model, worker, seconds) for worker in some) for some in workers)
        return Placement(tuple(sorted(found.servers)), tuple(fitting))

    def _nearby(self, found: FoundPlacement) -> np.ndarray:
        """Return numbers of workers, with one more, one fewer, or one on another node."""
        counts, limits = np.array(found.counts), self._limits(found.servers)[0]
        nodes = np.eye(len(counts), dtype=int)
        none = np.zeros((1, len(counts)), int)
        less = np.concatenate([none, nodes[counts > 0]])
        more = np.concatenate([none, nodes[counts < limits]])
        near = (counts - less[:, None, :] + more[None, :, :]).reshape(-1, len(counts))
        return np.asarray(near[near.any(1)])

    def _limits(self, servers: Sequence[int]) -> tuple[np.ndarray, list[int], list[int]]:
        """Return the most workers of each node, and the GPUs and CPUs of each of them, if some nodes have servers."""
        at, here = np.zeros(len(self._costs), int), np.arange(len(self._costs))
        at[list(servers)] = 1
        each = self._shapes
        return each.most[at, here], each.gpus[at, here].tolist(), each.cpus[at, here].tolist()

    def _faster(self, speed: float, servers: tuple[int, ...], counts: np.ndarray) -> FoundPlacement | None:
        """Return the best of some numbers of workers; None if none is faster than ``speed``."""
        at = list(servers)
        costs, own = self._costs[at], np.zeros(len(self._costs))
        own[at] = self._own[at]
        downloads = np.where(counts > 0, costs.sum(0) - np.where(counts == 1, own, 0.0), 0.0).max(1)
        busiest = np.maximum(downloads, (counts @ costs.T - (counts[:, at] > 0) * own[at]).max(1))
        speeds = self._speed(counts @ np.array(self._limits(servers)[1]), busiest, len(servers))
        best = int(speeds.argmax())
        if speeds[best] <= speed * SAME:
            return None
        return FoundPlacement(float(speeds[best]), servers, tuple(counts[best].tolist()), self)

    def _speed(self, gpus: np.ndarray, busiest: np.ndarray | float, servers: int) -> np.ndarray:
        """Return the throughput on numbers of GPUs; the busiest task takes that many seconds to move a byte to each."""
        model = self._model
        rows, parts = (model.batch * (gpus > 0), np.maximum(gpus, 1)) if model.split else (model.batch * gpus, 1)
        computing = model.fixed_seconds + model.batch_seconds(self._cluster.gpu_flops) / parts
        return np.asarray(rows / (np.maximum(computing, self._shapes.pace) + 2 * model.parameters / servers * busiest))
