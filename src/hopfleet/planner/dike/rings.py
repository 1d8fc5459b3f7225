"""Training by all-reduce instead of parameter servers: how many workers, and on which nodes.

Workers form a ring, node after node. In a step each of n workers computes, then sends 2(n - 1)/n of the parameters to
the next one; the slowest link sets the pace. Within a node the same cores send and receive, one after the other, so a
byte takes twice as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hopfleet.planner.dike.problem import Cluster, Model, Need, room, step_seconds
from hopfleet.planner.dike.shapes import members

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
    """Return the best ring of each number of nodes, the fastest first; none if a worker fits no node.

    Workers have the same choice of CPUs as those of plans with parameter servers.
    """
    able, shapes = _shapes(cluster, model)
    best: dict[int, Ring] = {}
    orders = _all_orders(able) if len(able) <= FEW else _near_orders(cluster, able)
    for order, (worker, rooms) in itertools.product(orders, shapes):
        if not all(rooms[at] for at in order):
            continue
        between = _slowest(cluster, order)
        most = max(rooms[at] for at in order)
        # As many workers on each node as it has room for, or at most 1, 2, 4 ...
        for limit in (most, *(2**power for power in range(most.bit_length()) if 2**power < most)):
            workers = tuple(min(rooms[at], limit) for at in order)
            speed = throughput(cluster, model, Ring(order, workers, worker, 0.0), between)
            if len(order) not in best or speed > best[len(order)].rows_per_second:
                best[len(order)] = Ring(order, workers, worker, speed)
    return sorted(best.values(), key=lambda ring: -ring.rows_per_second)


def _shapes(cluster: Cluster, model: Model) -> tuple[list[int], list[tuple[Need, list[int]]]]:
    """Return the nodes that have room for a worker; and shapes of workers, with the room for them on each node."""
    found: dict[tuple[int, ...], Need] = {}
    for worker in members(cluster, model):
        # Of workers for which there is the same room, the last prepare most quickly.
        found[tuple(max(0, room(node, worker)) for node in cluster.nodes)] = worker
    shapes = [(worker, list(rooms)) for rooms, worker in found.items()]
    return [at for at in range(len(cluster.nodes)) if shapes[0][1][at]], shapes


def throughput(cluster: Cluster, model: Model, ring: Ring, between: float = 0.0) -> float:
    """Return the throughput of a ring, given the seconds per byte of its slowest link between nodes, if it has any."""
    costs, count = cluster.seconds_per_byte, sum(ring.workers)
    within = [2 * costs[at][at] for at, workers in zip(ring.nodes, ring.workers, strict=True) if workers > 1]
    transfer = 2 * (count - 1) / count * model.parameters * max(between, *within, 0.0)
    return model.step_rows(count) / (step_seconds(cluster, model, (ring.worker,) * count) + transfer)


def _slowest(cluster: Cluster, order: Sequence[int]) -> float:
    """Return the seconds per byte of the slowest link between the nodes of a ring."""
    pairs = zip(order, [*order[1:], order[0]], strict=True)
    return max((cluster.seconds_per_byte[at][after] for at, after in pairs if at != after), default=0.0)


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
