"""Steps of a table's recipe: what is done to one column. Numbers are scaled, categories and dates become numbers."""

from __future__ import annotations

import dataclasses
import zoneinfo
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import Array
from hopfleet.data.convert import text_array
from hopfleet.data.etl.chunks import ColumnTypes, is_text
from hopfleet.data.etl.csv_rows import bad_values
from hopfleet.data.etl.labels import Label, Outcome
from hopfleet.data.etl.recipe import plain_batch
from hopfleet.data.etl.statistics import Counts, Moments, Quantiles, is_coded_text, numbers, whole
from hopfleet.domain import bounds
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError
from hopfleet.phrases import did_you_mean, listed, shown
from hopfleet.support.code_digests import digests

WIDEST = 4096
"""Categories of the widest array of zeros with a 1."""


def later(default: Any, before: Any = None) -> Any:
    """Return a field of a step that it did not always have; recipes that were stored without it have ``before``."""
    return dataclasses.field(default=default, metadata={"before": default if before is None else before})


def described(self: Any) -> str:
    """Return the settings of a step, by which data sets know their recipes: later fields only where they are used."""
    used = [each for each in fields(self) if not each.metadata or getattr(self, each.name) != each.default]
    return f"{type(self).__qualname__}({', '.join(f'{each.name}={getattr(self, each.name)!r}' for each in used)})"


def restore(self: Any, state: Sequence[Any]) -> None:
    """Set the fields of a step that was stored, perhaps before it had all of them."""
    for place, each in enumerate(fields(self)):
        object.__setattr__(self, each.name, state[place] if place < len(state) else each.metadata["before"])


@explained
@dataclass(frozen=True, slots=True, repr=False)
class Number:
    """A number as float32.

    ``scale`` is "standard" (mean 0, deviation 1), "range" (0 to 1), "log" (the logarithm of 1 + x, then as "standard"),
    "quantile" (the share of the training rows with smaller numbers) or None. ``missing`` is what fills a missing value:
    "mean", "median", a number, or "raise", with which the row fails. With ``indicator``, a second number is 1 where the
    value is missing.
    """

    scale: str | None = "standard"
    missing: str | float = "raise"
    indicator: bool = later(False)

    __repr__ = described
    __setstate__ = restore

    def __post_init__(self) -> None:
        _check("scale", self.scale, ("standard", "range", "log", "quantile", None))
        if not isinstance(self.missing, int | float):
            _check("missing", self.missing, ("raise", "mean", "median"))
        if self.indicator and self.missing == "raise":
            raise DataError("indicator=True: says which values are missing; fill them with missing='mean' or another")

    def fit(self, column: pa.ChunkedArray) -> Any:
        values = numbers(_cast(column, pa.float64(), strict=False), np.nan)
        if self.scale == "log":
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log1p(values)
        if not (finite := np.isfinite(values)).all():
            values = values[finite]
        fitted: dict[str, Any] = {"moments": Moments.of(values)}
        if self.missing == "median" or self.scale == "quantile":
            fitted["quantiles"] = Quantiles.of(values)
        return fitted

    def apply(self, column: pa.ChunkedArray, fitted: Any) -> Array:
        values = _cast(column, pa.float64(), strict=True)
        array = numbers(values, np.nan)
        missing = np.isnan(array) if self.indicator else None
        if not np.isfinite(array).all():
            if np.isinf(array).any():
                raise DataError(f"{array[np.isinf(array)][0]} is not finite; correct the value")
            if self.missing == "raise":
                _refuse_missing("fill it with hop.Number(missing='mean')")
        if self.scale == "log":
            if (array <= -1).any():
                raise DataError(f"{array[array <= -1][0]:g} has no logarithm; scale='log' takes numbers above -1")
            array = np.log1p(array)
        array = np.where(np.isnan(array), self._fill(fitted), array) if np.isnan(array).any() else array
        with np.errstate(over="ignore", invalid="ignore"):
            made = self._scaled(array, fitted)
        if not np.isfinite(made).all():
            raise DataError(f"{array[~np.isfinite(made)][0]:g} is beyond the numbers of float32; correct the value")
        return made if missing is None else np.stack([made, missing.astype(np.float32)], axis=1)

    def _fill(self, fitted: Any) -> float:
        """Return what stands in for a missing value."""
        if isinstance(self.missing, str):
            mean: float = fitted["moments"].mean
            return fitted["quantiles"].at(0.5) if self.missing == "median" else mean
        return float(np.log1p(self.missing)) if self.scale == "log" else float(self.missing)

    def _scaled(self, array: Array, fitted: Any) -> Array:
        if self.scale is None:
            return array.astype(np.float32)
        if self.scale == "quantile":
            shares: Array = fitted["quantiles"].shares(array).astype(np.float32)
            return shares
        outcome = self.outcome(fitted)
        outcome.check_finite()
        scaled = np.empty(array.shape, np.float32)
        return np.divide(np.subtract(array, outcome.middle), outcome.width, out=scaled, casting="same_kind")

    def outcome(self, fitted: Any) -> Outcome:
        """Return what the prepared numbers stand for."""
        if self.scale is None:
            return Outcome()
        moments: Moments = fitted["moments"]
        if self.scale == "range":
            return Outcome((), moments.least, (moments.greatest - moments.least) or 1.0)
        return Outcome((), moments.mean, moments.deviation, log=self.scale == "log")


@explained
@dataclass(frozen=True, slots=True, repr=False)
class Category:
    """A category as int64: its rank among the categories of the training rows, the most frequent first.

    With ``unseen="other"``, code 0 stands for missing categories and for those that training has not seen, or not among
    the ``at_most`` most frequent; known ones count from 1. With ``unseen="raise"``, as for labels, known ones count
    from 0, and a row with any other fails. With ``one_hot``, a category becomes an array of zeros with a 1 at its code.
    """

    unseen: str = "other"
    at_most: int | None = None
    one_hot: bool = later(False)

    __repr__ = described
    __setstate__ = restore

    def __post_init__(self) -> None:
        _check("unseen", self.unseen, ("other", "raise"))
        if self.at_most is not None:
            bounds.integer("at_most", self.at_most, most=bounds.ROWS)

    def fit(self, column: pa.ChunkedArray) -> Any:
        return Counts.of(column)

    def apply(self, column: pa.ChunkedArray, fitted: Counts) -> Array:
        names = fitted.common(self.at_most)
        if is_coded_text(column.type):
            coded = whole(column)
            codes = pc.take(pc.index_in(coded.dictionary, value_set=text_array(names).cast(pa.string())), coded.indices)
        else:
            kind = column.type if pa.types.is_string(column.type) else pa.large_string()
            codes = pc.index_in(column.cast(kind), value_set=text_array(names).cast(kind))
        if self.unseen == "raise" and codes.null_count:
            row = pc.index(pc.is_null(codes), True).as_py()
            value = column[row].as_py()
            if value is None:
                _refuse_missing("fill it in, or use hop.Category(unseen='other')")
            raise DataError(
                f"{value!r} is not among the categories of the training rows, {listed(value, names)}; map it to one of "
                "them, or use hop.Category(unseen='other')"
            )
        array = numbers(codes, -1).astype(np.int64)
        if self.unseen == "other":
            np.add(array, 1, out=array)
        return self._hot(array, len(names) + (self.unseen == "other")) if self.one_hot else array

    def _hot(self, codes: Array, width: int) -> Array:
        if width > WIDEST:
            raise DataError(f"one_hot=True: there are {width:,} categories, and at most {WIDEST:,} fit; give at_most=")
        made = np.zeros((len(codes), width), np.float32)
        made[np.arange(len(codes)), codes] = 1
        return made

    def outcome(self, fitted: Counts) -> Outcome:
        """Return what the codes stand for, if every code is that of one category."""
        names = fitted.common(self.at_most)
        return Outcome(tuple(names), counts=tuple(fitted.counts[name] for name in names))


OFFSET = r"\d\d:\d\d.*(Z|[-+]\d\d:?\d\d)\s*$"
"""What a time with a zone ends in."""

PERIODS = {"month": 12, "day": 31, "weekday": 7, "hour": 24, "minute": 60, "second": 60}
"""After how many of a part of a date it begins anew."""

PARTS = ("year", "month", "day", "weekday", "hour", "minute", "second", "age")


@explained
@dataclass(frozen=True, slots=True, repr=False)
class Date:
    """A date or time as a float32 for each of its ``parts``: year, month, day, weekday, hour, minute, second, or age.

    The age is in days before the last date of the training rows. Text must be as in ISO 8601, or as ``format`` says in
    the letters of ``strptime``. Times are those of the clocks in the time zone of the column, or in ``zone``, such as
    "Europe/Berlin"; text with offsets is in UTC. Times without a zone stay as they are. With ``cyclic``, all parts but
    the year and the age become a sine and a cosine, so that 23 o'clock is near 0.
    """

    parts: Sequence[str] = ("year", "month", "day", "weekday", "hour")
    format: str = ""
    zone: str = later("", before="UTC")
    cyclic: bool = later(False)

    __repr__ = described
    __setstate__ = restore

    def __post_init__(self) -> None:
        if self.zone and self.zone not in zoneinfo.available_timezones():
            near = did_you_mean(self.zone, sorted(zoneinfo.available_timezones()))
            raise DataError(f"zone={shown(self.zone)}: is not a time zone; {near}give one such as 'Europe/Berlin'")
        if not len(self.parts):
            raise DataError(f"parts={shown(self.parts)}: must name at least one of {', '.join(PARTS)}")
        for part in self.parts:
            _check("parts", part, PARTS)

    def fit(self, column: pa.ChunkedArray) -> Any:
        if "age" not in self.parts:
            return {}
        stamps = self._stamps(column, strict=False)
        return Moments.of(pc.divide(stamps.cast(pa.int64()).cast(pa.float64()), 86_400e6))

    def apply(self, column: pa.ChunkedArray, fitted: Any) -> Array:
        if column.null_count:
            _refuse_missing("fill it in")
        return self._made(self._stamps(column, strict=True), fitted.greatest if "age" in self.parts else 0.0)

    def fit_stacked(self, column: pa.ChunkedArray) -> dict[str, Any]:
        """Return the statistics with which the parts are scaled like the numbers beside them."""
        array = self._made(self._stamps(column, strict=False).drop_null(), 0.0)
        return {"age": self.fit(column), "parts": {str(place): Moments.of(array[:, place]) for place in self._lines}}

    def apply_stacked(self, column: pa.ChunkedArray, fitted: Mapping[str, Any]) -> Array:
        """Return the parts with mean 0 and deviation 1 in the training rows; sines and cosines stay as they are."""
        array = self.apply(column, fitted["age"])
        for place, part in self._lines.items():
            moments: Moments = fitted["parts"][str(place)]
            middle = moments.mean + (fitted["age"].greatest if part == "age" else 0.0)
            array[:, place] = (array[:, place].astype(np.float64) - middle) / moments.deviation
        return array

    @property
    def _lines(self) -> dict[int, str]:
        """The parts that are numbers on a line, not on a circle, by their places."""
        wide = [[part] if not self.cyclic or part not in PERIODS else ["", ""] for part in self.parts]
        return {place: part for place, part in enumerate(part for some in wide for part in some) if part}

    def _made(self, stamps: pa.ChunkedArray, last: float) -> Array:
        """Return the parts of times; ages are in days before the ``last`` one."""
        clocks = pc.local_timestamp(stamps) if stamps.type.tz else stamps
        made = []
        for part in self.parts:
            if part == "age":
                days = pc.divide(stamps.cast(pa.int64()).cast(pa.float64()), 86_400e6)
                values = pc.subtract(last, days)
            else:
                values = getattr(pc, "day_of_week" if part == "weekday" else part)(clocks)
            period = PERIODS.get(part) if self.cyclic else None
            turns = None if period is None else 2 * np.pi * numbers(values) / period
            made += [numbers(values)] if turns is None else [np.sin(turns), np.cos(turns)]
        array = np.empty((len(stamps), len(made)), np.float32)
        for place, values in enumerate(made):
            array[:, place] = values
        return array

    def _stamps(self, column: pa.ChunkedArray, *, strict: bool) -> pa.ChunkedArray:
        kind = pa.timestamp("us")
        if not is_text(column.type):
            zone = (self.zone or column.type.tz) if pa.types.is_timestamp(column.type) and column.type.tz else None
            return column.cast(pa.timestamp("us", zone))
        if self.format:
            stamps = pc.strptime(column, format=self.format, unit="us", error_is_null=True)
            if strict and stamps.null_count > column.null_count:
                row = pc.index(pc.is_null(stamps), True).as_py()
                raise DataError(f"{column[row].as_py()!r} is not a date of the format {self.format!r}")
            return stamps
        if pc.any(pc.match_substring_regex(column, OFFSET)).as_py():
            kind = pa.timestamp("us", self.zone or "UTC")
        return _cast(column, kind, strict=strict)


@explained
@dataclass(frozen=True, slots=True, repr=False)
class Text:
    """A text as int64 tokens, made by the function ``tokenize``.

    The function returns numbers, such as a tokenizer of Hugging Face, or words. A word becomes its rank among the words
    of the training rows, the most frequent first, counted from 1; code 0 stands for words that training has not seen,
    or not among the ``at_most`` most frequent. Rows have as many tokens as their texts, see ``hop.pad``; with
    ``length``, each is cut or filled with 0 to that many.
    """

    tokenize: Callable[[str], Any] = str.split
    at_most: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.tokenize):
            raise DataError(f"tokenize={shown(self.tokenize)}: must be a function of a text, such as str.split")
        for name, value in (("at_most", self.at_most), ("length", self.length)):
            if value is not None and (type(value) is not int or value < 1):
                raise DataError(f"{name}={value!r}: must be an integer of at least 1")

    def __repr__(self) -> str:
        """Return the settings and digests of the code, which tell whether a data set is up to date."""
        name = getattr(self.tokenize, "__qualname__", type(self.tokenize).__qualname__)
        return f"Text({name}, {digests(self.tokenize)}, at_most={self.at_most}, length={self.length})"

    def fit(self, column: pa.ChunkedArray) -> Any:
        if not is_text(column.type):
            return Counts({})  # its rows fail in apply
        texts = column.drop_null().to_pylist()
        first = next((tokens for text in texts if len(tokens := self._tokens(text))), [])
        if not all(isinstance(token, str) for token in first):
            return Counts({})
        return Counts(dict(Counter(word for text in texts for word in self._tokens(text))))

    def apply(self, column: pa.ChunkedArray, fitted: Counts) -> Any:
        if column.null_count:
            _refuse_missing("fill it in")
        ranks = {word: rank for rank, word in enumerate(fitted.common(self.at_most), 1)}
        rows = [
            [ranks.get(token, 0) if isinstance(token, str) else int(token) for token in self._tokens(text)]
            for text in column.to_pylist()
        ]
        if self.length is None:
            return [np.array(row, np.int64) for row in rows]
        made = np.zeros((len(rows), self.length), np.int64)
        for place, row in enumerate(rows):
            made[place, : len(row)] = row[: self.length]
        return made

    def _tokens(self, text: Any) -> Sequence[Any]:
        if not isinstance(text, str):
            raise DataError(f"{shown(text)} is not text; read the column as hop.Files(..., types={{name: 'string'}})")
        made = self.tokenize(text)
        tokens = made["input_ids"] if isinstance(made, Mapping) else made
        return tokens if isinstance(tokens, Sequence) else list(tokens)


@dataclass(frozen=True, slots=True, repr=False)
class Own:
    """A step of the user's: a function of a column's values, or an object with ``apply(values, fitted)``.

    The values are an array of numbers or a list, as a function of a batch gets them. What ``fit(values)`` returns for
    each batch, if there is such a method, is merged as the statistics of a recipe are.
    """

    step: Any

    def __repr__(self) -> str:
        settings = sorted(getattr(self.step, "__dict__", {}).items())
        name = getattr(self.step, "__qualname__", type(self.step).__qualname__)
        return f"Own({name}, {digests(self.step)}, {[each for each in settings if ' at 0x' not in repr(each)]})"

    def fit(self, column: pa.ChunkedArray) -> Any:
        return self.step.fit(_values(column)) if hasattr(self.step, "fit") else {}

    def apply(self, column: pa.ChunkedArray, fitted: Any) -> Any:
        values = _values(column)
        made = self.step.apply(values, fitted) if hasattr(self.step, "apply") else self.step(values)
        if len(made) != len(column):
            raise DataError(f"the step made {len(made)} rows of {len(column)}; return a value for each")
        return made


def _values(column: pa.ChunkedArray) -> Any:
    nulls = frozenset(["column"]) if column.null_count else frozenset[str]()
    return plain_batch(pa.table({"column": column}), ColumnTypes({"column": column.type}, nulls))["column"]


Step = Number | Category | Date | Text | Label | Own


def _cast(column: pa.ChunkedArray, kind: pa.DataType, *, strict: bool) -> pa.ChunkedArray:
    """Convert a column to a type. Unless ``strict``, values that cannot be converted become missing."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if strict:
            raise
    mask = np.zeros(len(column), bool)
    mask[bad_values(column, kind)] = True
    return pa.chunked_array([pc.if_else(pa.array(~mask), column.combine_chunks(), None)]).cast(kind)


def _refuse_missing(remedy: str) -> None:
    raise DataError(f"a value is missing; {remedy}")


def _check(name: str, value: Any, known: Sequence[Any]) -> None:
    if value not in known:
        near = did_you_mean(value, [each for each in known if isinstance(each, str)])
        raise DataError(f"{name}={value!r}: unknown; {near}there are {', '.join(map(repr, known))}")
