"""An open shop: every unit of work belongs to a configuration and a worker, and each of these runs one unit at a time.

A planner sees an experiment as a shop: no epochs and no partitions, only which configuration runs on which worker and
for how long. The shop is open because the order of a configuration's units is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError

FOREVER = 1e100
"""Seconds; times must be below, so that their sums stay finite."""


@dataclass(frozen=True, slots=True)
class ShopUnit:
    """One unit of work: a configuration on a worker."""

    config: int
    worker: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shop:
    """Units of ``configs`` configurations on ``workers`` workers. A pair may meet once, several times or never."""

    configs: int
    workers: int
    units: tuple[ShopUnit, ...]
    #: The time when each configuration and each worker can start its first unit; empty means 0 for all.
    config_ready: tuple[float, ...] = ()
    worker_ready: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, kind, count in (("configs", "config", self.configs), ("workers", "worker", self.workers)):
            if count < 0:
                raise UsageError(f"{name}={count}: must be at least 0")
            ready: tuple[float, ...] = getattr(self, f"{kind}_ready") or (0.0,) * count
            if len(ready) != count:
                raise UsageError(
                    f"{kind}_ready has {len(ready)} times for {name}={count}: must have one for each {kind}"
                )
            for index, time in enumerate(ready):
                _check_time(time, f"{kind}_ready[{index}]")
            object.__setattr__(self, f"{kind}_ready", ready)
        for index, unit in enumerate(self.units):
            for kind, number, count in (("config", unit.config, self.configs), ("worker", unit.worker, self.workers)):
                if not 0 <= number < count:
                    raise UsageError(f"units[{index}].{kind}={number}: must be at least 0 and below {count}")
            _check_time(unit.seconds, f"units[{index}].seconds")

    @classmethod
    def of_times(cls, times: Iterable[Sequence[float]]) -> Shop:
        """Return a shop with one unit per entry of a matrix of configurations (rows) by workers (columns)."""
        rows = [list(row) for row in times]
        columns = len(rows[0]) if rows else 0
        for config, row in enumerate(rows):
            if len(row) != columns:
                raise UsageError(
                    f"times[{config}] has {len(row)} entries, times[0] has {columns}: must be equally many"
                )
            for worker, seconds in enumerate(row):
                _check_time(seconds, f"times[{config}][{worker}]")
        units = (ShopUnit(i, j, float(seconds)) for i, row in enumerate(rows) for j, seconds in enumerate(row))
        return cls(len(rows), columns, tuple(units))


def lower_bound(shop: Shop) -> float:
    """Return the end of the busiest worker or configuration if it never waits; no schedule ends earlier."""
    config_times: list[list[float]] = [[ready] for ready in shop.config_ready]
    worker_times: list[list[float]] = [[ready] for ready in shop.worker_ready]
    for unit in shop.units:
        config_times[unit.config].append(unit.seconds)
        worker_times[unit.worker].append(unit.seconds)
    # Workers and configurations without units do not count, however late they are ready.
    return max((math.fsum(times) for times in config_times + worker_times if len(times) > 1), default=0.0)


def _check_time(seconds: object, name: str) -> None:
    if seconds is None:
        raise UsageError(f"{name} is missing: must be a number of seconds; estimate the time of every unit")
    try:
        good = 0 <= float(seconds) < FOREVER  # type: ignore[arg-type]
    except (TypeError, ValueError):
        good = False
    if not good:
        raise UsageError(f"{name}={seconds!r}: must be a number of seconds, at least 0 and below {FOREVER:g}")
