"""Which trial, paused or new, is the most likely to become the best one, as far as the curves so far tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config
from hopfleet.search.curve_model import NEW, CurveModel, Fit, Points
from hopfleet.search.encoding import Array, Encoding

MIN_CURVES = 4
"""Trials with a finite cost before the model is used."""

MAX_POINTS = 300
"""Points of curves in the model, so that a decision takes milliseconds however many trials there are."""

CANDIDATES = 200
"""New configurations to compare: half of them random, half near the best ones."""

PARENTS = 8
"""The number of best configurations near which new ones are tried."""

OFFERS = 5
"""New configurations to offer, in case constraints reject the first ones."""

STEPS = 2
"""Steps of learning at a time."""

HOPELESS = -1.65
"""A chance of 5% of becoming the best trial, in standard deviations."""

WORST = 2.0
"""The largest cost in the model, and that of a diverged trial; 0 is the median trial, -1 about the best."""

CROWDED = 0.01
"""The share of the way from the best to the median cost in which a quarter of the trials may not stand."""


@dataclass(slots=True)
class Curve:
    """A trial's place in the space, and its cost after each epoch."""

    number: int
    place: Array
    own: bool  #: whether the search suggested the trial
    until: int  #: the epoch until which the trial trains
    costs: dict[int, float] = field(default_factory=dict)
    epoch: int = 0  #: the last epoch with a cost
    best: float = math.inf
    ended: bool = False

    def report(self, epoch: int, cost: float) -> None:
        """Take note of a cost; one that is not a number counts as infinite."""
        self.costs[epoch] = cost = cost if math.isfinite(cost) else math.inf
        self.epoch, self.best = epoch, min(self.best, cost)

    @property
    def runs(self) -> bool:
        return not self.ended and self.epoch < self.until

    @property
    def last(self) -> float:
        """The last cost; infinite if there is none."""
        return self.costs.get(self.epoch, math.inf)

    def some_epochs(self) -> list[int]:
        """Return at most five epochs that outline the curve: the first, the last two, and two between."""
        epochs = list(self.costs)
        wanted = {0, len(epochs) // 4, len(epochs) // 2, len(epochs) - 2, len(epochs) - 1}
        return [epochs[index] for index in sorted(wanted) if index >= 0]


@dataclass(frozen=True, slots=True)
class Told:
    """The points that the model is given, of the trials in ``names``."""

    names: Sequence[str]
    points: Points
    costs: Array
    best: float


class CurveChooser:
    """The model of all curves, and the choices that follow from it."""

    def __init__(self, space: spaces.Space, max_epochs: int) -> None:
        self.max_epochs = max_epochs
        self.curves: dict[str, Curve] = {}
        self._model = CurveModel()
        self._encoding = Encoding(space)
        #: What the model is told after all reports so far, and the process given that; None until needed.
        self._data: Told | None = None
        self._fit: Fit | None = None

    def locate(self, config: Config, known: Config) -> Array:
        """Return the place of a configuration."""
        width = len(self._encoding.dimensions)
        place = self._encoding.locate(config, known)
        if len(self._encoding.dimensions) > width:
            self._data = self._fit = None
        return place

    @property
    def ready(self) -> bool:
        """Whether enough is known to choose."""
        return sum(curve.best < math.inf for curve in self.curves.values()) >= MIN_CURVES

    def learn(self, reports: int) -> None:
        """Learn from all curves after the given number of reports; the more there are, the less often."""
        self._data = self._fit = None
        if self.ready and reports % max(1, min(reports, MAX_POINTS) // 30) == 0:
            told = self._told()
            self._model.learn(told.points, told.costs, STEPS)

    def change(self, space: spaces.Space, max_epochs: int) -> None:
        """Go on with another space and another largest number of epochs; all places must be set again."""
        self.max_epochs, self._encoding = max_epochs, Encoding(space)
        self._data = self._fit = None

    # -------------------------------------------------------------------------------------------------- choosing

    def choose(self, waiting: Sequence[str], rng: np.random.Generator, fixed: Mapping[str, Any] | None) -> str | None:
        """Return the most promising of the ``waiting`` trials; None if a new one is better or none is worth it.

        ``fixed`` holds the values that the next new trial must have; None if no further trial may start.
        """
        told, fit = self._process()
        known = set(told.names)
        names = [name for name in waiting if name in known]
        if not names or (fixed is None and not self._worthwhile(names)):
            return None
        horizon, goal = self._aim(rng)
        ends = [min(self.curves[name].epoch + horizon, self.max_epochs) for name in names]
        chances = _chances(fit, self._points(names, ends), self._pending(), goal)
        if fixed is not None:
            new = _chances(fit, self._fresh(self._candidates(rng, fixed), horizon), self._pending(), goal)
            if new.max() > chances.max():
                return None
        return names[int(chances.argmax())]

    def offers(self, rng: np.random.Generator, fixed: Mapping[str, Any]) -> list[Config]:
        """Return the most promising new configurations with the values that are ``fixed``, the best first."""
        _, fit = self._process()
        horizon, goal = self._aim(rng)
        candidates = self._candidates(rng, fixed)
        chances = _chances(fit, self._fresh(candidates, horizon), self._pending(), goal)
        best = np.argsort(-chances, kind="stable")[:OFFERS]
        return [self._encoding.config(candidates[index], fixed) for index in best]

    def _worthwhile(self, names: Sequence[str]) -> bool:
        """Whether one of these trials may become the best one by its last epoch."""
        told, fit = self._process()
        ends = self._points(names, [self.max_epochs] * len(names))
        return bool(_chances(fit, ends, None, told.best).max() > HOPELESS)

    def _aim(self, rng: np.random.Generator) -> tuple[int, float]:
        """Return a random number of epochs to look ahead, and a random cost to fall below by then."""
        told = self._told()
        gain = 10 ** rng.uniform(-4, -1) * max(float(np.median(told.costs)) - told.best, 0.1)
        return int(rng.integers(1, self.max_epochs + 1)), told.best - gain

    def _candidates(self, rng: np.random.Generator, fixed: Mapping[str, Any]) -> Array:
        reported = [curve for curve in self.curves.values() if curve.best < math.inf]
        best = sorted(reported, key=lambda curve: (curve.best, curve.number))[:PARENTS]
        near = self._encoding.near(rng, [curve.place for curve in best], CANDIDATES // 2)
        candidates = np.concatenate([self._encoding.drawn(rng, CANDIDATES // 2), near])
        self._encoding.pin(candidates, fixed)
        return candidates

    # ---------------------------------------------------------------------------------------------------- points

    def _process(self) -> tuple[Told, Fit]:
        told = self._told()
        self._fit = self._fit or self._model.fit(told.points, told.costs)
        return told, self._fit

    def _told(self) -> Told:
        self._data = self._data or self._outlined()
        return self._data

    def _outlined(self) -> Told:
        """Return the points of the best curves in outline, and the last points of others."""
        reported = {name: curve for name, curve in self.curves.items() if curve.costs}
        warp = _warp(list(reported.values()))
        ranked = sorted(reported, key=lambda name: (reported[name].best, reported[name].number))
        outlines, left = {}, MAX_POINTS
        for name in ranked:
            epochs = reported[name].some_epochs()
            left -= len(epochs)
            if left < MAX_POINTS // 3:
                break
            outlines[name] = epochs
        rest = ranked[len(outlines) :]
        for name in rest[:: -(-len(rest) // (MAX_POINTS // 3)) or 1]:
            outlines[name] = [reported[name].epoch]
        names = list(outlines)
        costs = np.array([warp(reported[name].costs[epoch]) for name in names for epoch in outlines[name]])
        owners = [name for name in names for _ in outlines[name]]
        points = self._points(owners, [epoch for name in names for epoch in outlines[name]])
        best = min(warp(curve.best) for curve in reported.values())
        return Told(names, points, costs - costs.mean(), best - float(costs.mean()))

    def _pending(self) -> Points | None:
        """Return the next points of the trials that run; None if there are none."""
        names = [name for name, curve in self.curves.items() if curve.runs]
        return self._points(names, [self.curves[name].epoch + 1 for name in names]) if names else None

    def _points(self, names: Sequence[str], epochs: Sequence[int]) -> Points:
        """Return one point for each name and epoch."""
        rows = {name: row for row, name in enumerate(dict.fromkeys(names))}
        coordinates = self._encoding.coordinates([self.curves[name].place for name in rows])
        lags = np.array([self._lag(epoch) for epoch in epochs])
        numbers = np.array([self.curves[name].number for name in names])
        return Points(coordinates, np.array([rows[name] for name in names]), lags, numbers)

    def _fresh(self, places: Array, epoch: int) -> Points:
        count = len(places)
        lags = np.full(count, self._lag(epoch))
        return Points(self._encoding.coordinates(list(places)), np.arange(count), lags, np.full(count, NEW))

    def _lag(self, epoch: int) -> float:
        return 1 - math.log(min(epoch, self.max_epochs)) / math.log(max(self.max_epochs, 2))


def _chances(fit: Fit, points: Points, pending: Points | None, goal: float) -> Array:
    """Return how likely each point is below ``goal``, in standard deviations."""
    means, deviations = fit.predict(points, pending)
    return np.asarray((goal - means) / deviations)


def _warp(curves: Sequence[Curve]) -> Callable[[float], float]:
    """Return a function of costs that heavy tails and diverged trials do not distort, whatever the metric's scale."""
    bests = sorted(curve.best for curve in curves if curve.best < math.inf)
    lasts = sorted(curve.last for curve in curves if curve.last < math.inf) or bests
    # While most trials are so bad that a quarter cannot be told from the best, look at the better half alone.
    while len(lasts) >= 8 and lasts[len(lasts) // 4] - bests[0] < CROWDED * (lasts[len(lasts) // 2] - bests[0]):
        lasts = lasts[: len(lasts) // 2]
    middle = lasts[len(lasts) // 2]
    # The third best is no outlier.
    scale = middle - bests[min(2, len(bests) - 1)]
    scale = scale if scale > 0 else middle - bests[0] or 1.0

    def warp(cost: float) -> float:
        return math.asinh(min((cost - middle) / scale, WORST)) if cost < math.inf else math.asinh(WORST)

    return warp
