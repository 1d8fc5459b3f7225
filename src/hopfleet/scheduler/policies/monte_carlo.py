"""Try out random schedules from here on, and begin as the best of them begins.

Each trial run starts at random and goes on at random, weighted by what is left, so that most of them are sensible. It
asks for no insight into the problem, only for time: the others here find better schedules at a fraction of the cost.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hopfleet.scheduler.dryrun import dry_run, lognormal
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.shop_state import Floor, Rule, Start

ROLLOUTS = 16
MOST_UNITS = 600
"""Rollouts are fewer where a single one is long."""


class MonteCarlo(Dispatcher):
    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        best: tuple[float, list[Start]] | None = None
        size = len(floor.home) * max(len(floor.idle_trials), 1)
        for _ in range(max(2, min(ROLLOUTS, ROLLOUTS * MOST_UNITS // size))):
            first: list[Start] = []
            rollout = _randomly(random.Random(rng.getrandbits(32)), first)
            factor = lognormal(floor.noise, rng.getrandbits(32))
            ended = dry_run(floor, rollout, factor=factor).ratio
            if best is None or ended < best[0]:
                best = ended, first
        assert best is not None
        # A rollout takes orders that are given, and evaluations, less seriously.
        starts: dict[int, int] = {}
        for trial, worker in best[1]:
            # A unit that takes no time ends at once in a rollout, and its worker and trial start another.
            again = trial in starts or worker in starts.values()
            if worker in floor.idle_workers and trial in floor.able(worker) and not again:
                starts[trial] = worker
        return list(starts.items())


def _randomly(rng: random.Random, first: list[Start]) -> Rule:
    """A rule that lets nobody wait and else draws by urgency; ``first`` gets what it starts at the first moment."""
    begun: list[float] = []

    def rule(floor: Floor) -> Sequence[Start]:
        starts: list[Start] = []
        pairs = [(trial, worker) for worker in sorted(floor.idle_workers) for trial in sorted(floor.able(worker))]
        most = max(*floor.trial_left, *floor.worker_left, 1e-300)
        while pairs:
            weights = [((floor.trial_left[t] + floor.worker_left[w]) / most) ** 8 + 1e-9 for t, w in pairs]
            chosen = rng.choices(pairs, weights)[0]
            starts.append(chosen)
            pairs = [(t, w) for t, w in pairs if t != chosen[0] and w != chosen[1]]
        begun[:] = begun or [floor.now]
        if floor.now == begun[0]:
            first.extend(starts)
        return starts

    return rule
