"""How long units take: what was expected, corrected by what was measured.

A unit's time is taken as a product: what the trial costs, how slow the worker is, how large the partition is. Priors
may come from a pilot; without one everything starts as equal and is learned as units finish. What is measured of a
trial or a worker is believed as far as it stands out from the noise: if all differ by no more than chance would have
it, the prior stays. The noise that is left, as a standard deviation of the logarithm, tells planners how far to trust
these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Prior = Callable[[int, str, int], float]
"""Expected seconds of (trial number, worker, partition), before anything was measured."""

RECENT = 128
"""The noise is that of about so many units: the first ones, of which nothing was known, are soon forgotten."""


class Estimates:
    """Expected unit times. ``rows`` gives the size of each partition; only their ratios matter."""

    def __init__(self, rows: Sequence[int], prior: Prior | None = None) -> None:
        mean = sum(rows) / len(rows)
        self._size = [count / mean for count in rows]
        self._prior = prior
        self._trials = _Effects()
        self._workers = _Effects()
        #: Squares of log(measured / expected), and their number.
        self._squares = (0.0, 0)

    def expected(self, trial: str, number: int, worker: str, partition: int) -> float:
        """The seconds that a unit is expected to take."""
        return self.row(trial, number, {partition: worker})[0]

    def row(self, trial: str, number: int, workers: dict[int, str]) -> list[float]:
        """The same for several units of a trial, by partition and worker."""
        by_trial, noise = self._trials.of(trial, self._variance), self._variance
        return [
            self._base(number, worker, partition) * math.exp(by_trial + self._workers.of(worker, noise))
            for partition, worker in workers.items()
        ]

    def beforehand(self, number: int, worker: str) -> float | None:
        """The mean time of a trial's units on a worker, as it was expected before anything was measured."""
        if self._prior is None:
            return None
        return sum(self._prior(number, worker, partition) for partition in range(len(self._size))) / len(self._size)

    def size(self, partition: int) -> float:
        """The rows of a partition, as a part of the mean."""
        return self._size[partition]

    def slowness(self, worker: str) -> float:
        """How long a worker takes for what others do; only ratios mean anything."""
        return math.exp(self._workers.of(worker, self._variance))

    def measured(self, trial: str, number: int, worker: str, partition: int, seconds: float) -> None:
        """Learn from a unit that took ``seconds``."""
        known = trial in self._trials
        residual = math.log(max(seconds, 1e-6) / self._base(number, worker, partition))
        by_trial, by_worker = self._trials.of(trial, self._variance), self._workers.of(worker, self._variance)
        if known or self._prior is not None:
            total, count = self._squares
            if count == RECENT:
                total, count = total - total / count, count - 1
            self._squares = total + (residual - by_trial - by_worker) ** 2, count + 1
        # The worker learns what the trial does not explain, and the other way round.
        if known:
            self._workers.learn(worker, residual - by_trial)
        self._trials.learn(trial, residual - by_worker)

    def forget(self, trial: str) -> None:
        """The trial has ended; what it taught about workers and noise stays."""
        self._trials.forget(trial)

    @property
    def noise(self) -> float:
        """The standard deviation of log(measured / expected); 0 until something surprised us."""
        total, count = self._squares
        return math.sqrt(total / count) if count else 0.0

    @property
    def judged(self) -> int:
        """How many units the noise is known from; the latest ``RECENT`` at most."""
        return self._squares[1]

    @property
    def _variance(self) -> float:
        """Of the logarithm of one unit's time among those of the same trial; before any came twice, of all."""
        if self._trials.repeated:
            return self._trials.within / self._trials.repeated
        total, count = self._squares
        return total / count if count else 0.0

    def _base(self, number: int, worker: str, partition: int) -> float:
        return self._size[partition] if self._prior is None else self._prior(number, worker, partition)


class _Effects:
    """What each trial, or each worker, adds to the logarithm of a unit's time."""

    def __init__(self) -> None:
        #: Mean and number of what was measured.
        self._means: dict[str, tuple[float, int]] = {}
        #: Sums over all of them: of the means, their squares, and one by their numbers.
        self._sums = (0.0, 0.0, 0.0)
        #: Squares of the deviations from the own mean, and how many of these are free.
        self.within = 0.0
        self.repeated = 0

    def __contains__(self, name: str) -> bool:
        return name in self._means

    def of(self, name: str, variance: float) -> float:
        """The mean of all, and as much of the own mean's distance from it as is not chance."""
        size = len(self._means)
        if not size:
            return 0.0
        total, squares, inverses = self._sums
        middle = total / size
        mean, count = self._means.get(name, (middle, 0))
        if size == 1 or not count:
            return middle
        between = max(0.0, (squares - size * middle * middle) / (size - 1) - variance * inverses / size)
        return middle + (mean - middle) * between * count / (between * count + variance or 1.0)

    def learn(self, name: str, value: float) -> None:
        mean, count = self._means.get(name, (0.0, 0))
        self.forget(name)
        after = mean + (value - mean) / (count + 1)
        if count:
            self.within += (value - mean) * (value - after)
            self.repeated += 1
        self._means[name] = after, count + 1
        self._add(after, count + 1, 1)

    def forget(self, name: str) -> None:
        if name in self._means:
            self._add(*self._means.pop(name), -1)

    def _add(self, mean: float, count: int, sign: int) -> None:
        total, squares, inverses = self._sums
        self._sums = total + sign * mean, squares + sign * mean * mean, inverses + sign / count
