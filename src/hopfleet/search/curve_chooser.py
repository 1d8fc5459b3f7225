"""Which trial, paused or new, is the most likely to become the best one, as far as the curves so far tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config
from hopfleet.search.curve_model import NEW, Bools, CurveModel, Fit, Points
from hopfleet.search.encoding import Array, Encoding

MIN_CURVES = 4
"""Trials with a finite cost before the model is used."""

MAX_POINTS = 150
"""Points of curves in the model, so that a decision takes milliseconds however many trials there are."""

LEARNED = 90
"""Points from which variances and lengths are learned."""

GROWTH = 2
"""The ratio of the epochs of one stage to those of the stage before; all stages are chosen equally often."""

RANDOM_SHARE = 0.2
"""The share of trials to continue, and of new configurations, that are random, in case the model is wrong."""

CANDIDATES = 150
"""New configurations to compare: half of them random, half near the best ones."""

PARENTS = 8
"""The number of best configurations near which new ones are tried."""

APART = 0.5
"""The least distance of a new configuration from others, as a share of the distance of as many points on a grid."""

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
        """Return at most three epochs that outline the curve: the first, the last, and one between."""
        epochs = list(self.costs)
        return [epochs[index] for index in sorted({0, len(epochs) // 2, len(epochs) - 1})]


@dataclass(frozen=True, slots=True)
class Told:
    """The points that the model is given."""

    newest: Mapping[str, int]  #: the last epoch of each trial that is known
    points: Points
    costs: Array
    best: float
    level: Callable[[float], float]  #: a cost as the model sees it


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of paused trials after some epochs more, and after all epochs."""

    places: Mapping[tuple[str, int], int]  #: the place of each trial, at its epoch, in the arrays
    predictions: Sequence[tuple[Array, Array]]  #: means and standard deviations
    best: float
    gain: float  #: a large improvement


class CurveChooser:
    """The model of all curves, and the choices that follow from it."""

    def __init__(self, space: spaces.Space, max_epochs: int) -> None:
        self.max_epochs = max_epochs
        self.curves: dict[str, Curve] = {}
        self._model = CurveModel()
        self._encoding = Encoding(space)
        #: Reports since the model was told of all curves.
        self._news = 0
        self._forget()

    def _forget(self) -> None:
        #: What the model was told last, the process given that, and what it expects; None until needed.
        self._data: Told | None = None
        self._fit: Fit | None = None
        self._outlook: Outlook | None = None

    def locate(self, config: Config, known: Config) -> Array:
        """Return the place of a configuration."""
        width = len(self._encoding.dimensions)
        place = self._encoding.locate(config, known)
        if len(self._encoding.dimensions) > width:
            self._forget()
        return place

    @property
    def ready(self) -> bool:
        """Whether enough is known to choose."""
        return sum(curve.best < math.inf for curve in self.curves.values()) >= MIN_CURVES

    def learn(self, patience: int) -> None:
        """Take note of a report. Tell the model of all curves at every ``patience``-th one, and learn halfway there."""
        self._news += 1
        if self._news == max(1, patience // 2) and self.ready:
            told = self._outlined(LEARNED)
            self._model.learn(told.points, told.costs, STEPS)
        if self._news >= patience:
            self._news = 0
            self._forget()

    def change(self, space: spaces.Space, max_epochs: int) -> None:
        """Go on with another space and another largest number of epochs; all places must be set again."""
        self.max_epochs, self._encoding = max_epochs, Encoding(space)
        self._forget()

    # -------------------------------------------------------------------------------------------------- choosing

    def choose(self, waiting: Sequence[str], rng: np.random.Generator, *, more: bool) -> str | None:
        """Return the ``waiting`` trial to continue; None if a new one should start, or if none is worth it.

        A stage is drawn first, so that neither new trials nor long ones get all of the epochs: new trials, those of
        one epoch, of two or three, of four to seven, and so on. ``more`` tells whether further trials may start.
        """
        outlook, names = self._expected(waiting, rng, whole=not more)
        means, deviations = outlook.predictions[int(rng.integers(len(outlook.predictions)))]
        goal = outlook.best - _gain(rng) * outlook.gain
        places = [outlook.places[name, self.curves[name].epoch] for name in names]
        chances = dict(zip(names, ((goal - means) / deviations)[places].tolist(), strict=True))
        if not more:
            final, spread = outlook.predictions[-1]
            hopes = ((outlook.best - final) / spread)[places]
            names = [name for name, hope in zip(names, hopes, strict=True) if hope > HOPELESS]
        stages: dict[int, list[str]] = {0: []} if more else {}
        for name in names:
            stages.setdefault(self._stage(self.curves[name].epoch), []).append(name)
        if not stages:
            return None
        stage = stages[sorted(stages)[int(rng.integers(len(stages)))]]
        if stage and self.dares(rng):
            return stage[int(rng.integers(len(stage)))]
        return max(stage, key=chances.__getitem__, default=None)

    def dares(self, rng: np.random.Generator) -> bool:
        """Whether the next choice should be random, in case the model is wrong."""
        return rng.random() < RANDOM_SHARE

    def _stage(self, epoch: int) -> int:
        """Return how often the number of epochs has grown by ``GROWTH``, counted from 1."""
        stage = 1
        while epoch >= GROWTH**stage:
            stage += 1
        return stage

    def _expected(
        self, waiting: Sequence[str], rng: np.random.Generator, *, whole: bool
    ) -> tuple[Outlook, Sequence[str]]:
        """Return what is expected of the ``waiting`` trials, and those that it covers: if ``whole``, all of them."""
        if self._outlook is not None:
            known = [name for name in waiting if (name, self.curves[name].epoch) in self._outlook.places]
            if len(known) == len(waiting) or (known and not whole):
                return self._outlook, known
        self._outlook = self._look(waiting, rng)
        return self._outlook, waiting

    def _look(self, waiting: Sequence[str], rng: np.random.Generator) -> Outlook:
        told, fit = self._process()
        curves = [self.curves[name] for name in waiting]
        last = self._points(waiting, [curve.epoch for curve in curves])
        costs = np.array([told.level(curve.last) for curve in curves])
        known = np.array([told.newest.get(name) == self.curves[name].epoch for name in waiting])
        horizon = int(rng.integers(1, self.max_epochs + 1))
        ends = [np.array([self._lag(curve.epoch + ahead) for curve in curves]) for ahead in (horizon, self.max_epochs)]
        predictions = fit.proceed(last, costs, known, ends)
        places = {(name, curve.epoch): place for place, (name, curve) in enumerate(zip(waiting, curves, strict=True))}
        return Outlook(places, predictions, told.best, _span(told))

    def offers(self, rng: np.random.Generator, fixed: Mapping[str, Any]) -> list[Config]:
        """Return the most promising new configurations with the values that are ``fixed``, the best first."""
        _, fit = self._process()
        horizon, goal = self._aim(rng)
        candidates = self._candidates(rng, fixed)
        chances = _chances(fit, self._fresh(candidates, horizon), self._pending(), goal)
        best = np.lexsort((-chances, ~self._novel(candidates)))[:OFFERS]
        return [self._encoding.config(candidates[index], fixed) for index in best]

    def _aim(self, rng: np.random.Generator) -> tuple[int, float]:
        """Return a random number of epochs to look ahead, and a random cost to fall below by then."""
        told = self._told()
        return int(rng.integers(1, self.max_epochs + 1)), told.best - _gain(rng) * _span(told)

    def _novel(self, places: Array) -> Bools:
        """Whether each place is away from all known trials."""
        known = self._encoding.coordinates([curve.place for curve in self.curves.values()])
        asked = self._encoding.coordinates(list(places))
        squares = (asked**2).sum(axis=1)[:, None] + (known**2).sum(axis=1)[None, :] - 2 * asked @ known.T
        spacing = len(known) ** (-1 / max(1, places.shape[1]))
        return np.asarray(squares.min(axis=1) >= (APART * spacing) ** 2)

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
        self._data = self._data or self._outlined(MAX_POINTS)
        return self._data

    def _outlined(self, most: int) -> Told:
        """Return ``most`` points: the best curves in outline, and the last points of others."""
        reported = {name: curve for name, curve in self.curves.items() if curve.costs}
        warp = _warp(list(reported.values()))
        ranked = sorted(reported, key=lambda name: (reported[name].best, reported[name].number))
        outlines, left = {}, most
        for name in ranked:
            epochs = reported[name].some_epochs()
            if left - len(epochs) < most // 2:
                break
            left -= len(epochs)
            outlines[name] = epochs
        rest = ranked[len(outlines) :]
        for place in range(min(left, len(rest))):
            name = rest[place * len(rest) // min(left, len(rest))]
            outlines[name] = [reported[name].epoch]
        costs = np.array([warp(reported[name].costs[epoch]) for name in outlines for epoch in outlines[name]])
        owners = [name for name in outlines for _ in outlines[name]]
        points = self._points(owners, [epoch for epochs in outlines.values() for epoch in epochs])
        middle = float(costs.mean())
        best = min(warp(curve.best) for curve in reported.values())
        newest = {name: epochs[-1] for name, epochs in outlines.items()}
        return Told(newest, points, costs - middle, best - middle, lambda cost: warp(cost) - middle)

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


def _gain(rng: np.random.Generator) -> float:
    """Return a random share of a large improvement."""
    return float(10 ** rng.uniform(-4, -1))


def _span(told: Told) -> float:
    """Return the way from the median to the best cost, which is a large improvement."""
    return max(float(np.median(told.costs)) - told.best, 0.1)


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
