"""How long units take: what was expected, corrected by what was measured.

A unit's time is taken as a product: what the trial costs, how slow the worker is, how large the partition is. Priors
may come from a pilot; without one everything starts as equal and is learned as units finish. The noise that is left,
as a standard deviation of the logarithm, tells planners how far to trust these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Prior = Callable[[int, str, int], float]
"""Expected seconds of (trial number, worker, partition), before anything was measured."""

PRIOR_WEIGHT = 4.0
"""A prior counts as much as so many measured units of the same trial, or on the same worker."""


class Estimates:
    """Expected unit times. ``rows`` gives the size of each partition; only their ratios matter."""

    def __init__(self, rows: Sequence[int], prior: Prior | None = None) -> None:
        mean = sum(rows) / len(rows)
        self._size = [count / mean for count in rows]
        self._prior = prior
        #: Mean of log(measured / expected before) and number of units, by trial and by worker.
        self._trials: dict[str, tuple[float, int]] = {}
        self._workers: dict[str, tuple[float, int]] = {}
        self._all = (0.0, 0)
        self._squares = (0.0, 0)

    def expected(self, trial: str, number: int, worker: str, partition: int) -> float:
        """The seconds that a unit is expected to take."""
        return math.exp(self._log(trial, number, worker, partition))

    def beforehand(self, number: int, worker: str) -> float | None:
        """The mean time of a trial's units on a worker, as it was expected before anything was measured."""
        if self._prior is None:
            return None
        return sum(self._prior(number, worker, partition) for partition in range(len(self._size))) / len(self._size)

    def measured(self, trial: str, number: int, worker: str, partition: int, seconds: float) -> None:
        """Learn from a unit that took ``seconds``."""
        seconds = max(seconds, 1e-6)
        known = self._prior is not None or trial in self._trials
        surprise = math.log(seconds) - self._log(trial, number, worker, partition)
        if known:
            total, count = self._squares
            self._squares = total + surprise * surprise, count + 1
        residual = math.log(seconds) - self._base(number, worker, partition)
        self._all = _with(self._all, residual)
        # The worker learns what the trial does not explain, and the other way round.
        trial_mean, trial_count = self._trials.get(trial, (0.0, 0))
        worker_mean, worker_count = self._workers.get(worker, (0.0, 0))
        if trial_count:
            self._workers[worker] = _with((worker_mean, worker_count), residual - trial_mean)
        self._trials[trial] = _with((trial_mean, trial_count), residual - worker_mean)

    def forget(self, trial: str) -> None:
        """The trial has ended; what it taught about workers and noise stays."""
        self._trials.pop(trial, None)

    @property
    def noise(self) -> float:
        """The standard deviation of log(measured / expected); 0 until something surprised us."""
        total, count = self._squares
        return math.sqrt(total / count) if count else 0.0

    def _log(self, trial: str, number: int, worker: str, partition: int) -> float:
        by_trial, trial_count = self._trials.get(trial, (0.0, 0))
        by_worker, worker_count = self._workers.get(worker, (0.0, 0))
        if self._prior is not None:
            by_trial *= trial_count / (trial_count + PRIOR_WEIGHT)
            by_worker *= worker_count / (worker_count + PRIOR_WEIGHT)
        elif not trial_count:
            by_trial = self._all[0]
        return self._base(number, worker, partition) + by_trial + by_worker

    def _base(self, number: int, worker: str, partition: int) -> float:
        if self._prior is not None:
            return math.log(self._prior(number, worker, partition))
        return math.log(self._size[partition])


def _with(mean: tuple[float, int], value: float) -> tuple[float, int]:
    total, count = mean
    return total + (value - total) / (count + 1), count + 1
