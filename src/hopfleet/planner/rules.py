"""List scheduling: whenever a worker and a configuration with a unit for that worker are both idle, a pair starts.

A priority rule only decides which pair starts first. No worker waits that could run a unit, so the makespan is at most
the sum of the loads of the last unit's worker and configuration. The rule ``colored`` is the exception.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence

from hopfleet.planner.grid import Grid, Order
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable

PriorityRule = Callable[[Grid, random.Random], Order]
"""Returns the order in which list scheduling starts the units of a shop."""


def schedule(shop: Shop, rule: PriorityRule, rng: random.Random) -> Timetable:
    """Return the timetable of a priority rule."""
    return Timetable.of_order(shop, rule(Grid.of(shop), rng))


# ---------------------------------------------------------------------------------------------------- rules


def longest_remaining(grid: Grid, rng: random.Random, noise: float = 0.0) -> Order:
    """Start with the idle worker with the largest load, which takes the configuration with the most work left.

    ``noise`` raises every load by up to this part of the lower bound, which yields other orders.
    """
    config_left, worker_left = _loads(grid, rng, noise)

    def choose(state: _ListState) -> int | None:
        state.idle.sort(key=worker_left.__getitem__)
        for worker in reversed(state.idle):
            config = max(state.waiting[worker].keys() & state.free, key=config_left.__getitem__, default=None)
            if config is not None:
                unit = state.waiting[worker][config][-1]
                config_left[config] -= grid.ticks[unit]
                worker_left[worker] -= grid.ticks[unit]
                return unit
        return None

    return _ListState(grid).run(choose)


def heaviest_match(grid: Grid, rng: random.Random, noise: float = 0.0) -> Order:
    """Start the pair of the largest weight, where one very urgent side outweighs two moderately urgent sides."""
    config_left, worker_left = _loads(grid, rng, noise)
    unit_of_weight = max(*config_left, *worker_left, 1.0)

    def choose(state: _ListState) -> int | None:
        best, best_weight = None, -1.0
        for worker in state.idle:
            load = worker_left[worker] / unit_of_weight
            for config in state.waiting[worker].keys() & state.free:
                left = config_left[config] / unit_of_weight
                weight = left**4 + load**4 + 0.3 * left * load
                if weight > best_weight:
                    best, best_weight = state.waiting[worker][config][-1], weight
        if best is not None:
            config_left[grid.config[best]] -= grid.ticks[best]
            worker_left[grid.worker[best]] -= grid.ticks[best]
        return best

    return _ListState(grid).run(choose)


def longest_unit(grid: Grid, rng: random.Random) -> Order:
    """Start the longest unit."""
    return by_priority(grid, grid.ticks)


def random_unit(grid: Grid, rng: random.Random) -> Order:
    """Start a random unit, as in the Cerebro paper."""
    return by_priority(grid, [rng.random() for _ in grid.ticks])


def colored(grid: Grid, rng: random.Random) -> Order:
    """Order units by the colours of a bipartite edge colouring, which is optimal if all units take the same time.

    Unlike the other rules, ``colored`` lets a worker wait for its turn, which pays where unit times are nearly equal.

    A bipartite graph of maximum degree d needs d colours: a new edge takes a colour that is free at its configuration;
    if the colour is taken at its worker, the two colours are swapped along the path that starts there.
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
    """Start the unit with the highest priority that can start; ties go to the first in the shop."""
    rank = [0] * len(grid)
    queues: list[list[int]] = [[] for _ in grid.worker_ready]
    for place, unit in enumerate(sorted(range(len(grid)), key=lambda u: -priority[u])):
        rank[unit] = place
        queues[grid.worker[unit]].append(unit)

    def choose(state: _ListState) -> int | None:
        best = None
        for worker in state.idle:
            for unit in queues[worker]:
                if grid.config[unit] in state.free:
                    if best is None or rank[unit] < rank[best]:
                        best = unit
                    break
        if best is not None:
            queues[grid.worker[best]].remove(best)
        return best

    return _ListState(grid).run(choose)


PRIORITY_RULES: Mapping[str, PriorityRule] = {
    "longest-remaining": longest_remaining,
    "colored": colored,
    "heaviest-match": heaviest_match,
    "longest-unit": longest_unit,
    "random": random_unit,
}


# ---------------------------------------------------------------------------------------------------- list scheduling


class _ListState:
    """The idle workers and configurations at one moment of a list schedule."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.idle: list[int] = []
        self.free: set[int] = set()
        #: Units not started, by worker and configuration, the longest unit last.
        self.waiting: list[dict[int, list[int]]] = [{} for _ in grid.worker_ready]
        for unit in sorted(range(len(grid)), key=grid.ticks.__getitem__):
            self.waiting[grid.worker[unit]].setdefault(grid.config[unit], []).append(unit)

    def run(self, choose: Callable[[_ListState], int | None]) -> Order:
        """Start the units that ``choose`` returns until it returns None, then advance to the next end of a unit."""
        grid, idle, free = self.grid, self.idle, self.free
        # Entries: a time, then the configuration and the worker that are free from then on (-1 for none).
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
