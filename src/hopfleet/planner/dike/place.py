"""Plans of high throughput: for each number of servers the best of all on small clusters, or the best that is found."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hopfleet.errors import UsageError
from hopfleet.planner.dike.problem import WORKER_COPIES, Cluster, Model, Need, Placement, rows_per_second
from hopfleet.planner.dike.search import FoundPlacement, PlacementSearch
from hopfleet.planner.dike.shapes import paces

ENUMERATED = 1 << 14
"""Placements of a number of servers at a pace up to which all are tried."""

PATIENCE = 8
"""Servers that are added without gain before no more are tried."""

GAIN = 1.001
"""How much faster a plan must be to count as a gain."""

FEW = 32
"""Nodes up to which all are tried for each further server, and plans are improved."""

IMPROVED = 6
"""Plans that are improved by small changes: the fastest ones."""

TRIED = 4
"""Nodes that are tried for the first server; in larger clusters, for each further one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement and what it promises."""

    placement: Placement
    rows_per_second: float

    @property
    def workers(self) -> int:
        return sum(self.placement.counts)

    @property
    def largest(self) -> Need:
        """What the worker with the most GPUs takes."""
        return max(self.placement.all_workers, key=lambda worker: (worker.gpus, worker.cpus))


def compare(cluster: Cluster, model: Model) -> list[Plan]:
    """Return a good plan for each number of servers, the fastest first; none if servers leave no room for workers.

    On clusters so small that all plans can be tried, none is faster than the first. Raise UsageError if a worker fits
    no node.
    """
    numbers, costs = range(1, len(cluster.nodes) + 1), np.array(cluster.seconds_per_byte)
    by_pace = [
        [PlacementSearch(cluster, costs, model, servers, pace) for servers in numbers] for pace in paces(cluster, model)
    ]
    searches = [search for some in by_pace for search in some]
    if not any(search.workers for search in searches):
        largest = max(cluster.nodes, key=lambda node: node.memory)
        raise UsageError(
            f"a model of {model.parameters:g} bytes fits no node: a worker takes {WORKER_COPIES} times that, and node "
            f"{largest.name} has {largest.memory:g} bytes of memory at most; use strategies that split the model"
        )
    found = _grown(by_pace)
    if len(numbers) <= FEW and all(search.size <= ENUMERATED for search in searches):
        found = _with_best(found, searches)
    placements = [each.search.placement(each) for each in found.values()]
    plans = [Plan(each, rows_per_second(cluster, model, each)) for each in placements]
    return sorted(plans, key=lambda plan: -plan.rows_per_second)


def _with_best(found: dict[int, FoundPlacement], searches: list[PlacementSearch]) -> dict[int, FoundPlacement]:
    """Return plans with the best of all among them; skip what cannot be faster than the best so far."""
    speed = max((each.speed for each in found.values()), default=0.0)
    for bound, search in sorted(((search.bound(), search) for search in searches), key=lambda pair: -pair[0]):
        if bound <= speed:
            break
        if better := search.best(speed):
            found[search.servers], speed = better, better.speed
    return found


def _grown(by_pace: list[list[PlacementSearch]]) -> dict[int, FoundPlacement]:
    """Return a good plan for each number of servers: servers one by one where they help most, then small changes."""
    best: dict[int, FoundPlacement] = {}
    bounds = [max(search.bound() for search in some) for some in by_pace]
    for bound, some in sorted(zip(bounds, by_pace, strict=True), key=lambda pair: -pair[0]):
        if bound <= max((found.speed for found in best.values()), default=0.0):
            break
        for found in itertools.chain.from_iterable(_grow(some, first) for first in _starts(some)):
            known = best.get(found.search.servers)
            if known is None or found.speed > known.speed:
                best[found.search.servers] = found
    if len(by_pace[0]) <= FEW:
        for found in sorted(best.values(), key=lambda each: -each.speed)[:IMPROVED]:
            best[found.search.servers] = found.search.improve(found)
    return best


def _starts(searches: list[PlacementSearch]) -> list[int]:
    """Return the nodes to begin with: those with the highest throughput as the only server."""
    first = next((search for search in searches if len(search.able) >= search.servers), searches[0])
    ordered = sorted(first.able, key=lambda node: -first.fill([(node,)]).speed)
    return ordered[: TRIED if len(searches) <= FEW else 1]


def _grow(searches: Iterable[PlacementSearch], first: int) -> Iterator[FoundPlacement]:
    """Yield plans with more and more servers, beginning at a node; each adds one to those of the plan before."""
    servers: tuple[int, ...] = ()
    best, waited = 0.0, 0
    for search in searches:
        if first not in search.able or len(search.able) < search.servers:
            continue
        found = search.fill([servers or (first,)])
        while len(found.servers) < search.servers:
            found = search.fill([(*found.servers, node) for node in _candidates(search, found)])
        servers = found.servers
        if not found.speed:
            continue
        yield found
        best, waited = (found.speed, 0) if found.speed > best * GAIN else (best, waited + 1)
        if waited == PATIENCE:
            return


def _candidates(search: PlacementSearch, found: FoundPlacement) -> list[int]:
    """Return the nodes to try for one more server; in a large cluster, those that reach the workers best."""
    left = [node for node in search.able if node not in found.servers]
    return left if len(found.counts) <= FEW else sorted(left, key=search.distances(found).__getitem__)[:TRIED]
