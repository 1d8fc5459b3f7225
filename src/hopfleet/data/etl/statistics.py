"""Statistics that can be merged: each batch gives its own, and those of all are merged in the order of the rows.

Numbers and arrays are added, sets united, counters added, and dicts merged by key. The classes here know more: their
results do not depend on the number of workers, because chunks are the same for any number.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import Array
from hopfleet.data.convert import arrow_numbers
from hopfleet.errors import DataError

POINTS = 4096
"""Points that a summary of quantiles keeps."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean, deviation, least and greatest of numbers; missing ones are left out."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  #: the sum of squared distances to the mean
    least: float = math.inf
    greatest: float = -math.inf

    @classmethod
    def of(cls, values: Any) -> Moments:
        """Return the moments of an array of numbers; NaN and None are left out."""
        if isinstance(values, pa.Array | pa.ChunkedArray):
            values = values.drop_null().cast(pa.float64())
            array = numbers(values)
        else:
            array = np.asarray(values, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # sums of huge numbers are infinite
            mean = array.mean() if len(array) else 0.0
            if np.isnan(mean):
                array = array[~np.isnan(array)]
                mean = array.mean() if len(array) else 0.0
            if not len(array):
                return cls()
            apart = np.subtract(array, mean)
            squares = np.multiply(apart, apart, out=apart)
            return cls(len(array), float(mean), float(squares.sum()), float(array.min()), float(array.max()))

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 if all numbers are equal, so that a division by it is safe."""
        return math.sqrt(self.squares / self.count) or 1.0 if self.count else 1.0

    def merge(self, other: Moments) -> Moments:
        if not self.count or not other.count:
            return other if not self.count else self
        count, apart = self.count + other.count, other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart * apart * self.count * other.count / count,
            min(self.least, other.least),
            max(self.greatest, other.greatest),
        )


@dataclass(frozen=True)
class Counts:
    """How often each value occurs; missing ones are left out."""

    counts: Mapping[str, int]

    @classmethod
    def of(cls, values: Any) -> Counts:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array([None if value is None else str(value) for value in values], pa.large_string())
        values = values.drop_null()
        if is_coded_text(values.type):
            return cls._of_codes(whole(values))
        if not pa.types.is_string(values.type):
            values = values.cast(pa.large_string())
        counted = pc.value_counts(values)
        if isinstance(counted, pa.ChunkedArray):
            counted = counted.combine_chunks()
        names, numbers = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
        return cls(dict(zip(names, numbers, strict=True)))

    @classmethod
    def _of_codes(cls, values: pa.DictionaryArray) -> Counts:
        """Return the counts of a dictionary array without nulls, in the order in which values come first."""
        codes, names = arrow_numbers(values.indices), values.dictionary.to_pylist()
        counts, firsts = np.bincount(codes, minlength=len(names)), np.empty(len(names), np.int64)
        firsts[codes[::-1]] = np.arange(len(codes))[::-1]  # of equal codes, the last one here counts
        present = np.flatnonzero(counts)
        order = present[np.argsort(firsts[present])].tolist()
        return cls({names[code]: int(counts[code]) for code in order})

    def merge(self, other: Counts) -> Counts:
        counts = dict(self.counts)
        for value, count in other.counts.items():
            counts[value] = counts.get(value, 0) + count
        return Counts(counts)

    def common(self, at_most: int | None = None) -> list[str]:
        """Return the values, the most frequent first; those of equal frequency in the order of their text."""
        return self._sorted[:at_most]

    @functools.cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.counts, key=lambda value: (-self.counts[value], value))

    def __getstate__(self) -> dict[str, Any]:
        return {"counts": self.counts}


@dataclass(frozen=True, slots=True, eq=False)
class Quantiles:
    """A summary of numbers that answers for quantiles: exact up to 4096 numbers, above that within about 0.1%."""

    values: Array  #: (points,) float64, sorted
    weights: Array  #: (points,) float64, how many numbers each point stands for

    @classmethod
    def of(cls, values: Any) -> Quantiles:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            array = numbers(values.drop_null().cast(pa.float64()))
        else:
            array = np.asarray(values, np.float64)
        array = np.sort(array[~np.isnan(array)])
        return cls(array, np.ones(len(array)))._short()

    def merge(self, other: Quantiles) -> Quantiles:
        values = np.concatenate([self.values, other.values])
        order = np.argsort(values, kind="stable")
        return Quantiles(values[order], np.concatenate([self.weights, other.weights])[order])._short()

    def at(self, share: float) -> float:
        """Return the number below which that share of all numbers lies; NaN without any number."""
        if not len(self.values):
            return math.nan
        ranks = np.cumsum(self.weights) - self.weights / 2
        return float(np.interp(share * self.weights.sum(), ranks, self.values))

    def shares(self, values: Array) -> Array:
        """Return the share of all numbers below each of some values; NaN without any number."""
        if not len(self.values):
            return np.full(len(values), math.nan)
        ranks = np.cumsum(self.weights) - self.weights / 2
        points, places = np.unique(self.values, return_inverse=True)  # equal numbers have one rank, in their middle
        middles = np.bincount(places, ranks * self.weights) / np.bincount(places, self.weights)
        found: Array = np.interp(values, points, middles / self.weights.sum())
        return found

    def _short(self) -> Quantiles:
        if len(self.values) <= POINTS:
            return self
        ends = np.cumsum(self.weights)
        groups = np.minimum((ends - self.weights / 2) * POINTS // ends[-1], POINTS - 1).astype(np.int64)
        weights = np.bincount(groups, self.weights, POINTS)
        sums = np.bincount(groups, self.weights * self.values, POINTS)
        some = weights > 0
        return Quantiles(sums[some] / weights[some], weights[some])


def is_coded_text(kind: pa.DataType) -> bool:
    """Whether a column is text as a dictionary."""
    return bool(pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type))


def whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # combine_chunks may keep the type
        array = pa.concat_arrays(array.chunks)
    return array


def numbers(values: pa.Array | pa.ChunkedArray, fill: float = 0) -> Array:
    """Return a column of numbers as an array, with ``fill`` in place of nulls. ``fill_null`` would import pandas."""
    array = whole(values)
    found = arrow_numbers(array)
    if array.null_count:
        found = np.where(arrow_numbers(pc.is_null(array).cast(pa.uint8())).view(np.bool_), fill, found)
    return found


def merged(one: Any, other: Any) -> Any:
    """Return the statistics of two batches as those of both."""
    if hasattr(one, "merge"):
        return one.merge(other)
    if isinstance(one, Counter):
        return one + other
    if isinstance(one, Mapping):
        return {
            key: merged(one[key], other[key]) if key in one and key in other else (one if key in one else other)[key]
            for key in {**one, **other}
        }
    if isinstance(one, set | frozenset):
        return one | other
    if isinstance(one, bool) or not isinstance(one, int | float | complex | np.ndarray | np.number):
        raise DataError(
            f"fit() returned a {type(one).__name__}, which cannot be merged; return numbers and arrays (added), sets, "
            "Counters, hop.Moments, hop.Counts or hop.Quantiles, or an object with merge(other)"
        )
    return one + other


def to_json(value: Any, arrays: dict[str, Array]) -> Any:
    """Return statistics as JSON values; arrays are put into ``arrays`` and named."""
    if isinstance(value, Moments | Quantiles | Counts):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {"kind": type(value).__name__, **{name: to_json(entry, arrays) for name, entry in fields.items()}}
    if isinstance(value, np.ndarray):
        name = f"array{len(arrays)}"
        arrays[name] = np.ascontiguousarray(value)
        return {"kind": "array", "name": name}
    if isinstance(value, set | frozenset):
        return {"kind": "set", "values": sorted(value, key=repr)}
    if isinstance(value, Mapping):
        kind = {"kind": "Counter"} if isinstance(value, Counter) else {"kind": "dict"}
        values = [entry if type(entry) is int else to_json(entry, arrays) for entry in value.values()]
        return {**kind, "keys": list(value), "values": values}
    if isinstance(value, float) and not math.isfinite(value):
        return {"kind": "float", "text": repr(value)}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the statistics that ``to_json`` wrote."""
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind == "array":
        return arrays[value["name"]]
    if kind == "set":
        return set(value["values"])
    if kind == "float":
        return float(value["text"])
    if kind in ("dict", "Counter"):
        entries = [from_json(entry, arrays) for entry in value["values"]]
        pairs = dict(zip(value["keys"], entries, strict=True))
        return Counter(pairs) if kind == "Counter" else pairs
    known: dict[str, Any] = {"Moments": Moments, "Counts": Counts, "Quantiles": Quantiles}
    return known[kind](**{name: from_json(entry, arrays) for name, entry in value.items() if name != "kind"})
