"""Placements of high throughput: servers one by one where they help most, then small changes while they pay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hopfleet.planner.dike.generate import assignments
from hopfleet.planner.dike.problem import (
    Assignment,
    Cluster,
    Model,
    Need,
    Placement,
    rows_per_second,
    step_seconds,
    traffic,
)

PATIENCE = 8
"""Servers that are added without gain before no more are tried."""

GAIN = 1.001
"""How much faster a plan must be to count as a gain."""

FEW = 16
"""Nodes up to which each may have the first server, and plans are improved by small changes."""

TRIED = 4
"""Nodes that are tried for each further server."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An assignment, its placement and what they promise."""

    assignment: Assignment
    placement: Placement
    rows_per_second: float
    #: The cost of equation 1.
    traffic: float

    @property
    def workers(self) -> int:
        return sum(self.placement.workers)


NOTHING = Plan(Assignment(0, Need(0, 0, 0.0), Need(0, 0, 0.0)), Placement((), ()), 0.0, 0.0)


def compare(cluster: Cluster, model: Model) -> list[Plan]:
    """Return the best plan of each assignment that was tried, the fastest first."""
    by_worker: dict[Need, list[Assignment]] = {}
    for assignment in assignments(cluster, model):
        by_worker.setdefault(assignment.worker, []).append(assignment)
    few = len(cluster.nodes) <= FEW
    best: dict[Assignment, Plan] = {}
    for some in by_worker.values():
        # Where links differ, much depends on the first server.
        for first in range(len(cluster.nodes)) if few else (None,):
            for plan in _grow(cluster, model, some, first):
                if plan.rows_per_second > best.get(plan.assignment, NOTHING).rows_per_second:
                    best[plan.assignment] = plan
    plans = [_improve(cluster, model, plan) if few else plan for plan in best.values()]
    return sorted(plans, key=lambda plan: -plan.rows_per_second)


def _grow(cluster: Cluster, model: Model, some: Iterable[Assignment], first: int | None) -> Iterator[Plan]:
    """Yield plans with more and more servers, beginning at a node; each adds one to those of the plan before."""
    servers: tuple[int, ...] = ()
    speed, best, waited = 0.0, 0.0, 0
    for assignment in some:
        filler = _Filler(cluster, model, assignment)
        if first is not None and not filler.houses(first):
            continue
        while len(servers) < assignment.servers:
            tried = filler.candidates(servers) if servers or first is None else [first]
            servers = max(((*servers, node) for node in tried), key=lambda given: filler.fill(given)[0])
        speed, workers = filler.fill(servers)
        if not any(workers):
            continue
        yield _plan(cluster, model, assignment, Placement(tuple(sorted(servers)), workers))
        best, waited = (speed, 0) if speed > best * GAIN else (best, waited + 1)
        if waited == PATIENCE:
            return


class _Filler:
    """The best numbers of workers for given servers, if nodes are filled one after another."""

    def __init__(self, cluster: Cluster, model: Model, assignment: Assignment) -> None:
        self._costs = np.array(cluster.seconds_per_byte)
        self._alone = np.array([max(0, assignment.room(node, server=False)) for node in cluster.nodes])
        self._beside = np.array([assignment.room(node, server=True) for node in cluster.nodes])
        counts = [workers * assignment.worker.gpus for workers in range(1, int(self._alone.sum()) + 1)]
        #: Rows and seconds of a step with 1, 2, 3 ... workers.
        self._rows = np.array([model.step_rows(gpus) for gpus in counts])
        self._seconds = np.array([step_seconds(cluster, model, assignment.worker, gpus) for gpus in counts])
        self._bytes = 2 * model.parameters

    def houses(self, node: int) -> bool:
        """Whether a node has room for a server."""
        return bool(self._beside[node] >= 0)

    def candidates(self, servers: tuple[int, ...]) -> list[int]:
        """Return the nodes to try for one more server: those that reach the workers best, as they are now."""
        workers = np.array(self.fill(servers)[1]) if servers else self._alone
        order = np.argsort(self._costs @ workers, kind="stable").tolist()
        return [node for node in order if node not in servers and self.houses(node)][:TRIED]

    def fill(self, servers: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """Return the throughput and the workers of each node: those nodes first that the servers reach best."""
        at = list(servers)
        room = self._alone.copy()
        room[at] = self._beside[at]
        costs = self._costs[at]
        downloads = costs.sum(0)
        order = np.argsort(downloads, kind="stable")
        order = order[room[order] > 0]
        if not len(order):
            return 0.0, (0,) * len(room)
        counts = room[order]
        busiest = np.maximum(downloads[order], (costs[:, order] * counts).cumsum(1).max(0))
        total = counts.cumsum() - 1
        speeds = self._rows[total] / (self._seconds[total] + self._bytes / len(at) * busiest)
        last = int(speeds.argmax())
        workers = np.zeros_like(room)
        workers[order[: last + 1]] = counts[: last + 1]
        return float(speeds[last]), tuple(workers.tolist())


def _improve(cluster: Cluster, model: Model, plan: Plan) -> Plan:
    """Move servers, and add, remove or move workers, while the throughput grows."""
    assignment = plan.assignment
    filler = _Filler(cluster, model, assignment)
    while True:
        nearby = [_plan(cluster, model, assignment, near) for near in _neighbours(cluster, plan, filler)]
        best = max(nearby, key=lambda other: other.rows_per_second, default=plan)
        if best.rows_per_second <= plan.rows_per_second * (1 + 1e-12):
            return plan
        plan = best


def _neighbours(cluster: Cluster, plan: Plan, filler: _Filler) -> Iterator[Placement]:
    assignment, servers, workers = plan.assignment, plan.placement.servers, plan.placement.workers
    nodes = range(len(cluster.nodes))
    rooms = [[assignment.room(node, server=server) for node in cluster.nodes] for server in (False, True)]
    for leaving in servers:
        for coming in set(nodes) - {*servers}:
            if rooms[True][coming] >= 0:
                moved = tuple(sorted({*servers, coming} - {leaving}))
                yield Placement(moved, tuple(min(workers[at], rooms[at in moved][at]) for at in nodes))
                yield Placement(moved, filler.fill(moved)[1])
    for source in (None, *(node for node in nodes if workers[node])):
        for target in (None, *(node for node in nodes if workers[node] < rooms[node in servers][node])):
            changed = list(workers)
            if source is not None:
                changed[source] -= 1
            if target is not None:
                changed[target] += 1
            if source != target and any(changed):
                yield Placement(servers, tuple(changed))


def _plan(cluster: Cluster, model: Model, assignment: Assignment, placement: Placement) -> Plan:
    speed = rows_per_second(cluster, model, assignment, placement)
    return Plan(assignment, placement, speed, traffic(cluster, model, placement))
