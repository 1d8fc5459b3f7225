"""Summaries of data sets: ranges and histograms of columns, a batch at a time, and differences between two sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopfleet.data.columns import Column
from hopfleet.data.dataset import Dataset

BINS = 16
"""Bars of a histogram."""

ROWS = 4096
"""Rows that are read at once."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """The values of a column. Text, bytes and rows of different shapes are summarized by their lengths."""

    name: str
    type: str
    #: "values", or "lengths" of rows
    of: str
    least: float
    greatest: float
    mean: float
    #: values that are infinite or not a number
    not_finite: int
    #: width of a bar of the histogram, which begins at the least value
    width: float
    counts: tuple[int, ...]


def summarize(data: Dataset) -> list[ColumnSummary]:
    """Return a summary of each column, from two passes over all rows."""
    data.require_items()
    ranges = {name: _Range() for name in data.columns}
    for name, values in _columns(data):
        ranges[name].add(values)
    counts = {name: np.zeros(BINS, np.int64) for name in data.columns}
    for name, values in _columns(data):
        seen = ranges[name]
        if seen.finite:
            end = seen.least + BINS * _width(data.columns[name], seen)
            found, _ = np.histogram(values[np.isfinite(values)], BINS, (seen.least, max(end, seen.greatest)))
            counts[name] += found
    return [_summary(column, ranges[name], counts[name]) for name, column in data.columns.items()]


def differences(one: Dataset, other: Dataset) -> list[str]:
    """Describe how a data set differs from another; empty if both hold the same."""
    found = [f"column {name} is missing in {other.url}" for name in one.columns if name not in other.columns]
    found += [f"column {name} is missing in {one.url}" for name in other.columns if name not in one.columns]
    shared = [name for name in one.columns if name in other.columns]
    for name in shared:
        if str(one.columns[name]) != str(other.columns[name]):
            found.append(f"column {name}: {one.columns[name]} → {other.columns[name]}")
    if one.rows != other.rows:
        found.append(f"rows: {one.rows:,} → {other.rows:,}")
    if one.partition_rows != other.partition_rows:
        found.append(f"partitions: {_listed(one)} → {_listed(other)}")
    if one.fingerprint == other.fingerprint:
        return found
    theirs = {each.name: each for each in summarize(other)}
    for mine in summarize(one):
        if mine.name in shared and mine != theirs[mine.name]:
            found.append(f"column {mine.name}: {ranged(mine)} → {ranged(theirs[mine.name])}")
    return found or ["the same columns and ranges, but other rows or another order"]


def ranged(column: ColumnSummary) -> str:
    """Return the range and the mean of a column as text."""
    what = "" if column.of == "values" else "lengths "
    unusual = f", {column.not_finite:,} not finite" if column.not_finite else ""
    return f"{what}{column.least:.6g} to {column.greatest:.6g}, mean {column.mean:.6g}{unusual}"


class _Range:
    """The range and the sum of the values seen so far."""

    def __init__(self) -> None:
        self.least, self.greatest, self.sum = np.inf, -np.inf, 0.0
        self.finite = self.not_finite = 0

    def add(self, values: Numbers) -> None:
        finite = values[np.isfinite(values)]
        self.not_finite += values.size - finite.size
        if finite.size:
            self.least = min(self.least, float(finite.min()))
            self.greatest = max(self.greatest, float(finite.max()))
            self.sum += float(finite.sum())
            self.finite += finite.size


def _summary(column: Column, seen: _Range, counts: npt.NDArray[np.int64]) -> ColumnSummary:
    some = bool(seen.finite)
    return ColumnSummary(
        column.name,
        str(column),
        "values" if _has_values(column) else "lengths",
        seen.least if some else np.nan,
        seen.greatest if some else np.nan,
        seen.sum / seen.finite if some else np.nan,
        seen.not_finite,
        _width(column, seen) if some else np.nan,
        tuple(counts.tolist()),
    )


def _width(column: Column, seen: _Range) -> float:
    """Return the width of a bar; bars of whole numbers have a whole width, so that each holds as many numbers."""
    span = seen.greatest - seen.least
    whole = not _has_values(column) or (column.element.numpy.kind in "biu" and column.dtype != "bfloat16")
    return float(-(-(span + 1) // BINS)) if whole else span / BINS or 1.0


def _columns(data: Dataset) -> Iterator[tuple[str, Numbers]]:
    for part in range(len(data)):
        for batch in data.batches(part, batch_size=ROWS):
            for name, values in batch.items():
                yield name, _numbers(data.columns[name], values)


def _has_values(column: Column) -> bool:
    return column.kind.value == "fixed"


def _numbers(column: Column, values: Any) -> Numbers:
    if not _has_values(column):
        return np.array([np.size(each) if isinstance(each, np.ndarray) else len(each) for each in values], np.float64)
    if column.dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(np.abs(values) if values.dtype.kind == "c" else values, np.float64).reshape(-1)


def _listed(data: Dataset) -> str:
    return f"{len(data)} of {min(data.partition_rows):,} to {max(data.partition_rows):,} rows"
