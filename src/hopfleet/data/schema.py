"""The schema of a source, built while its rows are read.

A source may be a stream, so whether all rows of a column have the same shape is known only after the last row. The
schema starts with the first rows, widens a column at a row of another shape, and refuses all other differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hopfleet.data.cells import Cells, FixedCells, VariableCells
from hopfleet.data.columns import Array, Column, Kind, check_names
from hopfleet.data.convert import column_cells, refuse_row
from hopfleet.errors import DataError

Chunk = Mapping[str, "list[Any] | Array | Cells"]
"""Consecutive rows of a source, as columns of equal length."""


class Schema:
    """The columns of the rows seen so far."""

    def __init__(self) -> None:
        self._columns: dict[str, Column] = {}
        self.rows = 0  #: rows accepted

    @property
    def columns(self) -> dict[str, Column]:
        return dict(self._columns)

    def accept(self, chunk: Chunk) -> dict[str, Cells]:
        """Convert a chunk to cells, in the order of the columns, and extend the schema to its rows."""
        if not self._columns:
            check_names(chunk)
        elif chunk.keys() != self._columns.keys():
            raise DataError(
                f"row {self.rows}: has the columns {list(chunk)}, but earlier rows have {list(self._columns)}; "
                "give every row the same columns"
            )
        cells = {name: self._cells(name, chunk[name]) for name in self._columns or chunk}
        lengths = {name: len(column) for name, column in cells.items()}
        assert len(set(lengths.values())) == 1, lengths
        self.rows += next(iter(lengths.values()))
        return cells

    def _cells(self, name: str, values: list[Any] | Array | Cells) -> Cells:
        known = self._columns.get(name)
        if isinstance(values, (FixedCells, VariableCells)):
            cells: Cells = values
        else:
            cells = column_cells(name, values, self.rows, known)
        self._widen(Column(name, cells.kind, cells.dtype, cells.shape))
        return cells

    def extend(self, columns: Mapping[str, Column], rows: int) -> None:
        """Extend the schema to rows that have become cells elsewhere."""
        if self._columns and columns.keys() != self._columns.keys():
            raise DataError(
                f"row {self.rows}: has the columns {list(columns)}, but earlier rows have {list(self._columns)}; "
                "give every row the same columns"
            )
        for column in columns.values():
            self._widen(column)
        self.rows += rows

    def _widen(self, seen: Column) -> None:
        known = self._columns.get(seen.name)
        if known is None:
            self._columns[seen.name] = seen
        elif known != seen:
            if known.dtype != seen.dtype or len(known.shape) != len(seen.shape):
                refuse_row(seen.name, self.rows, _words(seen), _words(known))
            shape = tuple(a if a == b else -1 for a, b in zip(known.shape, seen.shape, strict=True))
            self._columns[seen.name] = replace(known, kind=Kind.VARIABLE, shape=shape)


def _words(column: Column) -> str:
    if column.kind in (Kind.STRING, Kind.BYTES):
        return column.dtype
    return f"{column.dtype} in {len(column.shape)} dimensions"
