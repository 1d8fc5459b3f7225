"""Partition files: Arrow IPC files with one record batch each, so that each column is one contiguous run.

A file is mapped privately (copy on write): processes of one host share its pages, arrays are writable, as torch
requires, and writes never reach the file.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from hopfleet.data.cells import Cells, from_arrow, to_arrow
from hopfleet.data.columns import Array, Column, arrow_schema
from hopfleet.data.manifest import PartitionFile
from hopfleet.errors import DataError
from hopfleet.support import files

REMEDY = "restore it or partition again"

STREAM_START = 8
"""Bytes of the mark at the beginning of an Arrow file."""


def write_cells(path: Path, columns: Mapping[str, Column], cells: Mapping[str, Cells]) -> None:
    """Write rows as one record batch."""
    batch = as_batch(columns, cells)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def write_partition(
    path: Path, columns: Mapping[str, Column], cells: Mapping[str, Cells], *, sync: bool
) -> PartitionFile:
    """Write the file of a partition, and return its description. With ``sync``, the file is durable on return."""
    batch = as_batch(columns, cells)
    with files.create_file(path) as file:
        hashed = _Hashed(file)
        with pa.PythonFile(hashed, "w") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
    if sync:
        files.sync(path)
    return PartitionFile(path.name, batch.num_rows, hashed.size, hashed.digest.hexdigest())


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is written, while each column is still in the cache of the processor."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        written = self._file.write(data)
        self.size += written
        return written


def as_batch(columns: Mapping[str, Column], cells: Mapping[str, Cells]) -> pa.RecordBatch:
    """Return rows as one record batch."""
    arrays = [array for name, column in columns.items() for array in to_arrow(column, cells[name])]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns.values()))


def from_batch(columns: Mapping[str, Column], batch: pa.RecordBatch) -> dict[str, Cells]:
    """Return the rows that ``as_batch`` has made a record batch of, without copying them."""

    def view(buffer: pa.Buffer | None, dtype: np.dtype[Any], count: int) -> Array:
        return np.frombuffer(buffer, dtype, count) if count and buffer is not None else np.empty(0, dtype)

    cells: dict[str, Cells] = {}
    position = 0
    for name, column in columns.items():
        width = len(column.fields)
        cells[name] = from_arrow(column, batch.columns[position : position + width], view)
        position += width
    return cells


def map_cells(path: Path, columns: Mapping[str, Column], rows: int, *, validate: bool = True) -> dict[str, Cells]:
    """Return the rows of a file as views of its mapping. Raise DataError if the file is damaged.

    A file may come from a stranger: unless ``validate`` is False, every offset and string is checked, because readers
    follow offsets without looking.
    """
    memory = _mapped(path)
    mapped = pa.py_buffer(memory)
    expected = arrow_schema(columns.values())
    try:
        batch = _record_batch(mapped, expected)
        batch.validate(full=validate)
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError, struct.error) as error:
        raise DataError(f"{path}: is not a readable Arrow file ({_first_line(error)}); {REMEDY}") from error
    if batch.num_rows != rows:
        raise DataError(f"{path}: has {batch.num_rows} rows instead of {rows}; {REMEDY}")
    if any(map(_has_nulls, batch.columns)):
        raise DataError(f"{path}: is missing values; {REMEDY}")

    def view(buffer: pa.Buffer | None, dtype: np.dtype[Any], count: int) -> Array:
        if not count:
            return np.empty(0, dtype)
        start = -1 if buffer is None else buffer.address - mapped.address
        if buffer is None or start < 0 or count * dtype.itemsize > min(buffer.size, mapped.size - start):
            raise DataError(f"{path}: is not a readable Arrow file (a column is too short); {REMEDY}")
        return np.frombuffer(memory, dtype, count, start)

    cells: dict[str, Cells] = {}
    position = 0
    for name, column in columns.items():
        width = len(column.fields)
        cells[name] = from_arrow(column, batch.columns[position : position + width], view)
        if validate and not cells[name].consistent:
            raise DataError(f"{path}: column {name!r} has rows that do not fit their shapes; {REMEDY}")
        position += width
    return cells


def _mapped(path: Path) -> mmap.mmap:
    try:
        with files.open_plain(path, links=True) as file:
            # Without reservation, a private writable mapping may be larger than the free memory.
            private = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            return mmap.mmap(file.fileno(), 0, flags=private, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened ({error}); {REMEDY}") from error


def _record_batch(mapped: pa.Buffer, expected: pa.Schema) -> pa.RecordBatch:
    """Return the only record batch of a file. Its buffers are views of the file, so nothing large is allocated."""
    reader = pa.ipc.open_file(mapped)
    if reader.schema != expected or reader.num_record_batches != 1:
        raise ValueError(f"has the wrong schema, {_one_line(reader.schema)} instead of {_one_line(expected)}")
    # The blocks of a file form a stream, whose messages can be looked at before they are decoded.
    messages = [*itertools.islice(pa.ipc.MessageReader.open_stream(mapped.slice(STREAM_START)), 3)]
    if [message.type for message in messages] != ["schema", "record batch"]:
        raise ValueError("has blocks other than a schema and a record batch")
    if _compressed(messages[1].metadata):
        raise ValueError("is compressed")
    return pa.ipc.read_record_batch(messages[1], expected)


def _compressed(metadata: pa.Buffer) -> bool:
    """Whether the metadata of a record batch, a flatbuffer that Arrow has verified, names a compression."""

    def field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        (size,) = struct.unpack_from("<H", metadata, vtable)
        place = 4 + 2 * number
        offset = struct.unpack_from("<H", metadata, vtable + place)[0] if place < size else 0
        return table + offset if offset else 0

    (message,) = struct.unpack_from("<I", metadata)
    header = field(message, 2)
    return bool(field(header + struct.unpack_from("<I", metadata, header)[0], 3))


def _has_nulls(array: pa.Array) -> bool:
    return array.null_count > 0 or (pa.types.is_nested(array.type) and _has_nulls(array.values))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _one_line(schema: pa.Schema) -> str:
    text = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return text if len(text) <= 200 else f"{text[:196]} ..."
