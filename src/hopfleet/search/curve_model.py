"""A Gaussian process over configurations and epochs: what a trial will reach, given how it and others went so far.

A learning curve is the sum of a part that all trials share, a part that similar configurations share, and a part of the
trial itself. Each part is a level and a slope over the logarithm of the epoch; the last two have smooth deviations too.
How much each part varies, and how quickly results change along each coordinate of the space, is learned by ascending
the marginal likelihood, one step at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopfleet.search.encoding import Array

Bools = NDArray[np.bool_]

PARTS = 8
"""Parts of the covariance: two common to all trials, three of similar configurations, three of a trial itself."""

START: Array = np.log([0.5, 0.2, 0.3, 0.2, 0.05, 0.1, 0.1, 0.05, 1e-3])
"""The logarithms of the parts' variances, and of the noise's, before anything is learned."""

SPREAD = 1.5
"""The standard deviation of the prior of each logarithm."""

REACH = 5.0
"""The largest distance of a logarithm from where it started."""

BEND = 0.3
"""The share of the logarithmic axis of epochs over which smooth deviations are alike."""

RATE = 0.1
"""The largest change of a logarithm in one step."""

JITTER = 1e-6
"""A variance added to each point, so that equal points do no harm."""

NEW = -1
"""The number of a trial that is yet to start."""


@dataclass(frozen=True, slots=True)
class Points:
    """Points of learning curves."""

    rows: Array  #: the coordinates of each configuration
    owners: NDArray[Any]  #: the row of each point
    lags: Array  #: the place of each point on the axis of epochs: 1 at the first epoch, 0 at the last
    trials: NDArray[Any]  #: the number of each point's trial; all that are ``NEW`` are trials of their own


class CurveModel:
    """What has been learned about variances and lengths."""

    def __init__(self) -> None:
        self._variances = START.copy()
        self._lengths = np.zeros(0)
        #: The running mean of squared slopes, which damps the steps.
        self._squares = np.zeros(0)

    def learn(self, points: Points, costs: Array, steps: int) -> None:
        """Ascend the likelihood of the costs for ``steps`` steps."""
        width = points.rows.shape[1]
        if width != len(self._lengths):
            self._lengths = np.full(width, _usual_length(width))
            self._squares = np.zeros(0)
        for _ in range(steps):
            self._climb(points, costs)

    def fit(self, points: Points, costs: Array) -> Fit:
        """Return the process given these points."""
        width = points.rows.shape[1]
        lengths = self._lengths if width == len(self._lengths) else np.full(width, _usual_length(width))
        return Fit(np.exp(self._variances), np.exp(lengths), points, costs)

    def _climb(self, points: Points, costs: Array) -> None:
        amounts, scaled = np.exp(self._variances), points.rows / np.exp(self._lengths)
        own = np.ix_(points.owners, points.owners)
        kernel, falls = _matern(scaled, scaled), _matern_falls(scaled, scaled)
        products, bends = _over_epochs(points.lags, points.lags)
        same, alike = points.owners[:, None] == points.owners[None, :], kernel[own]
        parts = [np.ones_like(products), products, alike, alike * products, alike * bends]
        parts += [same * 1.0, same * products, same * bends, np.eye(len(costs))]
        covariance = np.tensordot(amounts, np.stack(parts), 1)
        covariance[np.diag_indices_from(covariance)] += JITTER
        inverse = np.linalg.inv(covariance)
        weights = inverse @ costs
        excess = np.outer(weights, weights) - inverse
        slopes = [0.5 * amount * float(np.vdot(excess, part)) for amount, part in zip(amounts, parts, strict=True)]
        pulls = excess * (amounts[2] + amounts[3] * products + amounts[4] * bends) * falls[own]
        members = np.equal.outer(np.arange(len(scaled)), points.owners) * 1.0
        by_row = members @ pulls @ members.T
        stretch = (scaled**2 * by_row.sum(axis=1)[:, None]).sum(axis=0) - (scaled * (by_row @ scaled)).sum(axis=0)
        self._move(np.concatenate([slopes, stretch]))

    def _move(self, slopes: Array) -> None:
        """Take a damped step upwards, as RMSprop does, towards the prior as well."""
        width = len(self._lengths)
        usual = np.concatenate([START, np.full(width, _usual_length(width))])
        place = np.concatenate([self._variances, self._lengths])
        slopes = slopes - (place - usual) / SPREAD**2
        if not len(self._squares):
            self._squares = slopes**2
        self._squares = 0.8 * self._squares + 0.2 * slopes**2
        place = np.clip(place + RATE * slopes / (np.sqrt(self._squares) + 1.0), usual - REACH, usual + REACH)
        self._variances, self._lengths = place[: PARTS + 1], place[PARTS + 1 :]


class Fit:
    """The process given points, with fixed variances and lengths."""

    def __init__(self, amounts: Array, lengths: Array, points: Points, costs: Array) -> None:
        self._amounts, self._lengths, self._points = amounts, lengths, points
        self._inverse = np.linalg.inv(self._noisy(self._covariance(points, points)))
        self._weights = self._inverse @ costs

    def predict(self, asked: Points, pending: Points | None) -> tuple[Array, Array]:
        """Return means and standard deviations. ``pending`` results are taken to turn out as predicted."""
        across = self._covariance(self._points, asked)
        solved = self._inverse @ across
        variances = self._alone(asked.lags, asked.lags) - (across * solved).sum(axis=0)
        if pending is not None:
            waiting = self._covariance(self._points, pending)
            held = self._noisy(self._covariance(pending, pending) - waiting.T @ (self._inverse @ waiting))
            joint = self._covariance(pending, asked) - waiting.T @ solved
            variances = variances - (joint * np.linalg.solve(held, joint)).sum(axis=0)
        return across.T @ self._weights, np.sqrt(np.maximum(variances, JITTER))

    def proceed(self, last: Points, costs: Array, told: Bools, ends: Sequence[Array]) -> list[tuple[Array, Array]]:
        """Return means and standard deviations of trials at each of several ``ends``, given their ``last`` points.

        Each prediction also takes into account the cost of the trial's last point, unless the process was ``told``.
        """
        kernel = self._alike(self._points, last)
        before = self._covariance(self._points, last, kernel)
        expected = before.T @ self._weights
        held = self._alone(last.lags, last.lags) - (before * (self._inverse @ before)).sum(axis=0)
        weights = np.where(told, 0.0, 1 / (np.maximum(held, 0.0) + self._amounts[PARTS] + JITTER))
        found = []
        for lags in ends:
            across = self._covariance(self._points, replace(last, lags=lags), kernel)
            solved = self._inverse @ across
            joint = self._alone(last.lags, lags) - (before * solved).sum(axis=0)
            means = across.T @ self._weights + weights * joint * (costs - expected)
            variances = self._alone(lags, lags) - (across * solved).sum(axis=0) - weights * joint**2
            found.append((means, np.sqrt(np.maximum(variances, JITTER))))
        return found

    def _noisy(self, covariance: Array) -> Array:
        covariance[np.diag_indices_from(covariance)] += self._amounts[PARTS] + JITTER
        return covariance

    def _alike(self, one: Points, other: Points) -> Array:
        kernel = _matern(one.rows / self._lengths, other.rows / self._lengths)
        return np.asarray(kernel[np.ix_(one.owners, other.owners)])

    def _covariance(self, one: Points, other: Points, kernel: Array | None = None) -> Array:
        """Return the covariances of points; ``kernel`` tells how alike the configurations are, if that is known."""
        alike = self._alike(one, other) if kernel is None else kernel
        products, bends = _over_epochs(one.lags, other.lags)
        first, slope, level, turn, bend, own, tilt, drift = self._amounts[:PARTS]
        same = (one.trials[:, None] == other.trials[None, :]) & (one.trials[:, None] != NEW)
        covariance = first + slope * products + alike * (level + turn * products + bend * bends)
        rows, columns = np.nonzero(same)
        covariance[rows, columns] += own + tilt * products[rows, columns] + drift * bends[rows, columns]
        return np.asarray(covariance)

    def _alone(self, one: Array, other: Array) -> Array:
        """Return the covariance of two points of a trial at each pair of places on the axis of epochs."""
        levels, slopes, bends = (self._amounts[parts].sum() for parts in ([0, 2, 5], [1, 3, 6], [4, 7]))
        return np.asarray(levels + slopes * one * other + bends * np.exp(-0.5 * ((one - other) / BEND) ** 2))


def _usual_length(width: int) -> float:
    """Return the logarithm of the usual length: distances grow with the number of coordinates."""
    return math.log(0.4 * math.sqrt(max(width - 1, 1)))


def _distances(one: Array, other: Array) -> Array:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * one @ other.T
    return np.asarray(np.sqrt(5 * np.maximum(squares, 0.0)))


def _matern(one: Array, other: Array) -> Array:
    """Return the Matérn kernel of smoothness 5/2."""
    far = _distances(one, other)
    return np.asarray((1 + far + far**2 / 3) * np.exp(-far))


def _matern_falls(one: Array, other: Array) -> Array:
    """Return how fast the kernel falls with half the squared distance."""
    far = _distances(one, other)
    return np.asarray(5 / 3 * (1 + far) * np.exp(-far))


def _over_epochs(one: Array, other: Array) -> tuple[Array, Array]:
    """Return the covariances of slopes and of smooth deviations."""
    return np.outer(one, other), np.exp(-0.5 * ((one[:, None] - other[None, :]) / BEND) ** 2)
