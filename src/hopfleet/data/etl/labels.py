"""Labels: what a model is to predict. They are read once, never made up, and predictions are given back in their terms.

A label is a number, a class, or a list of classes. ``Label`` tells which by the training rows, and ``Outcome`` is what
is known about it when rows have been prepared: enough to turn a model's output into values of the raw column.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import Array
from hopfleet.data.etl.chunks import is_text
from hopfleet.data.etl.statistics import Moments, is_coded_text, numbers, whole
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError
from hopfleet.phrases import listed

MOST_CLASSES = 20
"""The most values of whole numbers that are classes, if there are ``ROWS_EACH`` rows for each of them on average."""

ROWS_EACH = 10

MANY = 1000
"""Different numbers of a batch above which they are not kept: they cannot be classes."""

REMEDY = "a label is missing; fill it in, or leave such rows out with on_error='skip'"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the values of a prepared label stand for.

    ``names`` are the classes in the order of their codes, for a number none, and ``counts`` says how many rows for
    training each has. A number was scaled by ``(value - middle) / width``; with ``log``, that is the logarithm of
    1 + value. With ``many``, a value is a list of classes, prepared as zeros and ones.
    """

    names: tuple[Any, ...] = ()
    middle: float = 0.0
    width: float = 1.0
    many: bool = False
    counts: tuple[int, ...] = ()
    log: bool = False

    def check_finite(self) -> None:
        """Raise DataError unless numbers can be scaled."""
        if not (math.isfinite(self.middle) and math.isfinite(self.width)):
            raise DataError(
                "the training rows have numbers too large to be scaled; correct them, or divide them by another unit"
            )

    @property
    def weights(self) -> list[float]:
        """A weight for each class, by which all classes count the same; their mean over the rows is 1."""
        total = sum(self.counts)
        return [total / (len(self.counts) * count) if count else 0.0 for count in self.counts]

    @property
    def kind(self) -> str:
        """What kind of label it is, in words."""
        if self.many:
            return f"lists of {len(self.names)} classes"
        return f"{len(self.names)} classes" if self.names else "a number"

    def restored(self, values: Array) -> Any:
        """Return predicted values in the terms of the raw column: a number for each row, or the names of classes.

        Numbers may have the shape (rows, 1). Classes are codes; scores of classes are for ``scored``. Return None for
        values that are neither.
        """
        flat = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
        if self.many:
            whole_numbers = values.dtype == np.bool_ or np.issubdtype(values.dtype, np.integer)
            if not whole_numbers or values.shape[1:] != (len(self.names),):
                return None
            return pa.array([[name for name, there in zip(self.names, row, strict=True) if there] for row in values])
        if self.names:
            if flat.ndim != 1 or not (flat.dtype == np.bool_ or np.issubdtype(flat.dtype, np.integer)):
                return None
            codes = flat.astype(np.int64)
            if len(codes) and not 0 <= codes.min() <= codes.max() < len(self.names):
                wrong = codes.min() if codes.min() < 0 else codes.max()
                raise DataError(f"predict() returned the class {wrong}; there are {len(self.names)}, counted from 0")
            return pc.take(pa.array(self.names), pa.array(codes))
        if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.number):
            return None
        if not self.scaled:
            return pa.array(flat)
        values = flat.astype(np.float64) * self.width + self.middle
        return pa.array(np.expm1(values) if self.log else values)

    def raw(self, values: Array) -> Any:
        """Return prepared labels in the terms of the raw column; None for values that are none."""
        return self.restored(values.astype(np.bool_) if self.many else values)

    @property
    def scaled(self) -> bool:
        """Whether a prepared number differs from the raw one."""
        return (self.middle, self.width, self.log) != (0.0, 1.0, False)

    def scored(self, values: Array) -> bool:
        """Whether values are scores of all classes for each row, the highest that of the predicted one."""
        if self.many or len(self.names) < 2:
            return False
        return bool(np.issubdtype(values.dtype, np.floating) and values.shape[1:] == (len(self.names),))


@explained
@dataclass(frozen=True, slots=True)
class Label:
    """A label as the training rows tell: a number as float32, a class as int64, a list of classes as zeros and ones.

    Text and truth values are classes, coded from 0 in alphabetical order. Zeros and ones stay as they are. Other whole
    numbers are classes if they have at most 20 values, and ten rows for each of them on average, and are coded in the
    order of their size. All others are numbers, scaled to mean 0 and deviation 1. A row without its label, or with a
    class that no training row has, fails.
    """

    def fit(self, column: pa.ChunkedArray) -> Any:
        kind = column.type
        if _is_list(kind):
            return {"lists": _counted(pc.list_flatten(column))}
        if is_coded_text(kind) or is_text(kind) or pa.types.is_boolean(kind):
            return {"names": _counted(column)}
        if not _is_number(kind):
            raise DataError(f"is {kind}, which cannot be a label; give a number, a text, or a list of texts")
        values = numbers(column.cast(pa.float64()), np.nan)
        values = values[np.isfinite(values)]
        found, counts = np.unique(values, return_counts=True)
        # Statistics of batches are added: one with many values, or with fractions, decides for all.
        broken = int(len(found) > MANY or bool((found != np.floor(found)).any()))
        kept = Counter() if broken else Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        return {"moments": Moments.of(values), "broken": broken, "values": kept}

    def outcome(self, fitted: Mapping[str, Any]) -> Outcome:
        """Return what the prepared values stand for."""
        for kind in ("lists", "names"):
            if kind in fitted:
                return _classes(sorted(fitted[kind], key=str), fitted[kind], many=kind == "lists")
        moments, values = fitted["moments"], fitted["values"]
        if not fitted["broken"]:
            if set(values) <= {0.0, 1.0}:
                return _classes([0, 1], values)
            if len(values) <= MOST_CLASSES and moments.count >= ROWS_EACH * len(values):
                return _classes(sorted(map(int, values)), values)
        return Outcome((), moments.mean, moments.deviation)

    def apply(self, column: pa.ChunkedArray, fitted: Mapping[str, Any]) -> Array:
        outcome = self.outcome(fitted)
        if column.null_count:
            raise DataError(REMEDY)
        if outcome.many:
            return _indicated(column, outcome.names)
        if "names" in fitted:
            return _coded(column, outcome.names)
        values = numbers(column.cast(pa.float64()), np.nan)
        if not np.isfinite(values).all():
            wrong = values[~np.isfinite(values)][0]
            raise DataError(REMEDY if np.isnan(wrong) else f"{wrong} is not finite; correct the value")
        if outcome.names:
            codes = np.searchsorted(outcome.names, values)
            known = np.asarray(outcome.names)[np.minimum(codes, len(outcome.names) - 1)] == values
            if not known.all():
                refuse_unknown(f"{values[~known][0]:g}", list(map(str, outcome.names)))
            return codes.astype(np.int64)
        outcome.check_finite()
        with np.errstate(over="ignore", invalid="ignore"):
            made: Array = ((values - outcome.middle) / outcome.width).astype(np.float32)
        if not np.isfinite(made).all():
            raise DataError(f"{values[~np.isfinite(made)][0]:g} is beyond the numbers of float32; correct the value")
        return made


def _counted(column: pa.ChunkedArray) -> Counter[Any]:
    """Return how often each value occurs; missing ones are left out."""
    values = column.drop_null()
    if is_coded_text(values.type):
        values = values.cast(values.type.value_type)
    found = pc.value_counts(values)
    return Counter(dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)))


def _classes(names: Sequence[Any], counts: Mapping[Any, int], *, many: bool = False) -> Outcome:
    return Outcome(tuple(names), many=many, counts=tuple(counts.get(name, 0) for name in names))


def _coded(column: pa.ChunkedArray, names: tuple[Any, ...]) -> Array:
    plain = whole(column)
    if is_coded_text(column.type):
        plain = plain.cast(plain.type.value_type)
    codes = pc.index_in(plain, value_set=pa.array(names, plain.type))
    if codes.null_count:
        refuse_unknown(plain[pc.index(pc.is_null(codes), True).as_py()].as_py(), [str(name) for name in names])
    return numbers(codes).astype(np.int64)


def _indicated(column: pa.ChunkedArray, names: tuple[Any, ...]) -> Array:
    places = {name: place for place, name in enumerate(names)}
    made = np.zeros((len(column), len(names)), np.float32)
    for row, values in enumerate(column.to_pylist()):
        for value in values:
            if value is None:
                raise DataError(REMEDY)
            if value not in places:
                refuse_unknown(value, [str(name) for name in names])
            made[row, places[value]] = 1
    return made


def refuse_unknown(value: Any, names: list[str]) -> None:
    """Raise DataError for a class that no training row has."""
    raise DataError(
        f"{value!r} is not among the labels of the training rows, {listed(str(value), names)}; map it to one of them, "
        "or leave such rows out with on_error='skip'"
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and is_text(kind.value_type)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
