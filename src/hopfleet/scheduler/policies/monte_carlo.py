"""Simulate random continuations of the schedule, and start as the best of them starts.

Each rollout draws all its starts at random, weighted by the work left, so most rollouts are sensible. The method needs
no insight into the problem, only time: the other policies find better schedules at a fraction of the cost.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hopfleet.scheduler.dryrun import dry_run, lognormal
from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.shop_state import LEAST, DispatchRule, ShopState, Start

ROLLOUTS = 16
"""Rollouts per choice, unless rollouts are long."""
MOST_UNITS = 600
"""Units of a rollout above which the number of rollouts is reduced in proportion."""


class MonteCarlo(Dispatcher):
    """The policy that follows the best of several random rollouts."""

    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        best: tuple[float, list[Start]] | None = None
        size = len(state.home) * max(len(state.idle_trials), 1)
        for _ in range(max(2, min(ROLLOUTS, ROLLOUTS * MOST_UNITS // size))):
            first: list[Start] = []
            rollout = _randomly(random.Random(rng.getrandbits(32)), first)
            factor = lognormal(state.noise, rng.getrandbits(32))
            ended = dry_run(state, rollout, factor=factor).ratio
            if best is None or ended < best[0]:
                best = ended, first
        assert best is not None
        # Rollouts ignore fixed visit orders and evaluations, so some starts may be impossible. A unit that takes no
        # time ends at once in a rollout, and its worker and its trial start again; only the first start counts.
        starts: dict[int, int] = {}
        for trial, worker in best[1]:
            again = trial in starts or worker in starts.values()
            if worker in state.idle_workers and trial in state.able(worker) and not again:
                starts[trial] = worker
        return list(starts.items())


def _randomly(rng: random.Random, first: list[Start]) -> DispatchRule:
    """Return a dispatch rule that draws starts by urgency, without waiting; ``first`` collects the first starts."""
    begun: list[float] = []

    def rule(state: ShopState) -> Sequence[Start]:
        starts: list[Start] = []
        pairs = [(trial, worker) for worker in sorted(state.idle_workers) for trial in sorted(state.able(worker))]
        most = max(*state.trial_left, *state.worker_left, LEAST)
        while pairs:
            weights = [((state.trial_left[t] + state.worker_left[w]) / most) ** 8 + 1e-9 for t, w in pairs]
            chosen = rng.choices(pairs, weights)[0]
            starts.append(chosen)
            pairs = [(t, w) for t, w in pairs if t != chosen[0] and w != chosen[1]]
        begun[:] = begun or [state.now]
        if state.now == begun[0]:
            first.extend(starts)
        return starts

    return rule
