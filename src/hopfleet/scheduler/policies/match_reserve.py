"""Match idle workers with idle trials by urgency, and hold a partner for whoever is critical and still busy.

Every choice at one moment is made at once, as a matching of great weight: a pair counts for what its trial and its
worker have left, steeply, so that being urgent on one side outweighs a little on both. Somebody busy whose end is what
the makespan hangs on takes part too, if a partner is idle who can afford to wait for it: then the two begin together
instead of one after the other's next unit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hopfleet.scheduler.floor import Floor, Start
from hopfleet.scheduler.policies.dispatcher import Dispatcher

CRITICAL = 0.5
"""Whoever would end within so many mean units of the bound is critical."""

BLIND = 0.3
"""With this much noise nobody is waited for who is not the most critical of all."""


def match_and_reserve(floor: Floor, critical: float = CRITICAL) -> Sequence[Start]:
    """The rule itself; see the top of the file."""
    now, trials, workers = floor.now, floor.idle_trials, floor.idle_workers
    if not trials or not workers:
        return ()
    trial_left, worker_left = floor.trial_left, floor.worker_left
    most = max(*trial_left, *worker_left, 1e-300)
    trial_ends = [max(free, now) + left for free, left in zip(floor.trial_free, trial_left, strict=True)]
    worker_ends = [max(free, now) + left for free, left in zip(floor.worker_free, worker_left, strict=True)]
    bound = max(*(end for end, left in zip(trial_ends, trial_left, strict=True) if left), *worker_ends, now)
    # The less is known of when units end, the less it is worth to wait for one.
    known = max(1e-9, 1 - floor.noise / BLIND)
    late = bound - critical * known * sum(worker_left) / max(floor.units, 1)
    edges: list[tuple[float, int, int]] = []
    awaited_trials = [t for t in floor.runs.values() if t >= 0 and trial_left[t] and trial_ends[t] >= late]
    awaited_workers = [w for w in floor.runs if worker_left[w] and worker_ends[w] >= late]
    for worker in workers:
        load = worker_left[worker] / most
        base, steep = 2 + load**4, 0.3 * load
        for trial in floor.able(worker):
            left = trial_left[trial] / most
            edges.append((base + left**4 + steep * left, trial, worker))
        for trial in awaited_trials:
            wait = abs(floor.trial_free[trial] - now)
            if worker in floor.todo[trial] and worker_ends[worker] + wait <= bound * (1 + 1e-12):
                left = trial_left[trial] / most
                edges.append((base + left**4 + steep * left, trial, worker))
    for worker in awaited_workers:
        load = worker_left[worker] / most
        wait = abs(floor.worker_free[worker] - now)
        for trial in floor.able(worker):
            if trial_ends[trial] + wait <= bound * (1 + 1e-12):
                left = trial_left[trial] / most
                edges.append((2 + load**4 + left**4 + 0.3 * load * left, trial, worker))
    chosen = _matching(edges)
    return [(trial, worker) for trial, worker in chosen.items() if trial in trials and worker in workers]


def match_alone(floor: Floor) -> Sequence[Start]:
    """Without reservations."""
    return match_and_reserve(floor, -math.inf)


def _matching(edges: list[tuple[float, int, int]]) -> dict[int, int]:
    """A matching of trials with workers: greedily by weight, then grown along augmenting paths to the most pairs."""
    edges.sort(key=lambda edge: (-edge[0], edge[1], edge[2]))
    worker_of: dict[int, int] = {}
    trial_of: dict[int, int] = {}
    partners: dict[int, list[int]] = {}
    for _, trial, worker in edges:
        partners.setdefault(worker, []).append(trial)
        if trial not in worker_of and worker not in trial_of:
            worker_of[trial] = worker
            trial_of[worker] = trial

    def augment(worker: int, seen: set[int]) -> bool:
        for trial in partners[worker]:
            if trial not in seen:
                seen.add(trial)
                other = worker_of.get(trial)
                if other is None or augment(other, seen):
                    worker_of[trial] = worker
                    trial_of[worker] = trial
                    return True
        return False

    for worker in partners:
        if worker not in trial_of:
            augment(worker, set())
    return worker_of


class MatchReserve(Dispatcher):
    def _choose(self, floor: Floor, rng: random.Random) -> Sequence[Start]:
        return match_and_reserve(floor)
