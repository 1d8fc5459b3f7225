"""Training by all-reduce instead of parameter servers: how many workers, and on which nodes.

Workers form a ring, node after node. In a step each of n workers computes, then sends 2(n - 1)/n of the parameters to
the next one; the slowest link sets the pace.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hopfleet.planner.dike.generate import worker_need
from hopfleet.planner.dike.problem import Assignment, Cluster, Model, Need, step_seconds

FEW = 7
"""Nodes up to which all rings are tried."""

STARTS = 8
"""Nodes at which rings of larger clusters begin."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Nodes in their order on a ring, the workers of each, and what they promise. Each worker has one GPU."""

    nodes: tuple[int, ...]
    workers: tuple[int, ...]
    worker: Need
    rows_per_second: float


def rings(cluster: Cluster, model: Model) -> list[Ring]:
    """Return the best ring of each number of nodes, the fastest first; none if a worker fits no node."""
    worker = worker_need(cluster, model, 1)
    assignment = Assignment(0, Need(0, 0, 0.0), worker)
    rooms = [assignment.room(node, server=False) for node in cluster.nodes]
    able = [at for at, room in enumerate(rooms) if room > 0]
    best: dict[int, Ring] = {}
    orders = _all_orders(able) if len(able) <= FEW else _near_orders(cluster, able)
    most = max(rooms)
    # As many workers on each node as it has room for, or at most 1, 2, 4 ...
    limits = [most, *(2**power for power in range(most.bit_length()) if 2**power < most)]
    for order, limit in itertools.product(orders, limits):
        workers = tuple(min(rooms[at], limit) for at in order)
        count = sum(workers)
        transfer = 2 * (count - 1) / count * model.parameters * _slowest(cluster, order, workers)
        speed = model.step_rows(count) / (step_seconds(cluster, model, worker, count) + transfer)
        if len(order) not in best or speed > best[len(order)].rows_per_second:
            best[len(order)] = Ring(order, workers, worker, speed)
    return sorted(best.values(), key=lambda ring: -ring.rows_per_second)


def _slowest(cluster: Cluster, order: Sequence[int], workers: Sequence[int]) -> float:
    """Return the seconds per byte of the slowest link of a ring."""
    costs = cluster.seconds_per_byte
    within = [costs[at][at] for at, count in zip(order, workers, strict=True) if count > 1]
    between = [costs[at][after] for at, after in zip(order, [*order[1:], order[0]], strict=True) if at != after]
    return max([*within, *between], default=0.0)


def _all_orders(able: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(able) + 1):
        for first, *others in itertools.combinations(able, count):
            for rest in itertools.permutations(others):
                yield first, *rest


def _near_orders(cluster: Cluster, able: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield rings that grow by the node that the last one reaches best."""
    costs = cluster.seconds_per_byte
    starts = sorted(able, key=lambda at: sum(costs[at][other] for other in able))[:STARTS]
    for start in starts:
        order, left = [start], set(able) - {start}
        yield (start,)
        while left:
            nearest = min(left, key=lambda other: (costs[order[-1]][other], other))
            left.remove(nearest)
            order.append(nearest)
            yield tuple(order)
