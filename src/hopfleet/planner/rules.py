"""List scheduling: whenever a worker and a configuration with a unit for it are both idle, some such pair starts.

A rule only says which pair goes first. Nobody who could work waits, so all is done by the sum of the loads of the last
unit's worker and configuration at the latest. ``colored`` is the exception.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence

from hopfleet.planner.grid import Grid, Order
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable

Rule = Callable[[Grid, random.Random], Order]


def schedule(shop: Shop, rule: Rule, rng: random.Random) -> Timetable:
    return Timetable.of_order(shop, rule(Grid.of(shop), rng))


# ---------------------------------------------------------------------------------------------------- rules


def longest_remaining(grid: Grid, rng: random.Random, noise: float = 0.0) -> Order:
    """The most loaded idle worker first; it takes the configuration with the most left to do.

    ``noise`` raises every load by up to this part of the lower bound, so that other orders come out.
    """
    config_left, worker_left = _loads(grid, rng, noise)

    def choose(floor: _Floor) -> int | None:
        floor.idle.sort(key=worker_left.__getitem__)
        for worker in reversed(floor.idle):
            config = max(floor.waiting[worker].keys() & floor.free, key=config_left.__getitem__, default=None)
            if config is not None:
                unit = floor.waiting[worker][config][-1]
                config_left[config] -= grid.ticks[unit]
                worker_left[worker] -= grid.ticks[unit]
                return unit
        return None

    return _Floor(grid).run(choose)


def heaviest_match(grid: Grid, rng: random.Random, noise: float = 0.0) -> Order:
    """The pair of the greatest weight first, where being urgent on one side counts more than a little on both."""
    config_left, worker_left = _loads(grid, rng, noise)
    unit_of_weight = max(*config_left, *worker_left, 1.0)

    def choose(floor: _Floor) -> int | None:
        best, best_weight = None, -1.0
        for worker in floor.idle:
            load = worker_left[worker] / unit_of_weight
            for config in floor.waiting[worker].keys() & floor.free:
                left = config_left[config] / unit_of_weight
                weight = left**4 + load**4 + 0.3 * left * load
                if weight > best_weight:
                    best, best_weight = floor.waiting[worker][config][-1], weight
        if best is not None:
            config_left[grid.config[best]] -= grid.ticks[best]
            worker_left[grid.worker[best]] -= grid.ticks[best]
        return best

    return _Floor(grid).run(choose)


def longest_unit(grid: Grid, rng: random.Random) -> Order:
    return by_priority(grid, grid.ticks)


def random_unit(grid: Grid, rng: random.Random) -> Order:
    """The Cerebro paper's choice."""
    return by_priority(grid, [rng.random() for _ in grid.ticks])


def colored(grid: Grid, rng: random.Random) -> Order:
    """By the colours of a bipartite edge colouring, as if all units took the same time: if they do, this is optimal.

    It alone of the rules lets a worker wait for its turn, which pays where units take nearly the same time.

    A graph of greatest degree d needs d colours: a new edge takes a colour that is free at its configuration and, if
    that is taken at its worker, swaps the two colours along the path that starts there.
    """
    size = len(grid.config_ready)
    nodes: list[dict[int, int]] = [{} for _ in range(size + len(grid.worker_ready))]  # colour -> unit, by node
    ends = [(c, size + w) for c, w in zip(grid.config, grid.worker, strict=True)]
    colors = [0] * len(grid)
    for unit, (config, worker) in enumerate(ends):
        wanted, spare = _free_color(nodes[config]), _free_color(nodes[worker])
        path, node, color = [], worker, wanted
        while wanted != spare and color in nodes[node]:
            edge = nodes[node][color]
            path.append(edge)
            node = sum(ends[edge]) - node
            color = wanted + spare - color
        for edge in path:
            for node in ends[edge]:
                if nodes[node].get(colors[edge]) == edge:
                    del nodes[node][colors[edge]]
            colors[edge] = wanted + spare - colors[edge]
            for node in ends[edge]:
                nodes[node][colors[edge]] = edge
        colors[unit] = wanted
        nodes[config][wanted] = nodes[worker][wanted] = unit
    return sorted(range(len(grid)), key=colors.__getitem__)


def by_priority(grid: Grid, priority: Sequence[float]) -> Order:
    """The unit of the greatest priority first, of those that can start; of equal ones the first in the shop."""
    rank = [0] * len(grid)
    queues: list[list[int]] = [[] for _ in grid.worker_ready]
    for place, unit in enumerate(sorted(range(len(grid)), key=lambda u: -priority[u])):
        rank[unit] = place
        queues[grid.worker[unit]].append(unit)

    def choose(floor: _Floor) -> int | None:
        best = None
        for worker in floor.idle:
            for unit in queues[worker]:
                if grid.config[unit] in floor.free:
                    if best is None or rank[unit] < rank[best]:
                        best = unit
                    break
        if best is not None:
            queues[grid.worker[best]].remove(best)
        return best

    return _Floor(grid).run(choose)


RULES: Mapping[str, Rule] = {
    "longest-remaining": longest_remaining,
    "colored": colored,
    "heaviest-match": heaviest_match,
    "longest-unit": longest_unit,
    "random": random_unit,
}


# ---------------------------------------------------------------------------------------------------- the floor


class _Floor:
    """Who is idle while the clock of a schedule runs on."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.idle: list[int] = []
        self.free: set[int] = set()
        #: Units not started, by worker and configuration, the longest last.
        self.waiting: list[dict[int, list[int]]] = [{} for _ in grid.worker_ready]
        for unit in sorted(range(len(grid)), key=grid.ticks.__getitem__):
            self.waiting[grid.worker[unit]].setdefault(grid.config[unit], []).append(unit)

    def run(self, choose: Callable[[_Floor], int | None]) -> Order:
        """Start what ``choose`` names, as often as it names a unit, then let time pass to the next end of a unit."""
        grid, idle, free = self.grid, self.idle, self.free
        # Time, then a configuration and a worker that are free from then on, or -1.
        heap = [(time, config, -1) for config, time in enumerate(grid.config_ready)]
        heap += [(time, -1, worker) for worker, time in enumerate(grid.worker_ready)]
        heapq.heapify(heap)
        order: Order = []
        while heap:
            now = heap[0][0]
            while heap and heap[0][0] == now:
                _, config, worker = heapq.heappop(heap)
                if config >= 0:
                    free.add(config)
                if worker >= 0:
                    idle.append(worker)
            while idle and (unit := choose(self)) is not None:
                config, worker = grid.config[unit], grid.worker[unit]
                idle.remove(worker)
                free.remove(config)
                units = self.waiting[worker][config]
                units.remove(unit)
                if not units:
                    del self.waiting[worker][config]
                heapq.heappush(heap, (now + grid.ticks[unit], config, worker))
                order.append(unit)
        return order


def _loads(grid: Grid, rng: random.Random, noise: float) -> tuple[list[float], list[float]]:
    if not noise:
        return list(grid.config_load), list(grid.worker_load)
    most = noise * grid.bound
    return [x + most * rng.random() for x in grid.config_load], [x + most * rng.random() for x in grid.worker_load]


def _free_color(taken: Mapping[int, int]) -> int:
    color = 0
    while color in taken:
        color += 1
    return color
