"""Improvement of a given order, by shifting all units back and forth and by removing and reinserting units.

``justify`` is cheap and never makes an order worse; ``reinsert`` searches until its budget is spent. Both measure their
work in *placements*, one for each unit that they place, so a budget has the same effect on every machine.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from hopfleet.planner.grid import Grid, Order


@dataclass(slots=True)
class Budget:
    """The work that a search may still do."""

    placements: float
    #: Polled between steps; True ends the search at once.
    stop: Callable[[], bool] = lambda: False

    def spend(self, placements: float) -> None:
        self.placements -= placements

    @property
    def spent(self) -> bool:
        return self.placements <= 0 or self.stop()


# ---------------------------------------------------------------------------------------------------- justification


def justify(grid: Grid, order: Order, budget: Budget) -> Order:
    """Shift all units as late as the makespan allows, then as early as possible, and repeat while the makespan falls.

    In this forward-backward improvement a unit may use any gap and always finds its former place free, so the makespan
    never grows.
    """
    ends = grid.ends(order)
    makespan = max(ends, default=0)
    while makespan > grid.bound:
        backward = sorted(order, key=ends.__getitem__)[::-1]
        before_end = _earliest(grid, backward, [0] * len(grid.config_ready), [0] * len(grid.worker_ready))
        # Times count from the end: the later a unit starts in the reversed schedule, the earlier it ends.
        left = [start + length for start, length in zip(before_end, grid.ticks, strict=True)]
        forward = sorted(backward, key=left.__getitem__)[::-1]
        starts = _earliest(grid, forward, grid.config_ready, grid.worker_ready)
        order = sorted(forward, key=lambda u: (starts[u], grid.ticks[u]))
        ends = [start + length for start, length in zip(starts, grid.ticks, strict=True)]
        budget.spend(2 * len(grid))
        if max(ends) >= makespan or budget.spent:
            break
        makespan = max(ends)
    return order


def _earliest(grid: Grid, order: Order, config_ready: list[int], worker_ready: list[int]) -> list[int]:
    """Return the starts if each unit takes the first gap that is long enough on its configuration and its worker."""
    config_gaps = [[(ready, math.inf)] for ready in config_ready]
    worker_gaps = [[(ready, math.inf)] for ready in worker_ready]
    starts = [0] * len(grid)
    for unit in order:
        length = grid.ticks[unit]
        gaps, others = worker_gaps[grid.worker[unit]], config_gaps[grid.config[unit]]
        i = j = 0
        opens, closes = gaps[0]
        other_opens, other_closes = others[0]
        while True:
            start = opens
            if other_opens > start:
                start = other_opens
            end = start + length
            if end > closes:
                i += 1
                opens, closes = gaps[i]
            elif end > other_closes:
                j += 1
                other_opens, other_closes = others[j]
            else:
                break
        starts[unit] = start
        gaps[i : i + 1] = _rest(opens, closes, start, end)
        others[j : j + 1] = _rest(other_opens, other_closes, start, end)
    return starts


def _rest(opens: int, closes: float, start: int, end: int) -> list[tuple[int, float]]:
    """Return the parts of a gap that a unit leaves free. A unit of zero length splits the gap too."""
    if opens < start:
        return [(opens, start), (end, closes)] if end < closes else [(opens, start)]
    return [(end, closes)] if end < closes else []


# ---------------------------------------------------------------------------------------------------- reinsertion

HEAT = 2.0
"""Initial temperature of the search, in standard deviations of unit times: how much worse an accepted order may be."""
PATIENCE = 100
"""Reinsertions per unit that justify the full heat; with a smaller budget the heat is reduced in proportion."""
SOME = 6
"""Units removed at a time, unless they are most units of one worker or configuration."""


def reinsert(grid: Grid, order: Order, rng: random.Random, budget: Budget) -> Order:
    """Return the best order seen by an iterated greedy search with falling temperature.

    Each step removes some units around a critical one and reinserts each at its best place. The best place follows from
    two figures of every other unit: ``before``, the time of its end, and ``after``, the time from its start to the end
    of the schedule. A unit inserted between two neighbours lies on a path of length before + its own time + after.
    """
    search = _Reinsertion(grid, order, rng)
    best, best_makespan = order, search.makespan
    allowed = max(budget.placements, 1.0)
    cost = 8 + 0.3 * len(grid)  # placements per reinsertion, as measured
    patience = min(1.0, allowed / (cost * max(len(grid), 1) * PATIENCE))
    heat = HEAT * patience * (statistics.pstdev(grid.ticks) if grid.ticks else 0.0)
    while best_makespan > grid.bound and not budget.spent:
        temperature = heat * max(budget.placements, 0.0) / allowed
        removed = search.choose()
        search.step(removed, slack=-temperature * math.log(1.0 - rng.random()))
        if search.makespan < best_makespan:
            best, best_makespan = search.order, search.makespan
        budget.spend(len(removed) * cost)
    return best


class _Reinsertion:
    """The current order of the search, and the steps that change it."""

    def __init__(self, grid: Grid, order: Order, rng: random.Random) -> None:
        self.grid, self.rng, self.order = grid, rng, order
        self.before, self.after = grid.ends(order), self._after(order)
        self.makespan = max(self.before, default=0)

    def choose(self) -> list[int]:
        """Return the units to remove, in the order in which to reinsert them."""
        grid, rng = self.grid, self.rng
        length = self.makespan
        critical = [u for u in self.order if self.before[u] + self.after[u] - grid.ticks[u] >= length]
        units = sorted(self._around(rng.choice(critical), critical))
        rng.shuffle(units)
        if rng.random() < 0.5:
            units.sort(key=lambda u: grid.ticks[u] * (0.5 + rng.random()), reverse=True)
        return units

    def _around(self, one: int, critical: list[int]) -> set[int]:
        """Return a critical unit together with others, drawn in one of four ways."""
        grid, rng = self.grid, self.rng
        way, some = rng.randrange(4), rng.randint(1, SOME)
        if way == 0:  # critical units and any others
            return {one, *(rng.choice(critical if rng.random() < 0.5 else self.order) for _ in range(some - 1))}
        if way == 1:  # most units of its worker or its configuration
            owner = grid.worker if rng.random() < 0.5 else grid.config
            return {u for u in self.order if owner[u] == owner[one] and (u == one or rng.random() < 0.7)}
        if way == 2:  # units at about the same time
            here = self.order.index(one)
            return set(self.order[max(0, here - some // 2) : here + some // 2 + 1])
        # units that compete for its worker or its configuration
        rivals = [u for u in self.order if grid.worker[u] == grid.worker[one] or grid.config[u] == grid.config[one]]
        return {one, *rng.sample(rivals, min(len(rivals), some + 1))}

    def step(self, removed: list[int], slack: float) -> None:
        """Reinsert units, and accept the new order if the makespan grows by at most ``slack``."""
        out = set(removed)
        order = [u for u in self.order if u not in out]
        for unit in removed:
            order = self._put(unit, order)
        before = self.grid.ends(order)
        makespan = max(before)
        if makespan <= self.makespan + slack:
            self.order, self.makespan = order, makespan
            self.before, self.after = before, self._after(order)

    def _put(self, unit: int, order: Order) -> Order:
        grid, rng = self.grid, self.rng
        before, after = grid.ends(order), self._after(order)
        # Both sort keys give the same schedule, but different places between a worker's and a configuration's units.
        if rng.random() < 0.5:
            order.sort(key=[end - length for end, length in zip(before, grid.ticks, strict=True)].__getitem__)
        else:
            order.sort(key=after.__getitem__, reverse=True)
        c, w = grid.config[unit], grid.worker[unit]
        config, worker = grid.config, grid.worker
        rivals = [u for u in order if config[u] == c or worker[u] == w]
        ready = max(grid.config_ready[c], grid.worker_ready[w])
        heads = accumulate([before[u] for u in rivals], max, initial=ready)
        tails = [*accumulate([after[u] for u in reversed(rivals)], max, initial=0)]
        lengths = [head + tail for head, tail in zip(heads, reversed(tails), strict=True)]
        shortest = min(lengths)
        place = rng.choice([i for i, length in enumerate(lengths) if length == shortest])
        order.insert(order.index(rivals[place]) if place < len(rivals) else len(order), unit)
        return order

    def _after(self, order: Order) -> list[int]:
        """Return the time from each unit's start to the end of the schedule if every unit runs as late as possible."""
        config, worker, ticks = self.grid.config, self.grid.worker, self.grid.ticks
        config_left, worker_left = [0] * len(self.grid.config_ready), [0] * len(self.grid.worker_ready)
        after = [0] * len(ticks)
        for u in reversed(order):
            c, w = config[u], worker[u]
            left, other = config_left[c], worker_left[w]
            if other > left:
                left = other
            after[u] = config_left[c] = worker_left[w] = left + ticks[u]
        return after
