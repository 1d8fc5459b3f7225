"""Match idle workers with idle trials by urgency, and reserve idle partners for critical trials and workers.

All starts of one moment are chosen together, as a matching: the trial and the worker with the most work left first, and
in the end as many pairs as possible. A busy trial or worker that determines the makespan takes part in the matching as
well, provided that an idle partner can afford to wait for it: the pair then starts as soon as the busy side is free,
rather than after the partner's next unit.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hopfleet.scheduler.policies.dispatcher import Dispatcher
from hopfleet.scheduler.shop_state import TICK, ShopState, Start

CRITICAL = 0.5
"""A trial or worker is critical if its expected end is within this many mean units of the bound."""

PATIENCE = 2.0
"""Mean units that are worth waiting for one of two critical trials or workers; divided by the number of rivals squared,
since each of them matters less the more there are."""

BLIND = 0.3
"""Noise from which on only the single most critical trial or worker is worth waiting for."""

Edge = tuple[float, int, int]
"""The work left, negated, so that urgent pairs sort first; a trial; a worker."""


def match_and_reserve(state: ShopState) -> Sequence[Start]:
    """Return the starts of the matching; see the top of the file."""
    workers = state.idle_workers
    if not state.idle_trials or not workers:
        return ()
    trial_left, worker_left = state.trial_left, state.worker_left
    waits = _reservations(state)
    # No worker needs more candidates than there are other workers that could take them.
    enough = len(workers) + len(waits)
    pairs = [(t, w) for w in workers for t in heapq.nlargest(enough, state.able(w), key=trial_left.__getitem__)]
    edges = [(-trial_left[trial] - worker_left[worker], trial, worker) for trial, worker in pairs + waits]
    chosen = _matching(edges)
    return [(trial, worker) for trial, worker in chosen.items() if trial in state.idle_trials and worker in workers]


def _reservations(state: ShopState) -> list[Start]:
    """Return the pairs of a critical side that is still busy and an idle side that can afford to wait."""
    ends = _Ends.of(state)
    pairs: list[Start] = []
    for worker, trial in state.runs.items():
        if state.worker_free[worker] <= ends.latest:
            pairs += _for_trial(state, ends, trial, worker)
            pairs += _for_worker(state, ends, worker)
    return pairs


@dataclass(frozen=True, slots=True)
class _Ends:
    """The expected end of every trial and worker that never has to wait, and the limits that follow from them."""

    #: 0 for a trial or worker with nothing left.
    trials: list[float]
    workers: list[float]
    #: The latest of all ends, with a margin for rounding.
    bound: float
    #: A trial or worker is critical if it ends no earlier.
    critical: float
    #: A busy worker is worth waiting for if it is free by then.
    latest: float

    @classmethod
    def of(cls, state: ShopState) -> _Ends:
        now = state.now
        trials = [left and max(free, now) + left for free, left in zip(state.trial_free, state.trial_left, strict=True)]
        workers = [
            left and max(free, now) + left for free, left in zip(state.worker_free, state.worker_left, strict=True)
        ]
        bound = max(max(trials), max(workers), now)
        unit = sum(state.worker_left) / max(state.units, 1)
        # The less certain the ends of units are, the less it pays to wait for one.
        critical = bound - CRITICAL * max(1e-9, 1 - state.noise / BLIND) * unit
        rivals = sum(end >= critical for end in trials) + sum(end >= critical for end in workers) - 1
        latest = now + PATIENCE * unit / (rivals * rivals) if rivals else math.inf
        return cls(trials, workers, bound + TICK, critical, latest)


def _for_trial(state: ShopState, ends: _Ends, trial: int, busy: int) -> list[Start]:
    """Return the idle workers that can wait for a critical trial, which worker ``busy`` trains; none if uncritical."""
    if trial < 0 or not state.trial_left[trial] or ends.trials[trial] < ends.critical:
        return []
    wait = abs(state.worker_free[busy] - state.now)
    todo = state.todo[trial]
    return [
        (trial, worker)
        for worker in state.idle_workers
        if worker in todo and (ends.workers[worker] or state.now) + wait <= ends.bound
    ]


def _for_worker(state: ShopState, ends: _Ends, busy: int) -> list[Start]:
    """Return the idle trials that can wait for a critical worker that is busy; none if it is uncritical."""
    if not state.worker_left[busy] or ends.workers[busy] < ends.critical:
        return []
    wait = abs(state.worker_free[busy] - state.now)
    return [(trial, busy) for trial in state.able(busy) if ends.trials[trial] + wait <= ends.bound]


def _matching(edges: list[Edge]) -> dict[int, int]:
    """Match trials with workers: greedily by urgency, then along augmenting paths up to the largest number of pairs."""
    edges.sort()
    worker_of: dict[int, int] = {}
    matched: set[int] = set()
    partners: dict[int, list[int]] = {}
    for _, trial, worker in edges:
        partners.setdefault(worker, []).append(trial)
        if trial not in worker_of and worker not in matched:
            worker_of[trial] = worker
            matched.add(worker)

    def augment(worker: int, seen: set[int]) -> bool:
        for trial in partners[worker]:
            if trial not in seen:
                seen.add(trial)
                other = worker_of.get(trial)
                if other is None or augment(other, seen):
                    worker_of[trial] = worker
                    return True
        return False

    for worker in partners:
        if worker not in matched:
            augment(worker, set())
    return worker_of


class MatchReserve(Dispatcher):
    """The policy that matches anew at every event."""

    def _choose(self, state: ShopState, rng: random.Random) -> Sequence[Start]:
        return match_and_reserve(state)
