"""Dry runs: the makespan of a dispatch rule on a copy of the shop state, in virtual time.

The rule sees expected times only, as in a real run; the actual times are the expected times multiplied by a factor.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hopfleet.scheduler.shop_state import TICK, DispatchRule, ShopState

Factor = Callable[[int, int, int], float]
"""Actual by expected unit time, by trial, partition and epoch."""

DRAWN = 10007
"""Random numbers shared by all dry runs, each from its own offset; prime, so that units rarely share a number."""


def exact(trial: int, partition: int, epoch: int) -> float:
    """Return the factor of a unit that takes exactly its expected time."""
    return 1.0


def lognormal(sigma: float, seed: int) -> Factor:
    """Return independent factors with mean 1; a unit gets the same factor under every dispatch rule."""
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
    """The result of a dry run. ``bound`` is a lower bound on the makespan with the same actual times."""

    makespan: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.makespan / self.bound if self.bound else 1.0


def dry_run(state: ShopState, rule: DispatchRule, *, laps: int = 0, factor: Factor = exact) -> Outcome:
    """Simulate the units of a state, with at most ``laps`` further epochs. Running units end as expected."""
    return _simulate(state.copy(laps), rule, factor, math.inf)


def later(state: ShopState, rule: DispatchRule, *, laps: int, ends: int) -> ShopState:
    """Return the state after the next ``ends`` ends of units, or after all, if units take as long as expected."""
    state = state.copy(laps)
    _simulate(state, rule, exact, ends)
    return state


def _simulate(state: ShopState, rule: DispatchRule, factor: Factor, ends: float) -> Outcome:
    begun = state.now
    running = [(max(state.worker_free[worker], begun), worker) for worker in state.runs]
    heapq.heapify(running)
    trials = [max(free - begun, 0.0) for free in state.trial_free]
    workers = [max(free - begun, 0.0) for free in state.worker_free]
    seconds, epoch, now = state.seconds, state.epoch, begun
    while True:
        if state.idle_trials and state.idle_workers:
            for trial, worker in rule(state):
                partition = state.start(trial, worker)
                actual = seconds[trial][partition] * factor(trial, partition, epoch[trial])
                trials[trial] += actual
                workers[worker] += actual
                heapq.heappush(running, (now + actual, worker))
        if not running or ends <= 0:
            # A rule that waits for nothing would never end.
            stalled = not running and any(map(state.owes, range(len(trials))))
            return Outcome(math.inf if stalled else now - begun, max(*trials, *workers, 0.0))
        now = state.now = running[0][0]
        # Ends that differ by rounding only are one event.
        same = now + TICK
        while running and running[0][0] <= same:
            state.finish(heapq.heappop(running)[1])
            ends -= 1
