"""A rule tried out on a copy of the floor, in virtual time: what the makespan would be if units took so long.

The rule sees the expected times alone, as it would in earnest; the actual ones are the expected ones times a factor.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hopfleet.scheduler.shop_state import Floor, Rule

Factor = Callable[[int, int, int], float]
"""By what an actual unit time differs, by trial, partition and epoch."""

DRAWN = 10007
"""Random numbers that all dry runs share, each from another beginning; a prime, so that units rarely meet."""


def exact(trial: int, partition: int, epoch: int) -> float:
    return 1.0


def lognormal(sigma: float, seed: int) -> Factor:
    """Independent factors with a mean of 1; the same unit always gets the same one, whatever the rule does."""
    normals, shift, exp = _normals(), -sigma * sigma / 2, math.exp

    def factor(trial: int, partition: int, epoch: int) -> float:
        return exp(shift + sigma * normals[(seed + 8191 * trial + 131 * partition + 17 * epoch) % DRAWN])

    return factor


@cache
def _normals() -> list[float]:
    rng = random.Random(0)
    return [rng.gauss(0.0, 1.0) for _ in range(DRAWN)]


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
    return _live(floor.copy(laps), rule, factor, math.inf)


def later(floor: Floor, rule: Rule, *, laps: int, ends: int) -> Floor:
    """The floor when so many units will have ended, or all of them, if they take as long as expected."""
    floor = floor.copy(laps)
    _live(floor, rule, exact, ends)
    return floor


def _live(floor: Floor, rule: Rule, factor: Factor, ends: float) -> Outcome:
    begun = floor.now
    running = [(max(floor.worker_free[worker], begun), worker) for worker in floor.runs]
    heapq.heapify(running)
    trials = [max(free - begun, 0.0) for free in floor.trial_free]
    workers = [max(free - begun, 0.0) for free in floor.worker_free]
    seconds, epoch, now = floor.seconds, floor.epoch, begun
    while True:
        if floor.idle_trials and floor.idle_workers:
            for trial, worker in rule(floor):
                partition = floor.start(trial, worker)
                actual = seconds[trial][partition] * factor(trial, partition, epoch[trial])
                trials[trial] += actual
                workers[worker] += actual
                heapq.heappush(running, (now + actual, worker))
        if not running or ends <= 0:
            return Outcome(now - begun, max(*trials, *workers, 0.0))
        now = floor.now = running[0][0]
        # Ends that only rounding keeps apart are one event.
        same = now * (1 + 1e-12)
        while running and running[0][0] <= same:
            floor.finish(heapq.heappop(running)[1])
            ends -= 1
