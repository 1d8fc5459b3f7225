"""A shop in whole ticks, laid out for speed.

Searches compare sums of times that were added in different orders; in ticks they are equal exactly when they should
be, so that a unit fits a gap of its own length. What a search returns is an *order* of units: the timetable made from
it has the shop's own times again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hopfleet.planner.shop import Shop

Order = list[int]
"""All units, each after those that its configuration and its worker run before it."""

FINEST = 2.0**50
"""Ticks in the sum of all times, unless they are whole numbers already."""
SHORTEST = 1e-200
"""A tick in seconds, when times are next to nothing: less could not be divided by."""


def tick(shop: Shop, finest: float = FINEST) -> float:
    """Seconds of one tick: 1 if all times are whole numbers with a sum of at most ``finest``, else as fine as that."""
    times = [*(unit.seconds for unit in shop.units), *shop.config_ready, *shop.worker_ready]
    total = math.fsum(times)
    if total <= finest and all(float(time).is_integer() for time in times):
        return 1.0
    return max(total / finest, SHORTEST)


@dataclass(frozen=True, slots=True)
class Grid:
    """The fields of a shop's units as parallel lists, by unit."""

    config: list[int]
    worker: list[int]
    ticks: list[int]
    config_ready: list[int]
    worker_ready: list[int]
    #: Ticks of each configuration and each worker, without the time until it is ready.
    config_load: list[int]
    worker_load: list[int]
    bound: int

    @classmethod
    def of(cls, shop: Shop, finest: float = FINEST) -> Grid:
        size = tick(shop, finest)
        config, worker = [unit.config for unit in shop.units], [unit.worker for unit in shop.units]
        ticks = [round(unit.seconds / size) for unit in shop.units]
        config_ready, worker_ready = (
            [round(time / size) for time in r] for r in (shop.config_ready, shop.worker_ready)
        )
        config_load, worker_load = [0] * shop.configs, [0] * shop.workers
        for i, length in enumerate(ticks):
            config_load[config[i]] += length
            worker_load[worker[i]] += length
        ends = [
            *(config_ready[c] + config_load[c] for c in set(config)),
            *(worker_ready[w] + worker_load[w] for w in set(worker)),
        ]
        return cls(config, worker, ticks, config_ready, worker_ready, config_load, worker_load, max(ends, default=0))

    def __len__(self) -> int:
        return len(self.ticks)

    def ends(self, order: Iterable[int]) -> list[int]:
        """When each unit ends, if each starts as early as those before it in the order let it."""
        config, worker, ticks = self.config, self.worker, self.ticks
        config_free, worker_free = self.config_ready[:], self.worker_ready[:]
        ends = [0] * len(ticks)
        for u in order:
            c, w = config[u], worker[u]
            start, other = config_free[c], worker_free[w]
            if other > start:
                start = other
            ends[u] = config_free[c] = worker_free[w] = start + ticks[u]
        return ends

    def makespan(self, order: Order) -> int:
        return max(self.ends(order), default=0)
