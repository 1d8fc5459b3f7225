"""Timetables: the start of every unit of a shop. ``Timetable.check`` verifies that a timetable is feasible."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hopfleet.errors import InvariantBroken
from hopfleet.planner.shop import Shop, lower_bound


@dataclass(frozen=True, slots=True)
class Orders:
    """Indices of units by start, one sequence per worker and per configuration."""

    workers: tuple[tuple[int, ...], ...]
    configs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Timetable:
    """The start of every unit of a shop: ``starts[i]`` belongs to ``shop.units[i]``."""

    shop: Shop
    starts: tuple[float, ...]

    @classmethod
    def of_order(cls, shop: Shop, order: Sequence[int]) -> Timetable:
        """Start every unit as early as its predecessors in ``order``, a permutation of all units, allow."""
        config_free, worker_free = list(shop.config_ready), list(shop.worker_ready)
        starts = [0.0] * len(shop.units)
        for index in order:
            unit = shop.units[index]
            start = max(config_free[unit.config], worker_free[unit.worker])
            starts[index] = start
            config_free[unit.config] = worker_free[unit.worker] = start + unit.seconds
        return cls(shop, tuple(starts))

    @property
    def makespan(self) -> float:
        return max(map(self._end, range(len(self.starts))), default=0.0)

    @property
    def ratio(self) -> float:
        """Return the makespan divided by the lower bound; 1 cannot be improved."""
        bound = lower_bound(self.shop)
        return self.makespan / bound if bound else 1.0

    def orders(self) -> Orders:
        """Return the units of each worker and each configuration by start."""
        workers: list[list[int]] = [[] for _ in range(self.shop.workers)]
        configs: list[list[int]] = [[] for _ in range(self.shop.configs)]
        # Of two units that start together, the one of zero length comes first.
        for index in sorted(range(len(self.starts)), key=lambda i: (self.starts[i], self._end(i), i)):
            workers[self.shop.units[index].worker].append(index)
            configs[self.shop.units[index].config].append(index)
        return Orders(tuple(map(tuple, workers)), tuple(map(tuple, configs)))

    def check(self) -> None:
        """Raise InvariantBroken unless every worker and configuration runs one unit at a time, and only once ready."""
        if len(self.starts) != len(self.shop.units):
            raise InvariantBroken(f"{len(self.starts)} starts for {len(self.shop.units)} units")
        orders = self.orders()
        for kind, owners, ready in (
            ("worker", orders.workers, self.shop.worker_ready),
            ("config", orders.configs, self.shop.config_ready),
        ):
            for owner, units in enumerate(owners):
                if units and self.starts[units[0]] < ready[owner]:
                    raise InvariantBroken(f"{self._story(units[0])}, before {kind} {owner} is ready at {ready[owner]}")
                for first, second in itertools.pairwise(units):
                    if self.starts[second] < self._end(first):
                        raise InvariantBroken(f"{kind} {owner}: {self._story(second)}, during {self._story(first)}")

    def _end(self, index: int) -> float:
        return self.starts[index] + self.shop.units[index].seconds

    def _story(self, index: int) -> str:
        unit = self.shop.units[index]
        where = f"unit {index} (config {unit.config}, worker {unit.worker})"
        return f"{where} runs from {self.starts[index]} to {self._end(index)}"
