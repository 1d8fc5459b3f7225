"""Chunks: consecutive rows of a source as an Arrow table, small enough for the memory of one worker.

A chunk knows where its rows come from, so that a failure can name the file and the line. Rows that had to be parsed are
in memory, or in an Arrow file of the workspace, which is made again if it is gone; Parquet and Arrow files, and data
sets, are read where they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.columns import Array
from hopfleet.data.dataset import Dataset
from hopfleet.data.etl.memory import Held
from hopfleet.errors import DataError, describe

SMALL_ROWS, MANY = 1024, 256
"""Rows of a small chunk, and the number of chunks above which chunks are larger."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that could not be read or prepared."""

    file: str
    line: int  #: the number of the line, or of the row where files have no lines; from 1 on
    error: str
    traceback: str = ""
    row: Any = None  #: the row's values as JSON, or its text
    before: int = 0  #: rows of the source before it that did not fail

    @property
    def place(self) -> str:
        return f"{self.file}, {'line' if has_lines(self.file) else 'row'} {self.line}"

    def to_json(self) -> str:
        content = {"file": self.file, "line": self.line, "error": self.error, "traceback": self.traceback}
        return json.dumps({**content, "row": self.row, "before": self.before}, ensure_ascii=False, default=str)


TYPED = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npz", ".xlsx")
"""Endings of files that store the types of their columns."""


def has_lines(file: str) -> bool:
    """Whether places in a file are lines; in binary files, they are rows."""
    return not file.endswith((*TYPED, ".tar")) and "." in Path(file).name


NUMBER = re.compile(r"[ \t]*[-+]?(\d+\.?\d*|\.\d+|inf|infinity|nan)([eE][-+]?\d+)?[ \t]*", re.ASCII | re.IGNORECASE)

Parsed = tuple[pa.Table, int, Any, tuple[Failure, ...]]
"""A table, the line of its first row, the lines of all rows or None, and the rows that could not be parsed."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where some consecutive rows are, and where they come from."""

    store: str  #: "arrow", "parquet" or "dataset"
    path: str  #: the file to read the rows from
    part: int  #: the record batch, row group or partition
    rows: int
    schema: pa.Schema
    nulls: tuple[str, ...]  #: columns that lack values
    file: str  #: the user's file
    line: int  #: the line of the first row
    lines: str = ""  #: a file with the line of each row, where lines do not simply follow each other
    failures: tuple[Failure, ...] = ()  #: rows that could not be parsed
    dataset: Dataset | None = None
    table: pa.Table | None = None
    held: Held | None = None  #: the table, if it stays in memory
    fitted: Any = None  #: statistics of all rows, if they were made when the rows were parsed
    start: int = 0  #: rows of the file before the first one
    origin: tuple[Any, ...] = ()  #: a function and its arguments that write the file to read
    home: int = 0  #: the piece of the source that the rows come from
    sparse: bool = False  #: whether rows may lack columns, whose values are missing then, as keys of JSON

    def line_of(self, row: int) -> int:
        return int(self.lines_of(np.array([row]))[0])

    def lines_of(self, rows: Array) -> Array:
        return np.load(self.lines)[self.start + rows] if self.lines else self.line + self.start + rows

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows, or some columns of them."""
        if self.sparse and columns is not None:
            known = [name for name in columns if name in self.schema.names]
            found = dict(zip(known, self.read(None).select(known).columns, strict=True))
            absent = pa.nulls(self.rows)
            return pa.table([found.get(name, absent) for name in columns], list(columns))
        whole = self.table if self.held is None else self.held.rows
        if whole is not None:
            some = whole.slice(self.start, self.rows)
            return some if columns is None else some.select(columns)
        if self.origin and not Path(self.path).exists():
            self.origin[0](*self.origin[1:])
        try:
            if self.store == "parquet":
                with opened_parquet(self.path) as file:
                    group = file.read_row_group(self.part, columns=columns, use_threads=False)
                group.validate(full=True)
                return group
            table = pa.Table.from_batches([read_batches(self.path)[self.part]]).slice(self.start, self.rows)
            if not self.origin and self.path == self.file:  # a file of the user's
                table.validate(full=True)
        except (pa.ArrowException, OSError, IndexError) as error:
            raise DataError(f"{self.path}: cannot be read ({describe(error)}); restore the file") from error
        return table if columns is None else table.select(columns)


def divided(chunks: Sequence[Chunk], nodes: int) -> list[Chunk]:
    """Return the same rows as smaller chunks, so that several workers share a source of few bytes and much work.

    Chunks fewer than the ``nodes`` of a cluster are parsed by several nodes.
    """
    most = max(SMALL_ROWS, sum(chunk.rows for chunk in chunks) // MANY)
    found = []
    for chunk in chunks:
        if chunk.store != "arrow" or chunk.rows <= most:
            found.append(chunk)
            continue
        # A row that failed belongs to the part with the last row before it.
        lines = chunk.lines_of(np.arange(most, chunk.rows, most)) if chunk.failures else np.empty(0)
        parts = [int(np.searchsorted(lines, failure.line, side="right")) for failure in chunk.failures]
        for part, start in enumerate(range(0, chunk.rows, most)):
            rows = min(most, chunk.rows - start)
            failures = tuple(each for each, its in zip(chunk.failures, parts, strict=True) if its == part)
            home = len(found) if len(chunks) < nodes else chunk.home
            found.append(replace(chunk, start=start, rows=rows, failures=failures, home=home))
    return found


def opened_parquet(path: str) -> Any:
    """Open a Parquet file by local path or URL."""
    from pyarrow import parquet

    if "://" not in path:
        return parquet.ParquetFile(path, memory_map=True)
    from hopfleet.data.folders import RemoteFolder

    files, inside = RemoteFolder(path).filesystem()
    return parquet.ParquetFile(files.open(inside, "rb"))


def read_batches(path: str) -> list[pa.RecordBatch]:
    """Return the record batches of an Arrow file or stream, mapped where it is local."""
    if "://" in path:
        from hopfleet.data.folders import RemoteFolder

        files, inside = RemoteFolder(path).filesystem()
        source: Any = pa.BufferReader(files.cat_file(inside))
    else:
        source = pa.memory_map(path)
    try:
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except pa.ArrowInvalid:
        source.seek(0)
        return list(pa.ipc.open_stream(source))


def save_table(table: pa.Table, path: Path) -> None:
    """Write a table as an Arrow file with one record batch. The file is complete or absent."""
    from hopfleet.support.files import write_atomically

    whole = table.combine_chunks()
    batches = whole.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]

    def write(beside: Path) -> None:
        with pa.OSFile(str(beside), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    write_atomically(path, write, durable=False)


def lacking(table: pa.Table) -> tuple[str, ...]:
    """Return the columns that lack values."""
    return tuple(name for name in table.column_names if table.column(name).null_count)


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """The columns of a source: one Arrow type for each, and whether values are missing in any chunk."""

    types: dict[str, pa.DataType]
    nulls: frozenset[str] = field(default_factory=frozenset)

    def cast(self, table: pa.Table) -> pa.Table:
        """Return a table with these columns, in this order and with these types."""
        columns = []
        for name, kind in self.types.items():
            try:
                columns.append(table.column(name).cast(kind))
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"column {name!r}: is {table.schema.field(name).type} here and {kind} elsewhere ({error}); read it "
                    f"as text: hop.Files(..., types={{{name!r}: 'string'}})"
                ) from None
        return pa.table(columns, names=list(self.types))

    def only(self, names: Sequence[str] | None) -> ColumnTypes:
        """Return some of the columns, or all for None; the first one if there are none of these names."""
        if names is None:
            return self
        found = {name: kind for name, kind in self.types.items() if name in names}
        return ColumnTypes(found or dict([*self.types.items()][:1]), self.nulls & found.keys())

    def to_json(self) -> dict[str, Any]:
        return {name: {"type": str(kind), "missing": name in self.nulls} for name, kind in self.types.items()}


def layout_of(chunks: Iterable[Chunk]) -> ColumnTypes:
    """Return the columns of all chunks. Raise DataError where chunks do not fit together, with file and line."""
    types: dict[str, pa.DataType] = {}
    firsts: dict[str, Chunk] = {}  # the chunk that gave a column its type
    nulls: set[str] = set()
    for chunk in chunks:
        if chunk.sparse and not chunk.rows:
            continue
        if chunk.sparse:
            nulls.update(types.keys() - set(chunk.schema.names) if types else ())
            nulls.update(set(chunk.schema.names) - types.keys() if types else ())
        elif types and types.keys() != set(chunk.schema.names):
            first = next(iter(firsts.values()))
            missing, extra = set(types) - set(chunk.schema.names), set(chunk.schema.names) - set(types)
            lack = f"lacks the columns {sorted(missing)}" if missing else ""
            more = f"has the columns {sorted(extra)} besides" if extra else ""
            raise DataError(
                f"{chunk.file}: {' and '.join(filter(None, (lack, more)))}, unlike {first.file}; give files with the "
                "same columns"
            )
        nulls.update(chunk.nulls)
        for name, kind in zip(chunk.schema.names, chunk.schema.types, strict=True):
            both = kind if name not in types else _unified(types[name], kind)
            if both is None:
                _refuse_mixture(name, firsts[name], chunk)
            if types.get(name) != both:
                types[name], firsts[name] = both, chunk
    return ColumnTypes(types, frozenset(nulls))


def _unified(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type of a column that has one type in some chunks and another in others; None if there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    numbers = (pa.types.is_integer, pa.types.is_floating)
    if all(any(is_kind(kind) for is_kind in numbers) for kind in (one, other)):
        if not (pa.types.is_integer(one) and pa.types.is_integer(other)):
            return pa.float64()
        return pa.uint64() if pa.uint64() in (one, other) else pa.int64()
    if all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in (one, other)):
        return one if pa.types.is_timestamp(one) else other
    if all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in (one, other)):
        return pa.large_string()
    return None


def _refuse_mixture(name: str, one: Chunk, other: Chunk) -> None:
    """Raise DataError for a column of two types, and name a row of each."""
    places = []
    for chunk in (one, other):
        column = chunk.read([name]).column(name)
        row = next((row for row in range(len(column)) if column[row].is_valid), 0)
        kind = chunk.schema.field(name).type
        if pa.types.is_string(kind):  # the first text that is no number is the odd one
            row = next((row for row in range(len(column)) if not is_number(column[row].as_py())), row)
        where = Failure(chunk.file, chunk.line_of(row), "").place
        places.append(f"{kind} in {where} ({column[row].as_py()!r})")
    remedy = "convert the files to one type"
    if Path(other.file).suffix not in TYPED:
        remedy = "correct the values, list them as hop.Files(..., missing=[...]), or read the column as text with "
        remedy += f"hop.Files(..., types={{{name!r}: 'string'}})"
    raise DataError(f"column {name!r}: mixes {' and '.join(places)}; {remedy}")


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number(value: Any) -> bool:
    """Whether a value is missing, a number, or the text of a number."""
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and bool(NUMBER.fullmatch(value)))


def rows_before(chunks: Sequence[Chunk]) -> Array:
    """Return the number of rows before each chunk, and in all."""
    return np.concatenate([[0], np.cumsum([chunk.rows for chunk in chunks])]).astype(np.int64)
