"""Partition files: Arrow IPC files with one record batch each, so that each column is one contiguous run.

A file is mapped privately (copy on write): processes of one host share its pages, arrays are writable, as torch
requires, and writes never reach the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.cells import Cells, from_arrow, to_arrow
from hopfleet.data.columns import Array, Column, arrow_schema
from hopfleet.errors import DataError
from hopfleet.support import files


def write_cells(path: Path, columns: Mapping[str, Column], cells: Mapping[str, Cells], *, sync: bool = False) -> None:
    """Write rows as one record batch. With ``sync``, the file is durable on return."""
    schema = arrow_schema(columns.values())
    arrays = [array for name, column in columns.items() for array in to_arrow(column, cells[name])]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)
    if sync:
        files.sync(path)


def map_cells(path: Path, columns: Mapping[str, Column], rows: int) -> dict[str, Cells]:
    """Return the rows of a file as views of its mapping. Raise DataError if the file is damaged."""
    try:
        with path.open("rb") as file:
            # Without reservation, a private writable mapping may be larger than the free memory.
            private = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            memory = mmap.mmap(file.fileno(), 0, flags=private, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened ({error}); restore it or partition again") from error
    whole = pa.py_buffer(memory)
    try:
        reader = pa.ipc.open_file(whole)
        batch = reader.get_batch(0)
        batch.validate()
    except (pa.ArrowInvalid, OSError, ValueError, IndexError) as error:
        raise DataError(f"{path}: is not a readable Arrow file ({error}); restore it or partition again") from error
    expected = arrow_schema(columns.values())
    if batch.schema != expected or reader.num_record_batches != 1:
        raise DataError(
            f"{path}: has the wrong schema, {_one_line(batch.schema)} instead of {_one_line(expected)}; restore it or "
            "partition again"
        )
    if batch.num_rows != rows:
        raise DataError(f"{path}: has {batch.num_rows} rows instead of {rows}; restore it or partition again")

    def view(buffer: pa.Buffer, dtype: np.dtype[Any], count: int) -> Array:
        if not count:
            return np.empty(0, dtype)
        return np.frombuffer(memory, dtype, count, buffer.address - whole.address)

    cells: dict[str, Cells] = {}
    position = 0
    for name, column in columns.items():
        width = len(column.fields)
        cells[name] = from_arrow(column, batch.columns[position : position + width], view)
        position += width
    return cells


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
