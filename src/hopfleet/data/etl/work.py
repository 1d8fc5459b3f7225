"""The pieces of work that processes do: statistics of a chunk, its prepared rows, and the rows of one partition."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.cells import Builder, Cells
from hopfleet.data.columns import Array, Column
from hopfleet.data.convert import arrow_cells, number_array
from hopfleet.data.etl.chunks import Chunk, ColumnTypes, Failure, layout_of
from hopfleet.data.etl.dealing import Deal
from hopfleet.data.etl.duplicates import Hashes, row_hashes
from hopfleet.data.etl.memory import Held, Memory
from hopfleet.data.etl.objects import Unreachable
from hopfleet.data.etl.recipe import ORIGIN, SPLIT, Prepared, Recipe, WrongColumns, plain_batch
from hopfleet.data.etl.statistics import is_coded_text, whole
from hopfleet.data.files import map_cells, write_cells, write_partition
from hopfleet.data.manifest import PartitionFile
from hopfleet.data.schema import Schema
from hopfleet.errors import DataError, HopfleetError, describe
from hopfleet.support.files import make_folder, write_atomically
from hopfleet.support.user_code import format_traceback

BATCH_ROWS = 1 << 16
"""Rows of a chunk that a recipe gets at once."""


QUICK_SECONDS = 0.5
"""Seconds within which the rows of a chunk must be made to stay in memory: a call that is killed makes them again."""


REMEDY = "hop.prepare(on_error='skip') leaves out such rows, and 'keep' lists them"


class TooManyFailures(DataError):
    """More rows have failed than the limit allows."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__(failures)
        self.failures = list(failures)

    def __str__(self) -> str:
        first = self.failures[0]
        return f"{first.place}: {first.error}"

    def explained(self, limit: int, remedy: str = REMEDY) -> str:
        """Return the first failure with what to do about it."""
        first = self.failures[0]
        # Some errors of rows name a remedy of their own.
        text = f"{self}{'' if '; ' in first.error else '; correct the row'}"
        if limit:
            text = f"more than {limit:,} rows failed; the first: {text}; or raise error_limit"
        else:
            text = f"{text}; {remedy}"
        return f"{text}\n\n{first.traceback}".rstrip() if first.traceback else text


@dataclass(frozen=True, slots=True)
class Made:
    """The prepared rows of a chunk: sorted by split, in the order of the source otherwise."""

    path: Path  #: the file with the rows, unless they are held
    columns: Mapping[str, Column]
    bounds: tuple[int, ...]  #: split s has the rows ``bounds[s]:bounds[s + 1]``
    failures: tuple[Failure, ...]
    hashes: Hashes | None = None  #: of the rows, if there are several splits
    size: int = 0  #: bytes of the file
    held: Held | None = None  #: the cells, if they stay in memory

    def origins(self) -> Array:
        """Return the place in the chunk of the raw row that each row was made of, if ``make_chunk`` noted them."""
        places: Array = np.load(self.path.with_suffix(".npy"))
        return places

    @property
    def rows(self) -> int:
        return self.bounds[-1]

    def cells(self) -> Mapping[str, Cells]:
        if self.held is not None:
            cells: Mapping[str, Cells] = self.held.rows
            return cells
        return map_cells(self.path, self.columns, self.rows, validate=False)


def fit_chunk(
    chunk: Chunk, recipe: Recipe, layout: ColumnTypes, splits: Array | None, train: int = 0
) -> list[Mapping[str, Any]]:
    """Return the statistics of a chunk's training rows, which are those of the split with the number ``train``."""
    table = read_rows(chunk, layout)
    if splits is not None:
        table = table.take(number_array(np.flatnonzero(splits == train)))
    return fitted(table, recipe, layout, chunk.file, f", from line {chunk.line} on")


def fitted(table: pa.Table, recipe: Recipe, layout: ColumnTypes, file: str, line: str = "") -> list[Mapping[str, Any]]:
    """Return the statistics of rows, batch by batch; ``file`` and ``line`` say where they are from."""
    parts = (table.slice(start, BATCH_ROWS) for start in range(0, table.num_rows, BATCH_ROWS))
    try:
        return [recipe.fit(part if recipe.arrow else plain_batch(part, layout)) for part in parts]
    except WrongColumns as error:
        raise WrongColumns(f"{file}: {error}") from None
    except HopfleetError as error:
        raise DataError(f"{file}{line}: {error}") from error
    except Exception as error:
        raise DataError(
            f"{file}{line}: fit() of the recipe failed: {describe(error)}\n\n{format_traceback(error)}"
        ) from error


def fit_early(chunk: Chunk, recipe: Recipe) -> Any:
    """Return the statistics of a chunk as it is parsed, with the types that its columns have there; None if it fails.

    A failure is for ``fit_chunk`` to report, when all rows are parsed.
    """
    try:
        return fit_chunk(chunk, recipe, layout_of([chunk]).only(recipe.inputs), None)
    except Exception:
        return None


def fitted_early(chunk: Chunk, recipe: Recipe, layout: ColumnTypes) -> Any:
    """Return the statistics that a chunk was parsed with; None if types or gaps of other chunks make them differ."""
    own = layout_of([chunk]).only(recipe.inputs)
    same = [*own.types.items()] == [*layout.types.items()] and (recipe.arrow or own.nulls == layout.nulls)
    return chunk.fitted if same else None


def read_rows(chunk: Chunk, layout: ColumnTypes) -> pa.Table:
    """Return rows with the columns of a layout; categories may be dictionaries, see ``tabular.coded``."""
    table = chunk.read(list(layout.types))
    seen = {name: table.schema.field(name).type for name in layout.types}
    coded = {
        name: seen[name]
        for name, kind in layout.types.items()
        if pa.types.is_string(kind) and is_coded_text(seen[name])
    }
    return ColumnTypes({**layout.types, **coded}).cast(table)


def make_chunk(
    chunk: Chunk, prepared: Prepared, splits: Array | None, names: Sequence[str], limit: int, path: Path,
    memory: Memory | None = None, traced: bool = False,
) -> Made:  # fmt: skip
    """Prepare the rows of a chunk and write them to ``path``. Raise TooManyFailures if more than ``limit`` fail.

    ``splits`` has the split of each row, a place in ``names``. Where there is room in ``memory``, rows that can be made
    again in no time stay there, and those of the chunk are let go. With ``traced``, a file notes the origins of rows.
    """
    began = time.monotonic()
    targets = np.zeros(chunk.rows, np.int64) if splits is None else splits
    if chunk.dataset is not None:
        cells, failures, good = _stored(chunk), list(chunk.failures), np.arange(chunk.rows)
    else:
        table = read_rows(chunk, prepared.layout)
        if splits is not None and prepared.recipe.by_split:
            table = table.append_column(SPLIT, pa.array([names[split] for split in splits], pa.string()))
        cells, failures, good = _prepare(chunk, prepared, table, limit)
    targets = targets[good]
    order = np.argsort(targets, kind="stable")
    taken = cells if splits is None else {name: column.take(order) for name, column in cells.items()}
    columns = {name: Column(name, column.kind, column.dtype, column.shape) for name, column in taken.items()}
    bounds = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=len(names)))])
    if chunk.held is not None:
        chunk.held.let_go()
    hashes, size, held = None, 0, None
    if bounds[-1]:
        hashes = Hashes(row_hashes(taken), bounds) if splits is not None else None
        if memory is not None and time.monotonic() - began < QUICK_SECONDS:
            held = memory.hold(taken, sum(column.nbytes for column in taken.values()))
    if bounds[-1] and held is None:
        make_folder(path.parent)
        write_atomically(path, lambda beside: write_cells(beside, columns, taken), durable=False)
        size = path.stat().st_size
    if bounds[-1] and traced:
        np.save(path.with_suffix(".npy"), good[order])
    return Made(path, columns, tuple(bounds.tolist()), _placed(failures, chunk, good), hashes, size, held)


def _placed(failures: Sequence[Failure], chunk: Chunk, good: Array) -> tuple[Failure, ...]:
    """Return failures in the order of the source, each with the number of good rows before it."""
    if not failures:
        return ()
    lines = chunk.lines_of(good)
    return tuple(
        dataclasses.replace(failure, before=int(np.searchsorted(lines, failure.line)))
        for failure in sorted(failures, key=lambda failure: failure.line)
    )


def _stored(chunk: Chunk) -> dict[str, Cells]:
    """Return the rows of a data set's partition."""
    assert chunk.dataset is not None
    schema = Schema()
    (batch,) = chunk.dataset.batches(chunk.part, batch_size=max(1, chunk.rows))
    return schema.accept(batch)


def _prepare(
    chunk: Chunk, prepared: Prepared, table: pa.Table, limit: int
) -> tuple[dict[str, Cells], list[Failure], Array]:
    """Return the prepared rows, the failures, and which rows have not failed."""
    failures = list(chunk.failures)
    if len(failures) > limit:
        first = min(failure.line for failure in failures)
        before = int(np.searchsorted(chunk.lines_of(np.arange(chunk.rows)), first))
        _failing(prepared, table.slice(0, before), chunk, 0, 0, [])  # raises if a row before them fails
        raise TooManyFailures(sorted(failures, key=lambda failure: failure.line))
    good = np.arange(table.num_rows)
    try:
        cells, origins = applied(prepared, table)
        return cells, failures, origins
    except Unreachable:
        raise
    except Exception:
        pass  # the rows that raise are found below
    good = np.delete(good, _failing(prepared, table, chunk, 0, limit, failures))
    if not len(good):
        return {}, failures, good
    left = table.take(number_array(good))
    try:
        cells, origins = applied(prepared, left)
        return cells, failures, good[origins]
    except Exception as error:  # each row by itself is good
        odd, _ = first_odd(prepared, left, error)
        where = Failure(chunk.file, chunk.line_of(int(good[odd])), "").place
        raise DataError(f"{where}: does not fit the rows before: {_words(error)}") from error


def first_odd(prepared: Prepared, table: pa.Table, error: Exception) -> tuple[int, str]:
    """Return the first row with which the rows up to it cannot be prepared, found by halving, and what it raises.

    All rows together raise ``error``.
    """
    fine, odd = 1, int(table.num_rows)
    while odd - fine > 1:
        middle = (fine + odd) // 2
        try:
            applied(prepared, table.slice(0, middle))
            fine = middle
        except Exception as other:
            odd, error = middle, other
    return odd - 1, _words(error)


def _failing(
    prepared: Prepared, table: pa.Table, chunk: Chunk, first: int, limit: int, failures: list[Failure]
) -> list[int]:
    """Return the rows that fail, found by halving, and add them to ``failures``."""
    try:
        applied(prepared, table)
        return []
    except WrongColumns as error:
        raise WrongColumns(f"{chunk.file}: {error}") from None
    except Unreachable:
        raise
    except Exception as error:
        failed = error
    if table.num_rows == 1:
        words, trace = _words(failed), format_traceback(failed)
        failures.append(Failure(chunk.file, chunk.line_of(first), words, trace, _shown(table.to_pylist()[0])))
        if len(failures) > limit:
            raise TooManyFailures(failures)
        return [first]
    half = table.num_rows // 2
    before = _failing(prepared, table.slice(0, half), chunk, first, limit, failures)
    return before + _failing(prepared, table.slice(half), chunk, first + half, limit, failures)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, HopfleetError) else describe(error)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"{len(value)} bytes" if isinstance(value, bytes) else value for name, value in row.items()}


def applied(prepared: Prepared, table: pa.Table) -> tuple[dict[str, Cells], Array]:
    """Apply a recipe to rows, batch by batch; return the rows that it makes, and the row that each is made of."""
    schema, pieces, origins = Schema(), [], [np.empty(0, np.int64)]
    for start in range(0, table.num_rows, BATCH_ROWS):
        part, before = table.slice(start, BATCH_ROWS), schema.rows
        made = dict(prepared.apply(part))
        origin = made.pop(ORIGIN, None)
        if made:
            pieces.append(schema.accept({name: _values(name, column) for name, column in made.items()}))
        origins.append(start + (np.arange(part.num_rows) if origin is None else origin))
        if schema.rows - before != len(origins[-1]):
            raise DataError(
                f"apply() made {schema.rows - before} rows of {part.num_rows}; it must return a row for each, and may "
                "raise an exception for rows to leave out, with on_error='skip'"
            )
    whole_pieces = pieces[0] if len(pieces) == 1 else joined(schema.columns, pieces, schema.rows)
    return whole_pieces, np.concatenate(origins)


def _values(name: str, column: Any) -> Any:
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return arrow_cells(name, whole(column), 0)
    if isinstance(column, np.ndarray):
        return column
    return list(column)


def joined(columns: Mapping[str, Column], pieces: Sequence[Mapping[str, Cells]], rows: int) -> dict[str, Cells]:
    builders = {name: Builder(column, rows) for name, column in columns.items()}
    for piece in pieces:
        for name, cells in piece.items():
            builders[name].append(cells)
    return {name: builder.cells() for name, builder in builders.items()}


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """One partition of a split: the rows of all chunks that it gets, and the file to write."""

    split: int
    index: int
    deals: Sequence[Deal]
    path: Path


def gather(mades: Sequence[Made], share: PartitionRows, columns: Mapping[str, Column]) -> PartitionFile:
    """Write a partition, its rows in the order of the source. The file is not durable yet."""
    rows = sum(deal.count(share.index) for deal in share.deals)
    builders = {name: Builder(column, rows) for name, column in columns.items()}
    for made, deal in zip(mades, share.deals, strict=True):
        if deal.count(share.index):  # the numbers of all rows at once would take as much as a column
            cells, some = made.cells(), deal.rows(share.index).astype(np.intp) + made.bounds[share.split]
            for name in columns:
                builders[name].take(cells[name], some)
    gathered = {name: builder.cells() for name, builder in builders.items()}
    return write_partition(share.path, columns, gathered, sync=False)
