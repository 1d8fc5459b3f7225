"""Columns of raw rows that stand beside what is made of the rows: they pass through a preparation untouched.

A data set stores numbers and texts without gaps, so the values of such columns are packed as text, with their types.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.cells import Cells
from hopfleet.data.dataset import Dataset
from hopfleet.errors import DataError, TaskError
from hopfleet.phrases import did_you_mean, listed

PACKED = "hopfleet.kept:"
"""What the name of a packed column begins with; the rest tells the names and types of its columns."""


def packed(table: pa.Table, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return some columns of a table as one column of text, by its name."""
    fields, texts = [], []
    for name in names:
        check_kept([name], table.column_names)
        column = table.column(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        kind = pa.string() if pa.types.is_null(kind) else kind
        try:
            texts.append(column.cast(kind).cast(pa.string()).to_pylist())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(f"keep={name!r}: is a column of {kind}; keep numbers, texts and dates") from None
        fields.append(pa.field(name, kind))
    schema = pa.schema(fields).serialize().to_pybytes().hex()
    rows = [json.dumps(row) for row in zip(*texts, strict=True)]
    return {PACKED + schema: pa.array(rows, pa.string())}


def _unpacked(name: str, rows: Iterable[str]) -> dict[str, pa.Array]:
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(name.removeprefix(PACKED))))
    values = [json.loads(row) for row in rows]
    texts = ([row[place] for row in values] for place in range(len(schema)))
    return {
        field.name: pa.array(column, pa.string()).cast(field.type) for field, column in zip(schema, texts, strict=True)
    }


def check_kept(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise DataError for a name that is no column."""
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise DataError(f"keep={name!r}: the rows have no such column; {near}there are {listed(name, known)}")


class Hiding(Dataset):
    """The rows of a data set without some of its columns, and without a copy."""

    def __init__(self, whole: Dataset, hidden: frozenset[str]) -> None:
        shown = {name: column for name, column in whole.manifest.columns.items() if name not in hidden}
        super().__init__(whole._folder, dataclasses.replace(whole.manifest, columns=shown), whole._items)
        self._whole = whole
        self._hidden = hidden
        self.partition_rows = whole.partition_rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Hiding, (self._whole, self._hidden)

    def fetch(self, partition: int) -> None:
        self._whole.fetch(partition)

    def file(self, partition: int) -> Path:
        return self._whole.file(partition)

    def _open(self, partition: int) -> dict[str, Cells]:
        return {name: cells for name, cells in self._whole._open(partition).items() if name not in self._hidden}


class Kept:
    """The columns of a data set that stand beside what is made of its rows: stored ones, or those that are packed.

    ``raw`` turns prepared values of some columns into those of the raw rows, or None.
    """

    def __init__(
        self, whole: Dataset, names: Sequence[str], raw: Mapping[str, Callable[[Any], Any]] = MappingProxyType({})
    ) -> None:
        self.names = names
        self._raw = raw
        self._whole = whole
        self._packed = [name for name in whole.columns if name.startswith(PACKED)]
        self._stored = [] if self._packed else list(names)
        check_kept(self._stored, list(whole.columns))
        #: The rows without packed columns, which are nothing to a task.
        self.rows = Hiding(whole, frozenset(self._packed)) if self._packed else whole

    def beside(self, partition: int, made: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what was made of a partition's rows, in their order, behind the columns."""
        if not (self._packed or self._stored):
            yield from made
            return
        cells, start = self._whole._open(partition), 0
        columns: Mapping[str, Any] = {name: self._plain(name, cells[name]) for name in self._stored}
        for name in self._packed:
            columns = _unpacked(name, cells[name].values())
        for batch in made:
            if both := sorted(set(columns) & set(batch.schema.names)):
                raise TaskError(
                    f"keep={both[0]!r}: predict() returns a column of this name, too; return it under another name"
                )
            beside = {name: column.slice(start, batch.num_rows) for name, column in columns.items()}
            start += batch.num_rows
            yield pa.RecordBatch.from_pydict({**beside, **dict(zip(batch.schema.names, batch.columns, strict=True))})

    def _plain(self, name: str, cells: Cells) -> pa.Array:
        values = cells.values()
        if name in self._raw and isinstance(values, np.ndarray) and (raw := self._raw[name](values)) is not None:
            return raw
        if isinstance(values, np.ndarray) and values.ndim > 1:
            flat = np.ascontiguousarray(values).reshape(len(values), -1)
            return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
        return pa.array(values)
