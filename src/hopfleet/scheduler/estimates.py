"""Expected unit times: priors, corrected by measurements.

A unit's time is modelled as a product of the trial's cost, the worker's slowness and the partition's size. Priors may
come from profiling; without priors all trials and workers start as equal, and differences are learned as units finish.
A measured effect of a trial or a worker counts as far as it stands out from the noise: effects no larger than chance
leave the prior unchanged. The residual noise, as a standard deviation of the logarithm, tells planners how far to
trust the estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from hopfleet.scheduler.speeds import ALIKE, EQUAL, Classes, Speeds, classes

Prior = Callable[[int, str, int], float]
"""Returns the expected seconds of (trial number, worker, partition) before any measurement."""

RECENT = 128
"""Units that the noise is averaged over, about; the first, poorly estimated units are soon forgotten."""


class Estimates:
    """Expected unit times.

    ``rows`` holds the number of rows of each partition; only their ratios matter. ``pace`` is how many times faster the
    workers that the prior describes are than one device, if the prior does not know workers apart.
    """

    def __init__(self, rows: Sequence[float], prior: Prior | None = None, pace: float = 1.0) -> None:
        mean = sum(rows) / len(rows)
        self._size = [count / mean for count in rows]
        self._prior, self._pace = prior, pace
        #: How many times faster than one device a team is, by worker, as far as the prior does not tell.
        self._paces: dict[str, float] = {}
        #: The prior mean times of a trial's units, by number and worker, as far as they were asked for.
        self._means: dict[int, dict[str, float]] = {}
        #: Robust estimates of how fast workers are, for workers that can take each other's units.
        self.speeds = Speeds(costs_known=prior is not None)
        self._trials = _Effects()
        self._workers = _Effects()
        #: The sum of squares of log(measured / expected), and their number.
        self._squares = (0.0, 0)

    def expected(self, trial: str, number: int, worker: str, partition: int) -> float:
        """Return the expected seconds of a unit."""
        return self.row(trial, number, {partition: worker})[0]

    def row(self, trial: str, number: int, workers: dict[int, str]) -> list[float]:
        """Return the expected seconds of several units of a trial, by partition and worker."""
        by_trial, noise = self._trials.of(trial, self._variance), self._variance
        return [
            self._base(number, worker, partition) * math.exp(by_trial + self._workers.of(worker, noise))
            for partition, worker in workers.items()
        ]

    def joins(self, worker: str, pace: float) -> None:
        """Note how many times faster than one device a worker is expected to be."""
        if self._paces.get(worker, pace) != pace:
            self._means.clear()  # the name was that of another worker, in an earlier run
        self._paces[worker] = pace

    def beforehand(self, number: int, worker: str) -> float | None:
        """Return the prior mean time of a trial's units on a worker; None without a prior."""
        return None if self._prior is None else self._mean(number, worker)

    def _mean(self, number: int, worker: str) -> float:
        return sum(self._base(number, worker, partition) for partition in range(len(self._size))) / len(self._size)

    def table(self, trials: Sequence[tuple[str, int]], workers: Sequence[str]) -> list[list[float]]:
        """Return the expected mean seconds of a unit, by trial (its name and number) and worker."""
        costs = [self.speeds.cost(trial) for trial, _ in trials]
        usual = median([cost for cost in costs if cost is not None] or [0.0])
        slowness = [math.exp(self.speeds.slowness(worker)) for worker in workers]
        rows = []
        for (_, number), known in zip(trials, costs, strict=True):
            cost = math.exp(usual if known is None else known)
            base = self._priors(number, workers)
            rows.append([cost * mean * slow for mean, slow in zip(base, slowness, strict=True)])
        return rows

    def _priors(self, number: int, workers: Sequence[str]) -> list[float]:
        """Return the prior mean times of a trial's units; each is asked for once."""
        if self._prior is None:
            return [self._slow(worker) for worker in workers]
        means = self._means.setdefault(number, {})
        for worker in workers:
            if worker not in means:
                means[worker] = self._mean(number, worker)
        return [means[worker] for worker in workers]

    def classes(self, workers: Sequence[str], trials: Sequence[int]) -> Classes:
        """Divide workers into classes by speed; ``trials`` are the numbers of some trials."""
        measured, expected = [math.exp(self.speeds.slowness(worker)) for worker in workers], [1.0] * len(workers)
        if workers and trials:
            rows = [self._priors(number, workers) for number in trials]
            expected = [median(row[n] / row[0] for row in rows) for n in range(len(workers))]
        # Slight differences that were expected are no chance; those that were only measured may be.
        known = workers and max(expected) > ALIKE * min(expected)
        equal = math.log(ALIKE) if known else EQUAL + 2 * self.speeds.noise
        return classes(workers, [one * other for one, other in zip(measured, expected, strict=True)], equal)

    def size(self, partition: int) -> float:
        """Return the number of rows of a partition divided by the mean."""
        return self._size[partition]

    def slowness(self, worker: str) -> float:
        """Return the relative slowness of a worker; only ratios between workers are meaningful."""
        return math.exp(self._workers.of(worker, self._variance))

    def measured(self, trial: str, number: int, worker: str, partition: int, seconds: float) -> None:
        """Learn from a unit that took ``seconds``."""
        known = trial in self._trials
        residual = math.log(max(seconds, 1e-6) / self._base(number, worker, partition))
        self.speeds.measured(trial, worker, residual)
        by_trial, by_worker = self._trials.of(trial, self._variance), self._workers.of(worker, self._variance)
        if known or self._prior is not None:
            total, count = self._squares
            if count == RECENT:
                total, count = total - total / count, count - 1
            self._squares = total + (residual - by_trial - by_worker) ** 2, count + 1
        # The worker effect learns the part that the trial effect does not explain, and vice versa.
        if known:
            self._workers.learn(worker, residual - by_trial)
        self._trials.learn(trial, residual - by_worker)

    def forget(self, trial: str) -> None:
        """Discard the effect of an ended trial; worker effects and noise are kept."""
        self._trials.forget(trial)
        self.speeds.forget(trial)

    @property
    def noise(self) -> float:
        """Return the standard deviation of log(measured / expected); 0 until an estimate could be compared."""
        total, count = self._squares
        return math.sqrt(total / count) if count else 0.0

    @property
    def judged(self) -> int:
        """Return the number of units that the noise was estimated from, at most ``RECENT``."""
        return self._squares[1]

    @property
    def _variance(self) -> float:
        """Return the variance of log times within trials; over all units until a trial has two units."""
        if self._trials.repeated:
            return self._trials.within / self._trials.repeated
        total, count = self._squares
        return total / count if count else 0.0

    def _base(self, number: int, worker: str, partition: int) -> float:
        base = self._size[partition] if self._prior is None else self._prior(number, worker, partition)
        return base * self._slow(worker)

    def _slow(self, worker: str) -> float:
        """Return how many times slower a worker is than those that the prior describes, as far as known beforehand."""
        return self._pace / self._paces[worker] if worker in self._paces else 1.0


class _Effects:
    """The effect of each trial, or of each worker, on the logarithm of a unit's time."""

    def __init__(self) -> None:
        #: The mean and the number of measurements.
        self._means: dict[str, tuple[float, int]] = {}
        #: Sums over all names: of the means, of their squares, and of 1 / number.
        self._sums = (0.0, 0.0, 0.0)
        #: The sum of squared deviations from each name's own mean, and their degrees of freedom.
        self.within = 0.0
        self.repeated = 0

    def __contains__(self, name: str) -> bool:
        return name in self._means

    def of(self, name: str, variance: float) -> float:
        """Return the overall mean, plus the part of the name's own deviation that exceeds chance."""
        size = len(self._means)
        if not size:
            return 0.0
        total, squares, inverses = self._sums
        middle = total / size
        if size == 1 or name not in self._means:
            return middle
        mean, count = self._means[name]
        between = (squares - size * middle * middle) / (size - 1) - variance * inverses / size
        if between <= 0:
            return middle
        return middle + (mean - middle) * between * count / (between * count + variance)

    def learn(self, name: str, value: float) -> None:
        """Add a measurement."""
        mean, count = self._means.get(name, (value, 0))
        self.forget(name)
        after = mean + (value - mean) / (count + 1)
        if count:
            self.within += (value - mean) * (value - after)
            self.repeated += 1
        self._means[name] = after, count + 1
        self._add(after, count + 1, 1)

    def forget(self, name: str) -> None:
        """Discard all measurements of a name."""
        if name in self._means:
            self._add(*self._means.pop(name), -1)

    def _add(self, mean: float, count: int, sign: int) -> None:
        total, squares, inverses = self._sums
        self._sums = total + sign * mean, squares + sign * mean * mean, inverses + sign / count
