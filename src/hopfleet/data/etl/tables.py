"""Tables that are in memory, or that a database makes, as Arrow tables of a few megabytes each."""

from __future__ import annotations

import functools
import inspect
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.convert import row_columns
from hopfleet.data.sources import items
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError, MissingExtra, describe
from hopfleet.phrases import shown
from hopfleet.safe_text import masked

ROWS = 1 << 16
"""Rows of a table."""


@explained
@dataclass(frozen=True, slots=True)
class Query:
    """The rows of an SQL query.

    ``connection`` is a URL, such as ``"sqlite:///shop.db"``, an open connection of any DB-API module or of ADBC, or a
    function that opens one. For the same data set each time, the query must order its rows.
    """

    connection: Any = field(repr=False)  # a URL may have a password
    sql: str

    def __post_init__(self) -> None:
        if isinstance(self.connection, str) and "://" not in self.connection:
            raise DataError(
                f"connection={shown(masked(self.connection))}: must be a URL such as 'sqlite:///shop.db', a "
                "connection, or a function that opens one; the query comes second, hop.Query(connection, sql)"
            )

    def tables(self) -> Iterator[pa.Table]:
        given = self.connection
        opened = isinstance(given, str) or (callable(given) and not hasattr(given, "cursor"))
        connection = _connected(given) if isinstance(given, str) else given() if opened else given
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
            _check_twice(names, "name one of the two columns with AS")
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


def as_tables(source: Any, before: int = 0) -> Iterator[pa.Table]:
    """Yield a source in memory as Arrow tables; ``before`` rows, as of names, precede columns."""
    if isinstance(source, Query):
        yield from source.tables()
    elif _is_hugging_face(source):
        yield from source.with_format("arrow").iter(ROWS)
    elif (table := _as_table(source, before)) is not None:
        _check_twice(table.column_names)
        for start in range(0, table.num_rows, ROWS):
            yield table.slice(start, ROWS)
    else:
        yield from _gathered(_iterable(source))


def _check_twice(names: Sequence[str], remedy: str = "rename one of the two columns") -> None:
    if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
        raise DataError(f"column name {twice!r}: used twice; {remedy}")


def _is_hugging_face(source: Any) -> bool:
    """Whether a source is a data set of Hugging Face's library. Raise DataError for several of them."""
    if isinstance(source, Mapping) and source and all(map(_is_hugging_face, source.values())):
        first = next(iter(source))
        raise DataError(f"source: holds the data sets {', '.join(map(str, source))}; give one, source[{first!r}]")
    return hasattr(source, "with_format") and hasattr(source, "features")


def _as_table(source: Any, before: int = 0) -> pa.Table | None:
    """Return columns in memory as a table; None for any other source."""
    if isinstance(source, tuple) and len(source) > 1 and all(getattr(part, "shape", ()) for part in source):
        source = row_columns(tuple(map(np.asarray, source)))
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return _frame(source)
    if polars is not None and isinstance(source, polars.DataFrame):
        return source.to_arrow()
    if isinstance(source, Mapping):
        return _table(source, before)
    return pa.table(source) if isinstance(source, pa.Table | pa.RecordBatch) else None


def _iterable(source: Any) -> Iterable[Any]:
    """Return an iterable of the rows of a source."""
    if inspect.isfunction(source) or inspect.ismethod(source) or isinstance(source, functools.partial):
        try:
            inspect.signature(source).bind()
        except TypeError:
            raise DataError(f"source={shown(source)}: must take no arguments; it is called for the rows") from None
        source = source()
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, str | bytes):
        return items(source, len(source))
    if isinstance(source, Iterable):
        return source
    raise DataError(
        f"source={shown(source)}: cannot be prepared; give files, a folder, hop.Files, hop.Query, a DataFrame, an "
        "Arrow table, a dict of columns, rows, a data set with __len__ and __getitem__, or a function that yields rows"
    )


def _gathered(source: Iterable[Any]) -> Iterator[pa.Table]:
    rows: list[Mapping[str, Any]] = []
    number = 0
    for row in source:
        if not isinstance(row, Mapping | tuple) and not hasattr(row, "shape"):
            raise DataError(f"row {number + len(rows)}: is a {type(row).__name__}; give each row as a dict or a tuple")
        rows.append({str(name): _plain(value) for name, value in row_columns(row).items()})
        if len(rows) == ROWS:
            yield _rows(rows, number)
            number, rows = number + len(rows), []
    if rows:
        yield _rows(rows, number)


def _connected(url: str) -> Any:
    """Open the database of a URL."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        path = Path(rest.removeprefix("/")).expanduser()
        if not path.is_file():  # sqlite3 would make it
            raise DataError(f"connection={url!r}: {path} is no file; an absolute path has four slashes")
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        import sqlalchemy
    except ImportError as error:
        raise MissingExtra("SQLAlchemy", "sql", otherwise="or pass a connection: hop.Query(connection, sql)") from error
    try:
        return sqlalchemy.create_engine(url).raw_connection()
    except Exception as error:
        raise DataError(
            f"connection={masked(url)!r}: cannot be opened ({masked(describe(error))}); install the driver, correct "
            "the URL, or pass an open connection"
        ) from None


def _plain(value: Any) -> Any:
    """Return a value of a row as Arrow takes it: tensors and arrays of one dimension as arrays of numpy."""
    if not getattr(value, "shape", None):
        return value.item() if hasattr(value, "shape") and hasattr(value, "item") else value
    array = np.asarray(value)
    if array.ndim > 1:
        raise DataError(
            f"a value has the shape {array.shape}; hop.prepare takes rows of numbers, texts and lists, and "
            "hop.partition(source, folder) arrays of any shape"
        )
    return array


def _frame(frame: Any) -> pa.Table:
    """Return a DataFrame without its index."""
    _check_twice([str(name) for name in frame.columns])
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        for name in frame.columns:
            _table({name: frame[name].where(frame[name].notna(), None).tolist()}, 0)
        raise DataError(f"the DataFrame cannot be read ({describe(error)}); convert its columns") from error


def _rows(rows: list[Mapping[str, Any]], number: int) -> pa.Table:
    names = list(rows[0])
    for place, row in enumerate(rows, number):
        if row.keys() != rows[0].keys():
            raise DataError(f"row {place}: has the columns {list(row)}, others have {names}; give all the same columns")
    return _table({name: [row[name] for row in rows] for name in names}, number)


def _array(values: Any) -> pa.Array:
    try:
        return pa.array(values)
    except OverflowError:  # whole numbers above int64
        if all(value is None or type(value) is int for value in values):
            return pa.array(values, pa.uint64())
        raise


def _table(columns: Mapping[str, Any], number: int) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        try:
            if isinstance(values, np.ndarray) and values.ndim > 2:
                values = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
            elif isinstance(values, np.ndarray) and values.ndim == 2:
                values = list(values)
            arrays[str(name)] = values if isinstance(values, pa.ChunkedArray | pa.Array) else _array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            if isinstance(values, np.ndarray) and values.dtype.kind != "O":
                raise DataError(
                    f"column {name!r}: dtype {values.dtype} cannot be prepared; convert it to plain numbers or texts"
                ) from error
            kinds = [type(value) for value in values]
            odd = next((row for row, kind in enumerate(kinds) if kind not in (kinds[0], type(None))), 0)
            raise DataError(
                f"column {name!r}, row {number + odd + 1}: mixes types ({describe(error)}); convert all to one type"
            ) from error
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"source: columns of different lengths, {lengths}; give each a value for every row")
    return pa.table(arrays)
