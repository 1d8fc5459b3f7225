"""The speeds of workers, learned from trials that trained on several of them, and classes of workers by speed.

A unit's time is a product of the trial's cost and the worker's slowness. A trial tells how fast a worker is once it has
trained on another one too, or if its cost was expected beforehand. Medians of the last few units count, so one odd unit
changes nothing; a worker that has become slow, or fast again, is noticed after two units in a row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

RECENT = 5
"""Units of a worker, and of a trial, that count."""

SUDDEN = 0.4
"""Difference of the logarithms of times from which two units in a row count alone."""

ROUNDING = 1e-9
"""Difference of the logarithms of times that may be due to rounding."""

ERRORS = 32
"""Units that the noise is estimated from."""

EQUAL = 0.1
"""Logarithm of the ratio of measured unit times up to which all workers count as equally fast, beyond the noise."""

ALIKE = 1.02
"""Ratio of expected unit times up to which two workers are of one class."""

SAMPLE = 3
"""Trials whose expected times are compared."""

Classes = tuple[tuple[str, ...], ...]
"""The workers of each class, the fastest class first."""

_Units = deque[tuple[str, float]]


class Speeds:
    """What was measured, as logarithms of seconds by expected seconds."""

    def __init__(self, *, costs_known: bool) -> None:
        #: Whether the costs of trials were expected beforehand.
        self.costs_known = costs_known
        #: The last units of each worker by trial, and of each trial by worker.
        self._workers: dict[str, _Units] = {}
        self._trials: dict[str, _Units] = {}
        self._slowness: dict[str, float] = {}
        #: What is assumed of other workers: what was expected, or that they are like the usual one.
        self._usual = 0.0
        #: The cost of each trial, as far as it was asked for since something changed it.
        self._costs: dict[str, float | None] = {}
        self._errors: deque[float] = deque(maxlen=ERRORS)

    def slowness(self, worker: str) -> float:
        """Return the logarithm of a worker's slowness; only differences between workers are meaningful."""
        return self._slowness.get(worker, self._usual)

    def tells(self, worker: str) -> bool:
        """Whether a worker was compared with another one, or with what was expected."""
        return worker in self._slowness

    @property
    def noise(self) -> float:
        """Return the median error of what was expected of a unit."""
        return median(self._errors) if self._errors else 0.0

    def cost(self, trial: str) -> float | None:
        """Return the logarithm of a trial's cost; None if it was neither measured nor expected."""
        if trial not in self._costs:
            self._costs[trial] = self._cost_elsewhere(trial, None)
        return self._costs[trial]

    def measured(self, trial: str, worker: str, value: float) -> None:
        """Learn from a unit."""
        cost = self.cost(trial)
        if cost is not None and (self.costs_known or self.tells(worker)):
            self._errors.append(abs(value - cost - self.slowness(worker)))
        self._workers.setdefault(worker, deque(maxlen=RECENT)).append((trial, value))
        self._trials.setdefault(trial, deque(maxlen=RECENT)).append((worker, value))
        self._costs.pop(trial, None)
        # On a worker that is known, a trial shows its cost, and so the speeds of workers on which it was before.
        for other, seconds in self._trials[trial] if worker in self._slowness else ():
            if other not in self._slowness:
                self._slowness[other] = seconds - value + self._slowness[worker]
                self._costs.clear()
        told = self._told(worker)
        if told:
            middle, last = median(told), told[-2:]
            if len(last) == 2 and (min(last) > middle + SUDDEN or max(last) < middle - SUDDEN):
                middle = sum(last) / 2
            for other, _ in self._trials[trial]:
                self._slowness.setdefault(other, self._usual)
            if abs(middle - self.slowness(worker)) > ROUNDING:
                self._costs.clear()
                self._slowness[worker] = middle
            if not self.costs_known and self._usual != (usual := median(self._slowness.values())):
                self._costs.clear()
                self._usual = usual

    def forget(self, trial: str) -> None:
        """Discard the units of an ended trial; what workers have shown is kept."""
        self._trials.pop(trial, None)
        self._costs.pop(trial, None)

    def _told(self, worker: str) -> list[float]:
        """Return what the last units of a worker tell about its slowness."""
        told = []
        for trial, seconds in self._workers[worker]:
            cost = self._cost_elsewhere(trial, worker)
            if cost is not None:
                told.append(seconds - cost)
        return told

    def _cost_elsewhere(self, trial: str, worker: str | None) -> float | None:
        """Return the logarithm of a trial's cost by its units on other workers than ``worker``."""
        units = [seconds - self.slowness(other) for other, seconds in self._trials.get(trial, ()) if other != worker]
        if self.costs_known and (worker is not None or not units):
            units.append(0.0)
        return median(units) if units else None


def classes(workers: Sequence[str], slowness: Sequence[float], equal: float) -> Classes:
    """Divide workers into classes; ``slowness`` is that of each worker, relative to one of them.

    All are of one class if the logarithm of the largest ratio is at most ``equal``.
    """
    if not workers or math.log(max(slowness) / min(slowness)) <= equal:
        return (tuple(workers),)
    of = dict(zip(workers, slowness, strict=True))
    found: list[list[str]] = []
    for worker in sorted(workers, key=of.__getitem__):
        if not found or of[worker] > ALIKE * of[found[-1][0]]:
            found.append([])
        found[-1].append(worker)
    # Within a class, differences may be due to rounding.
    joined = {worker: number for number, worker in enumerate(workers)}
    return tuple(tuple(sorted(members, key=joined.__getitem__)) for members in found)
