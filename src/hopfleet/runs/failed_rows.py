"""Rows to predict that fail: they raise, are left out, or have missing predictions in their places."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, get_args

import pyarrow as pa

from hopfleet.data import Dataset
from hopfleet.data.etl.chunks import Failure
from hopfleet.data.etl.preparation import FAILED
from hopfleet.domain.choices import RowsThatFail
from hopfleet.errors import TaskError, UsageError
from hopfleet.phrases import shown

ERROR = "error"
"""The column that tells why a row has no prediction."""

NAMED = 5
"""Failed rows that a warning names."""


def check_on_error(on_error: Any) -> None:
    if on_error not in get_args(RowsThatFail):
        raise UsageError(
            f"on_error={shown(on_error)}: must be 'raise', 'skip' to leave out rows that fail, or 'null' for missing "
            "predictions in their places"
        )


class FailedRows:
    """The rows of a source that failed, in order; each knows how many rows that did not fail are before it."""

    def __init__(self, failures: Sequence[Failure], on_error: RowsThatFail) -> None:
        self._failures = failures
        self._nulls = on_error == "null"

    @classmethod
    def of(cls, data: Dataset, on_error: RowsThatFail) -> Self:
        """Return the rows that failed when a data set was prepared."""
        path = Path(data.url) / FAILED
        if on_error == "raise" or not path.is_file():
            return cls((), on_error)
        known = {field.name for field in dataclasses.fields(Failure)}
        with path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return cls([Failure(**{key: row[key] for key in row.keys() & known}) for row in rows], on_error)

    def warn(self, rows: int) -> None:
        """Name the rows that failed, beside as many as have predictions."""
        if not self._failures:
            return
        named = "\n  ".join(f"{each.place}: {each.error}" for each in self._failures[:NAMED])
        more = f"\n  and {len(self._failures) - NAMED:,} more" if len(self._failures) > NAMED else ""
        everything = len(self._failures) + rows
        warnings.warn(
            f"{len(self._failures):,} of {everything:,} rows have no prediction:\n  {named}{more}", stacklevel=4
        )

    def among(
        self, made: Iterable[pa.RecordBatch], keep: Sequence[str], start: int = 0, stop: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield predictions, with missing ones in the places of failed rows if these were asked for.

        ``made`` are those of the rows from ``start`` to ``stop``, or to the last one; ``keep`` are the columns of the
        rows themselves.
        """
        if not self._nulls:
            yield from made
            return
        waiting = [each for each in self._failures if start <= each.before and (stop is None or each.before < stop)]
        first = 0  # of those that are not yielded yet
        schema = None
        for batch in made:
            if ERROR in batch.schema.names:
                raise TaskError(
                    f"on_error='null': a column {ERROR!r} tells why rows have no prediction, and predict() returns, or "
                    "keep= names, one of this name, too; give it another name"
                )
            schema, place = batch.schema, 0
            while first < len(waiting) and waiting[first].before < start + batch.num_rows:
                here = waiting[first].before - start
                yield _told(batch.slice(place, here - place))
                yield _missing(schema, waiting[first], keep)
                first, place = first + 1, here
            yield _told(batch.slice(place))
            start += batch.num_rows
        if schema is not None:
            yield from (_missing(schema, each, keep) for each in waiting[first:])


def _told(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return predictions beside what is wrong with their rows, which is nothing."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return pa.RecordBatch.from_pydict({**columns, ERROR: pa.nulls(batch.num_rows, pa.string())})


def _missing(schema: pa.Schema, failure: Failure, keep: Sequence[str]) -> pa.RecordBatch:
    """Return the missing prediction of a row that failed."""
    columns: dict[str, Any] = {field.name: pa.nulls(1, field.type) for field in schema}
    columns |= {name: _value(failure.row, name, schema.field(name).type) for name in keep}
    return pa.RecordBatch.from_pydict({**columns, ERROR: pa.array([f"{failure.place}: {failure.error}"])})


def _value(row: Any, name: str, kind: pa.DataType) -> pa.Array:
    """Return the value of a column of a failed row, as far as it could be read."""
    value = row.get(name) if isinstance(row, Mapping) else None
    for made in (value, str(value)):
        try:
            return pa.nulls(1, kind) if value is None else pa.array([made]).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            continue
    return pa.nulls(1, kind)
