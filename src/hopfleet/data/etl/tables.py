"""Tables that are in memory, or that a database makes, as Arrow tables of a few megabytes each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.convert import row_columns
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError, describe
from hopfleet.phrases import shown

ROWS = 1 << 16
"""Rows of a table."""


@explained
@dataclass(frozen=True, slots=True)
class Query:
    """The rows of an SQL query.

    ``connection`` is an open connection of any DB-API module or of ADBC, or a function that opens one. For the same
    data set each time, the query must order its rows.
    """

    connection: Any
    sql: str

    def tables(self) -> Iterator[pa.Table]:
        opened = isinstance(self.connection, Callable) and not hasattr(self.connection, "cursor")  # type: ignore[arg-type]
        connection = self.connection() if opened else self.connection
        try:
            cursor = connection.cursor()
            cursor.execute(self.sql)
            if hasattr(cursor, "fetch_record_batch"):
                for batch in cursor.fetch_record_batch():
                    yield pa.Table.from_batches([batch])
                return
            if cursor.description is None:
                raise DataError(f"sql={shown(self.sql)}: returns no rows; give a SELECT")
            names = [column[0] for column in cursor.description]
            number = 0
            while rows := cursor.fetchmany(ROWS):
                yield _table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), number)
                number += len(rows)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"sql={shown(self.sql)}: failed ({describe(error)}); correct the query") from error
        finally:
            if opened:
                connection.close()


def as_tables(source: Any) -> Iterator[pa.Table]:
    """Yield a source in memory as Arrow tables."""
    if isinstance(source, Query):
        yield from source.tables()
        return
    if isinstance(source, pa.RecordBatch):
        source = pa.table(source)
    if isinstance(source, tuple) and len(source) > 1 and all(getattr(part, "shape", ()) for part in source):
        source = row_columns(tuple(map(np.asarray, source)))
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        source = pa.Table.from_pandas(source, preserve_index=False).replace_schema_metadata()
    elif polars is not None and isinstance(source, polars.DataFrame):
        source = source.to_arrow()
    elif isinstance(source, Mapping):
        source = _table(source, 0)
    if isinstance(source, pa.Table):
        for start in range(0, source.num_rows, ROWS):
            yield source.slice(start, ROWS)
        return
    if not isinstance(source, Iterable):
        raise DataError(
            f"source={shown(source)}: cannot be prepared; give files, a folder, hop.Files, hop.Query, a DataFrame, an "
            "Arrow table, a dict of columns or an iterable of rows"
        )
    rows: list[Mapping[str, Any]] = []
    number = 0
    for row in source:
        if not isinstance(row, Mapping):
            raise DataError(f"row {number + len(rows)}: is a {type(row).__name__}; give each row as a dict")
        rows.append(row)
        if len(rows) == ROWS:
            yield _rows(rows, number)
            number, rows = number + len(rows), []
    if rows:
        yield _rows(rows, number)


def _rows(rows: list[Mapping[str, Any]], number: int) -> pa.Table:
    names = list(rows[0])
    for place, row in enumerate(rows, number):
        if row.keys() != rows[0].keys():
            raise DataError(f"row {place}: has the columns {list(row)}, others have {names}; give all the same columns")
    return _table({name: [row[name] for row in rows] for name in names}, number)


def _table(columns: Mapping[str, Any], number: int) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        try:
            if isinstance(values, np.ndarray) and values.ndim > 1:
                values = list(values.reshape(len(values), -1))
            arrays[str(name)] = values if isinstance(values, pa.ChunkedArray | pa.Array) else pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            kinds = [type(value) for value in values]
            odd = next((row for row, kind in enumerate(kinds) if kind not in (kinds[0], type(None))), 0)
            raise DataError(
                f"column {name!r}, row {number + odd + 1}: mixes types ({describe(error)}); convert all to one type"
            ) from error
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"source: columns of different lengths, {lengths}; give each a value for every row")
    return pa.table(arrays)
