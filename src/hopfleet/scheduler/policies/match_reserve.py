"""Match idle workers with idle trials by urgency, and hold a partner for whoever is critical and still busy.

Every choice at one moment is made at once, as a matching of great weight: a pair counts for what its trial and its
worker have left, steeply, so that being urgent on one side outweighs a little on both. Somebody busy whose end is what
the makespan hangs on takes part too, if a partner is idle who can afford to wait for it: then the two begin together
instead of one after the other's next unit.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.shop_state import Floor, Start

CRITICAL = 0.5
"""Whoever would end within so many mean units of the bound is critical."""

PATIENCE = 2.0
"""Mean units that are worth waiting for one of two who are critical. The more there are, the less any one matters."""

BLIND = 0.3
"""With this much noise nobody is waited for who is not the most critical of all."""

Edge = tuple[float, int, int]
"""A weight, negative, so that the heaviest come first; a trial and a worker."""


def match_and_reserve(floor: Floor) -> Sequence[Start]:
    """The rule itself; see the top of the file."""
    workers = floor.idle_workers
    if not floor.idle_trials or not workers:
        return ()
    trial_left, worker_left = floor.trial_left, floor.worker_left
    most = max(max(trial_left), max(worker_left), 1e-300)
    able = {worker: floor.able(worker) for worker in workers}
    waits = _reservations(floor)
    edges: list[Edge] = []
    # Nobody needs more partners to choose from than there are others who might take them.
    enough = len(workers) + len(waits)
    for worker, trials in able.items():
        load = worker_left[worker] / most
        base, steep = -2 - load**4, 0.3 * load
        for trial in trials if len(trials) <= enough else heapq.nlargest(enough, trials, key=trial_left.__getitem__):
            left = trial_left[trial] / most
            edges.append((base - left**4 - steep * left, trial, worker))
    if len(workers) == 1 and not waits:
        return [min(edges)[1:]] if edges else ()
    for trial, worker in waits:
        load, left = worker_left[worker] / most, trial_left[trial] / most
        edges.append((-2 - load**4 - left**4 - 0.3 * load * left, trial, worker))
    chosen = _matching(edges)
    return [(trial, worker) for trial, worker in chosen.items() if trial in floor.idle_trials and worker in workers]


def _reservations(floor: Floor) -> list[Start]:
    """The pairs of one who is critical and still busy, and one who is idle and can afford to wait."""
    now, trial_left, worker_left = floor.now, floor.trial_left, floor.worker_left
    trial_ends = [left and max(free, now) + left for free, left in zip(floor.trial_free, trial_left, strict=True)]
    worker_ends = [left and max(free, now) + left for free, left in zip(floor.worker_free, worker_left, strict=True)]
    bound = max(max(trial_ends), max(worker_ends), now)
    unit = sum(worker_left) / max(floor.units, 1)
    # The less is known of when units end, the less it is worth to wait for one.
    late = bound - CRITICAL * max(1e-9, 1 - floor.noise / BLIND) * unit
    rivals = len([end for end in trial_ends if end >= late]) + len([end for end in worker_ends if end >= late]) - 1
    latest = now + PATIENCE * unit / (rivals * rivals) if rivals else math.inf
    bound *= 1 + 1e-12
    pairs = []
    for busy, trial in floor.runs.items():
        free = floor.worker_free[busy]
        if free > latest:
            continue
        wait = abs(free - now)
        if trial >= 0 and trial_left[trial] and trial_ends[trial] >= late:
            todo = floor.todo[trial]
            pairs += [(trial, w) for w in floor.idle_workers if w in todo and (worker_ends[w] or now) + wait <= bound]
        if worker_left[busy] and worker_ends[busy] >= late:
            pairs += [(t, busy) for t in floor.able(busy) if trial_ends[t] + wait <= bound]
    return pairs


def _matching(edges: list[Edge]) -> dict[int, int]:
    """A matching of trials with workers: greedily by weight, then grown along augmenting paths to the most pairs."""
    edges.sort()
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
