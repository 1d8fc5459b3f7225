"""A shop in whole ticks, laid out for speed.

Searches compare sums of times that were added in different orders. Sums of whole ticks are exact, so a unit fits a gap
of its own length. A search returns an *order* of units, and the timetable made from the order uses the shop's own times
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hopfleet.planner.shop import Shop

Order = list[int]
"""All units, each after the units that its configuration and its worker run earlier."""

FINEST = 2.0**50
"""Ticks in the sum of all times, unless the times are whole numbers already."""
SHORTEST = 1e-200
"""Seconds of the smallest tick; dividing by less would overflow when times are next to nothing."""


def tick(shop: Shop, finest: float = FINEST) -> float:
    """Return the seconds of one tick: 1 if all times are whole and sum to at most ``finest``, else sum / ``finest``."""
    times = [*(unit.seconds for unit in shop.units), *shop.config_ready, *shop.worker_ready]
    total = math.fsum(times)
    if total <= finest and all(float(time).is_integer() for time in times):
        return 1.0
    return max(total / finest, SHORTEST)


@dataclass(frozen=True, slots=True)
class Grid:
    """The units of a shop as parallel lists, one entry per unit."""

    config: list[int]
    worker: list[int]
    ticks: list[int]
    config_ready: list[int]
    worker_ready: list[int]
    #: Ticks of the units of each configuration and of each worker, without the time until it is ready.
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
        """Return the end of each unit if every unit starts as early as its predecessors in the order allow."""
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
