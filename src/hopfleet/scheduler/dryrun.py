"""A rule tried out on a copy of the floor, in virtual time: what the makespan would be if units took so long.

The rule sees the expected times alone, as it would in earnest; the actual ones are the expected ones times a factor.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from hopfleet.scheduler.floor import Floor, Rule

Factor = Callable[[int, int, int], float]
"""By what an actual unit time differs, by trial, partition and epoch."""


def exact(trial: int, partition: int, epoch: int) -> float:
    return 1.0


def lognormal(sigma: float, seed: int) -> Factor:
    """Independent factors with a mean of 1; the same unit always gets the same one, whatever the rule does."""
    drawn: dict[tuple[int, int, int], float] = {}
    rng = random.Random(seed)

    def factor(trial: int, partition: int, epoch: int) -> float:
        unit = trial, partition, epoch
        if unit not in drawn:
            rng.seed(f"{seed} {unit}")
            drawn[unit] = rng.lognormvariate(-sigma * sigma / 2, sigma)
        return drawn[unit]

    return factor


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a dry run went. ``bound`` is what the makespan could not fall below with these actual times."""

    makespan: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.makespan / self.bound if self.bound else 1.0


def dry_run(floor: Floor, rule: Rule, *, laps: int = 0, factor: Factor = exact) -> Outcome:
    """Live through the floor's units, with at most ``laps`` further epochs. What runs now ends as expected."""
    begun = floor.now
    floor = floor.copy(laps)
    running = [(max(floor.worker_free[worker], begun), worker) for worker in floor.runs]
    heapq.heapify(running)
    trials = [max(free - begun, 0.0) for free in floor.trial_free]
    workers = [max(free - begun, 0.0) for free in floor.worker_free]
    last = begun
    while True:
        while starts := rule(floor):
            for trial, worker in starts:
                partition = floor.start(trial, worker)
                actual = floor.seconds[trial][partition] * factor(trial, partition, floor.epoch[trial])
                trials[trial] += actual
                workers[worker] += actual
                heapq.heappush(running, (floor.now + actual, worker))
        if not running:
            return Outcome(last - begun, max(*trials, *workers, 0.0))
        last = floor.now = running[0][0]
        # Ends that only rounding keeps apart are one event.
        while running and running[0][0] <= last * (1 + 1e-12):
            floor.finish(heapq.heappop(running)[1])
