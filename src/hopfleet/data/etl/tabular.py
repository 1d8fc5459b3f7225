"""Ready-made recipes for tables: numbers are scaled, categories and dates become numbers, missing values are filled."""

from __future__ import annotations

import zoneinfo
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import Array
from hopfleet.data.convert import text_array
from hopfleet.data.etl.chunks import is_text
from hopfleet.data.etl.csv_rows import bad_values
from hopfleet.data.etl.labels import REMEDY, Label, Outcome
from hopfleet.data.etl.recipe import Batch, Recipe, WrongColumns
from hopfleet.data.etl.statistics import Counts, Moments, Quantiles, is_coded_text, numbers, whole
from hopfleet.domain import bounds
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError
from hopfleet.phrases import did_you_mean, listed, shown
from hopfleet.support.code_digests import digests


@explained
@dataclass(frozen=True, slots=True)
class Number:
    """A number as float32.

    ``scale`` is "standard" (mean 0, deviation 1), "range" (0 to 1) or None. ``missing`` is what fills a missing value:
    "mean", "median", a number, or "raise", with which the row fails.
    """

    scale: str | None = "standard"
    missing: str | float = "raise"

    def __post_init__(self) -> None:
        _check("scale", self.scale, ("standard", "range", None))
        if not isinstance(self.missing, int | float):
            _check("missing", self.missing, ("raise", "mean", "median"))

    def fit(self, column: pa.ChunkedArray) -> Any:
        values = numbers(_cast(column, pa.float64(), strict=False), np.nan)
        if not (finite := np.isfinite(values)).all():
            values = values[finite]
        fitted: dict[str, Any] = {"moments": Moments.of(values)}
        if self.missing == "median":
            fitted["quantiles"] = Quantiles.of(values)
        return fitted

    def apply(self, column: pa.ChunkedArray, fitted: Any) -> Array:
        values = _cast(column, pa.float64(), strict=True)
        moments: Moments = fitted["moments"]
        array = numbers(values, np.nan)
        if not np.isfinite(array).all():
            if np.isinf(array).any():
                raise DataError(f"{array[np.isinf(array)][0]} is not finite; correct the value")
            if self.missing == "raise":
                _refuse_missing("fill it with hop.Number(missing='mean')")
            known = {"mean": moments.mean, "median": fitted["quantiles"].at(0.5) if "quantiles" in fitted else 0.0}
            fill = known[self.missing] if isinstance(self.missing, str) else float(self.missing)
            array = np.where(np.isnan(array), fill, array)
        if self.scale is None:
            return array.astype(np.float32)
        outcome = self.outcome(fitted)
        scaled = np.empty(array.shape, np.float32)
        return np.divide(np.subtract(array, outcome.middle), outcome.width, out=scaled, casting="same_kind")

    def outcome(self, fitted: Any) -> Outcome:
        """Return what the prepared numbers stand for."""
        if self.scale is None:
            return Outcome()
        moments: Moments = fitted["moments"]
        if self.scale == "range":
            return Outcome((), moments.least, (moments.greatest - moments.least) or 1.0)
        return Outcome((), moments.mean, moments.deviation)


@explained
@dataclass(frozen=True, slots=True)
class Category:
    """A category as int64: its rank among the categories of the training rows, the most frequent first.

    With ``unseen="other"``, code 0 stands for missing categories and for those that training has not seen, or not among
    the ``at_most`` most frequent; known ones count from 1. With ``unseen="raise"``, as for labels, known ones count
    from 0, and a row with any other fails.
    """

    unseen: str = "other"
    at_most: int | None = None

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
        return array if self.unseen == "raise" else np.add(array, 1, out=array)

    def outcome(self, fitted: Counts) -> Outcome:
        """Return what the codes stand for, if every code is that of one category."""
        names = fitted.common(self.at_most)
        return Outcome(tuple(names), counts=tuple(fitted.counts[name] for name in names))


OFFSET = r"\d\d:\d\d.*(Z|[-+]\d\d:?\d\d)\s*$"
"""What a time with a zone ends in."""

PARTS = ("year", "month", "day", "weekday", "hour", "minute", "second", "age")


@explained
@dataclass(frozen=True, slots=True, repr=False)
class Date:
    """A date or time as a float32 for each of its ``parts``: year, month, day, weekday, hour, minute, second, or age.

    The age is in days before the last date of the training rows. Text must be as in ISO 8601, or as ``format`` says in
    the letters of ``strptime``. Times are those of the clocks in the time zone of the column, or in ``zone``, such as
    "Europe/Berlin"; text with offsets is in UTC. Times without a zone stay as they are.
    """

    parts: Sequence[str] = ("year", "month", "day", "weekday", "hour")
    format: str = ""
    zone: str = ""

    def __post_init__(self) -> None:
        if self.zone and self.zone not in zoneinfo.available_timezones():
            near = did_you_mean(self.zone, sorted(zoneinfo.available_timezones()))
            raise DataError(f"zone={shown(self.zone)}: is not a time zone; {near}give one such as 'Europe/Berlin'")
        if not len(self.parts):
            raise DataError(f"parts={shown(self.parts)}: must name at least one of {', '.join(PARTS)}")
        for part in self.parts:
            _check("parts", part, PARTS)

    def __repr__(self) -> str:
        zone = f", zone={self.zone!r}" if self.zone else ""  # data sets know the recipes of before by their repr
        return f"Date(parts={self.parts!r}, format={self.format!r}{zone})"

    def __setstate__(self, state: Sequence[Any]) -> None:
        for name, value in zip(("parts", "format", "zone"), [*state, "UTC"], strict=False):  # that of recipes of before
            object.__setattr__(self, name, value)

    def fit(self, column: pa.ChunkedArray) -> Any:
        if "age" not in self.parts:
            return {}
        stamps = self._stamps(column, strict=False)
        return Moments.of(pc.divide(stamps.cast(pa.int64()).cast(pa.float64()), 86_400e6))

    def apply(self, column: pa.ChunkedArray, fitted: Any) -> Array:
        if column.null_count:
            _refuse_missing("fill it in")
        stamps = self._stamps(column, strict=True)
        clocks = pc.local_timestamp(stamps) if stamps.type.tz else stamps
        made = []
        for part in self.parts:
            if part == "age":
                days = pc.divide(stamps.cast(pa.int64()).cast(pa.float64()), 86_400e6)
                values = pc.subtract(fitted.greatest, days)
            else:
                values = getattr(pc, "day_of_week" if part == "weekday" else part)(clocks)
            made.append(numbers(values))
        array = np.empty((len(column), len(made)), np.float32)
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


Step = Number | Category | Date | Text | Label


@explained
class Tabular(Recipe):
    """The recipe for tables: a step for each column.

    ``columns`` maps names to ``hop.Number``, ``hop.Category``, ``hop.Date``, ``hop.Text``, or None to store a column as
    it is; other columns are left out. Without it, all columns are taken, each by its type. With ``stack="x"``, numbers
    and dates are stored as one float32 array of that name.

    ``labels`` names the columns that models will predict, by default each with ``hop.Label()``. They are never stacked,
    a row without its label fails, rows to predict may lack them, and predictions are given back in their terms.
    """

    arrow = True
    threads = True

    def __init__(
        self, columns: Mapping[str, Step | None] | None = None, *, stack: str = "", labels: str | Sequence[str] = ()
    ) -> None:
        self.columns = None if columns is None else dict(columns)
        self.stack = stack
        named = [name for name, step in (self.columns or {}).items() if isinstance(step, Label)]
        self.labels = list(dict.fromkeys([*([labels] if isinstance(labels, str) else labels), *named]))
        for name, step in (self.columns or {}).items():
            if step is not None and not isinstance(step, Step):
                raise DataError(
                    f"columns={{{name!r}: {shown(step)}}}: must be hop.Number(), hop.Category(), hop.Date(), "
                    "hop.Text(), hop.Label() or None"
                )
            if name in self.labels:
                _check_label(name, step)
        if any(isinstance(step, Text) for step in (self.columns or {}).values()):
            self.threads = False  # a tokenizer is Python code

    @property
    def inputs(self) -> Sequence[str] | None:
        return None if self.columns is None else list(dict.fromkeys([*self.columns, *self.labels]))

    def fit(self, batch: pa.Table) -> Mapping[str, Any]:
        fitted = {}
        for name, step in self._steps(batch, labels=()).items():  # rows to train with have their labels
            if step is not None:
                try:
                    fitted[name] = step.fit(batch.column(name))
                except DataError as error:
                    raise DataError(f"column {name!r}: {error}") from None
        return fitted

    def apply(self, batch: pa.Table, fitted: Mapping[str, Any]) -> Batch:
        made: dict[str, Any] = {}
        stacked: list[Array] = []
        for name, step in self._steps(batch, self.labels).items():
            column = batch.column(name)
            try:
                if name in self.labels and pc.any(pc.is_null(column, nan_is_null=True)).as_py():
                    raise DataError(REMEDY)
                values = column if step is None else step.apply(column, fitted[name])
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, DataError) as error:
                raise DataError(f"column {name!r}: {str(error).splitlines()[0]}") from None
            if self.stack and isinstance(step, Number | Date) and name not in self.labels:
                stacked.append(values if values.ndim == 2 else values[:, None])
            else:
                made[name] = values
        return {self.stack: np.concatenate(stacked, axis=1), **made} if stacked else made

    def _steps(self, table: pa.Table, labels: Sequence[str]) -> dict[str, Step | None]:
        """Return the steps of a table's columns; those of ``labels`` may be absent."""
        given = self.columns
        if given is None:
            others = [name for name in table.column_names if name not in self.labels]
            given = {name: _by_type(table.schema.field(name).type) for name in others}
        steps = {**given, **{name: Label() for name in self.labels if name not in given}}
        self.check(table.column_names, besides=labels)
        return {name: step for name, step in steps.items() if name in table.column_names}

    def check(self, names: Sequence[str], besides: Sequence[str] = ()) -> None:
        """Raise WrongColumns unless rows with these columns, and those ``besides``, have all that the recipe needs."""
        for name in [*(self.columns or {}), *self.labels]:
            if name not in names and name not in besides:
                asked = f"labels={name!r}" if name in self.labels else f"columns={{{name!r}: ...}}"
                near = did_you_mean(name, names)
                raise WrongColumns(f"has no column {name!r} for {asked}; {near}it has {listed(name, names)}")

    def outcomes(self, fitted: Mapping[str, Any]) -> Mapping[str, Outcome]:
        found = {name: (self.columns or {}).get(name, Label()) for name in self.labels if name in fitted}
        steps = {name: step for name, step in found.items() if isinstance(step, Number | Category | Label)}
        return {name: step.outcome(fitted[name]) for name, step in steps.items()}


def _check_label(name: str, step: Step | None) -> None:
    """Raise DataError for a step that would make up labels."""
    if isinstance(step, Number) and step.missing != "raise":
        raise DataError(
            f"columns={{{name!r}: hop.Number(missing={step.missing!r})}}: is among labels=, and labels are never made "
            "up; leave missing= out, and rows without a label with hop.prepare(on_error='skip')"
        )
    if isinstance(step, Category) and step.unseen != "raise":
        raise DataError(
            f"columns={{{name!r}: hop.Category()}}: is among labels=, and a missing or new one would become class 0; "
            "leave it out of columns=, or use hop.Category(unseen='raise')"
        )


def coded(table: pa.Table, recipe: Recipe | None) -> pa.Table:
    """Return a table with the categories of a ``Tabular`` as dictionaries, so that fit and apply need not both hash.

    Other recipes get their text as it is.
    """
    steps: dict[str, Step | None] = {}
    if type(recipe) is Tabular:
        steps = {**dict.fromkeys(recipe.labels, Label()), **(recipe.columns or {})}
    for name, step in steps.items():
        place = table.schema.get_field_index(name)
        if isinstance(step, Category | Label) and place >= 0 and pa.types.is_string(table.schema.field(place).type):
            table = table.set_column(place, name, table.column(place).dictionary_encode())
    return table


def _by_type(kind: pa.DataType) -> Step | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Number(missing="mean")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return Date()
    if is_text(kind) or pa.types.is_boolean(kind):
        return Category()
    return None


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
