"""Configurations as points of the unit cube, for searches that model results numerically.

A *place* is a vector with one entry per dimension: for a number its share of the way from the lower bound to the upper
one, on a logarithmic scale if the dimension has one; for a choice the index of the option; NaN where a configuration
has no such dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopfleet.domain import space as spaces
from hopfleet.domain.space import Choice, Dimension, Float, Integer, Normal
from hopfleet.domain.trial import Config

Array = NDArray[np.float64]

TAIL = 1e-4
"""Lowest quantile of a normal dimension that a place stands for; also from the top."""

MIDDLE = 0.5
"""The coordinate of a number that a configuration does not have."""


class Encoding:
    """The dimensions of a space. A space that is a function reveals its dimensions one configuration at a time."""

    def __init__(self, space: spaces.Space) -> None:
        self.space = space
        found = spaces.dimensions(space)
        self.dimensions = {name: each for name, each in found.items() if not isinstance(each, spaces.Derived)}

    def locate(self, config: Config, known: Config) -> Array:
        """Return the place of a configuration, all NaN if the space does not contain the configuration.

        ``known`` has what a space that is a function chose for the configuration.
        """
        found = spaces.find(self.space, config, known) or {}
        entries = {}
        for name, (dimension, value) in found.items():
            key = self._key(name, dimension)
            self.dimensions.setdefault(key, dimension)
            entries[key] = share(dimension, value)
        return np.array([entries.get(key, math.nan) for key in self.dimensions])

    def _key(self, name: str, dimension: Dimension) -> str:
        """Return the key of a dimension; a function may ask for several dimensions by the same name."""
        return name if self.dimensions.get(name, dimension) == dimension else f"{name} {dimension!r}"

    def coordinates(self, places: Sequence[Array]) -> Array:
        """Return the coordinates of places, one row each: a choice is expanded to one column for each option."""
        rows = self._padded(places)
        columns = [np.zeros(len(places))]
        for number, dimension in enumerate(self.dimensions.values()):
            entries = rows[:, number]
            if isinstance(dimension, Choice):
                columns += [(entries == option) * math.sqrt(0.5) for option in range(len(dimension.options))]
            else:
                columns.append(np.where(np.isnan(entries), MIDDLE, entries))
        return np.stack(columns, axis=1)

    def _padded(self, places: Sequence[Array]) -> Array:
        """Return places, one row each; some may be older than the last dimensions to be found."""
        rows = np.full((len(places), len(self.dimensions)), math.nan)
        for row, place in zip(rows, places, strict=True):
            row[: len(place)] = place
        return rows

    def drawn(self, rng: np.random.Generator, count: int) -> Array:
        """Return random places, one row each."""
        entries = rng.random((count, len(self.dimensions)))
        for number, dimension in enumerate(self.dimensions.values()):
            if isinstance(dimension, Choice):
                entries[:, number] = np.floor(entries[:, number] * len(dimension.options))
        return entries

    def near(self, rng: np.random.Generator, places: Sequence[Array], count: int) -> Array:
        """Return ``count`` random places near some of ``places``, a few coordinates of each at another value."""
        found = self.drawn(rng, count)
        starts = self._padded(places)[rng.integers(len(places), size=count)]
        starts = np.where(np.isnan(starts), found, starts)
        reach = 10 ** rng.uniform(-2, -0.3, (count, 1))
        choices = np.array([isinstance(each, Choice) for each in self.dimensions.values()], bool)
        moved = np.clip(starts + reach * rng.standard_normal(found.shape), 0, 1)
        moves = rng.random(found.shape) <= np.maximum(rng.random((count, 1)), 1 / max(1, found.shape[1]))
        return np.where(moves, np.where(choices, found, moved), starts)

    def config(self, place: Array, fixed: Mapping[str, Any]) -> Config:
        """Return the configuration at a place, with some values ``fixed``; dimensions without an entry are centred."""
        entries = dict(zip(self.dimensions, place.tolist(), strict=True))

        def draw(name: str, dimension: Dimension) -> Any:
            return value_at(dimension, entries.get(self._key(name, dimension), MIDDLE))

        return spaces.walk(self.space, draw, fixed)[0]

    def pin(self, places: Array, fixed: Mapping[str, Any]) -> None:
        """Set the entries of the dimensions that are ``fixed``, given by name, in all places."""
        for number, (name, dimension) in enumerate(self.dimensions.items()):
            if name in fixed:
                places[:, number] = share(dimension, fixed[name])


def share(dimension: Dimension, value: Any) -> float:
    """Return the entry of a value in a place."""
    match dimension:
        case Choice():
            return float(dimension.place(value) or 0)
        case Float(low=low, high=high, log=log):
            return _share(low, high, value, log)
        case Integer(low=low, high=high, log=log):
            return _share(low, high - 1, value, log)
        case Normal(mean=mean, sd=sd):
            return NormalDist(mean, sd).cdf(value)
        case _:
            raise AssertionError(dimension)


def value_at(dimension: Dimension, entry: float) -> Any:
    """Return the value of a dimension that is nearest to an entry of a place."""
    match dimension:
        case Choice(options=options):
            return options[int(entry)]
        case Float(low=low, high=high, log=log):
            return dimension.nearest(_between(low, high, entry, log))
        case Integer(low=low, high=high, log=log):
            return dimension.nearest(_between(low, high - 1, entry, log))
        case Normal(mean=mean, sd=sd):
            return NormalDist(mean, sd).inv_cdf(min(max(entry, TAIL), 1 - TAIL))
        case _:
            raise AssertionError(dimension)


def _share(low: float, high: float, value: float, log: bool) -> float:
    if high <= low:
        return MIDDLE
    if log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def _between(low: float, high: float, entry: float, log: bool) -> float:
    if log:
        return math.exp(math.log(low) + entry * (math.log(high) - math.log(low)))
    return low + entry * (high - low)
