"""The rows of one column, in memory or in a mapped file, and their conversion to Arrow arrays and back.

There are two forms. Rows of one shape are one array; all other rows (differing shapes, strings, bytes) are one run of
bytes with offsets. Partitioning and reading use only the few operations that both forms share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.columns import ELEMENTS, Array, Column, Kind

Values = Array | list[Any]
"""The rows of a column in the form that batches have."""


@dataclass(frozen=True, slots=True, eq=False)
class FixedCells:
    """Rows of one shape."""

    dtype: str
    array: Array  #: (rows, *shape), in the numpy dtype of batches

    def __len__(self) -> int:
        return len(self.array)

    @property
    def kind(self) -> Kind:
        return Kind.FIXED

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def consistent(self) -> bool:
        return True

    def take(self, rows: Array) -> FixedCells:
        return FixedCells(self.dtype, np.take(self.array, rows, axis=0))

    def slice(self, start: int, stop: int) -> FixedCells:
        return FixedCells(self.dtype, self.array[start:stop])

    def values(self) -> Values:
        return self.array

    def varying(self) -> VariableCells:
        """Return the same rows in the form for differing shapes."""
        rows, width = len(self), math.prod(self.shape) * self.array.itemsize
        shapes = np.tile(np.array(self.shape, np.int64), (rows, 1))
        offsets = np.arange(rows + 1, dtype=np.int64) * width
        return VariableCells(Kind.VARIABLE, self.dtype, offsets, as_bytes(self.array), shapes)


@dataclass(frozen=True, slots=True, eq=False)
class VariableCells:
    """Rows of differing length: row i is ``data[offsets[i]:offsets[i + 1]]``."""

    kind: Kind
    dtype: str
    offsets: Array  #: (rows + 1,) int64, in bytes; the first may be greater than 0
    data: Array  #: (bytes,) uint8
    shapes: Array | None  #: (rows, dimensions) int64 of VARIABLE rows, None for strings and bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row, -1 where rows differ."""
        if self.shapes is None or not len(self):
            return ()
        return tuple(int(size[0]) if (size == size[0]).all() else -1 for size in self.shapes.T)

    @property
    def nbytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0]) + self.offsets.nbytes

    @property
    def consistent(self) -> bool:
        """Whether the bytes of each row are those of its shape."""
        if self.shapes is None:
            return True
        items = np.diff(self.offsets) // ELEMENTS[self.dtype].numpy.itemsize
        # The product in floating point notices a product that overflows.
        exact = np.array_equal(self.shapes.prod(axis=1), items)
        return exact and bool((self.shapes >= 0).all() and (self.shapes.prod(axis=1, dtype=float) < 2**62).all())

    def take(self, rows: Array) -> VariableCells:
        index = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows, np.int64))])
        runs = [None, pa.py_buffer(np.ascontiguousarray(self.offsets)), pa.py_buffer(self.data)]
        taken = pa.Array.from_buffers(pa.large_binary(), len(self), runs).take(index)
        offsets = np.frombuffer(taken.buffers()[1], np.int64, len(rows) + 1)
        data = taken.buffers()[2]
        shapes = None if self.shapes is None else self.shapes[rows]
        return VariableCells(self.kind, self.dtype, offsets, np.frombuffer(data or bytearray(), np.uint8), shapes)

    def slice(self, start: int, stop: int) -> VariableCells:
        shapes = None if self.shapes is None else self.shapes[start:stop]
        return VariableCells(self.kind, self.dtype, self.offsets[start : max(start, stop) + 1], self.data, shapes)

    def values(self) -> Values:
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        if self.shapes is None:
            return self._run_values(self.data[first:last].tobytes(), (self.offsets - first).tolist())
        numpy = ELEMENTS[self.dtype].numpy
        flat = self.data[first:last].view(numpy)
        ends = ((self.offsets - first) // numpy.itemsize).tolist()
        if self.shapes.shape[1] == 1:
            return [flat[start:stop] for start, stop in itertools.pairwise(ends)]
        shapes = self.shapes.tolist()
        return [flat[start:stop].reshape(shape) for start, stop, shape in zip(ends[:-1], ends[1:], shapes, strict=True)]

    def _run_values(self, data: bytes, ends: list[int]) -> Values:
        # Arrow's own conversions are slower and import pandas.
        if self.kind is Kind.BYTES:
            return [data[start:stop] for start, stop in itertools.pairwise(ends)]
        if data.isascii():
            text = data.decode("ascii")
            return [text[start:stop] for start, stop in itertools.pairwise(ends)]
        return [data[start:stop].decode() for start, stop in itertools.pairwise(ends)]

    def narrowed(self) -> Cells:
        """Return the form for one shape if all rows have the same shape, else these cells."""
        if self.shapes is None or not len(self) or -1 in (shape := self.shape):
            return self
        numpy = ELEMENTS[self.dtype].numpy
        flat = self.data[int(self.offsets[0]) : int(self.offsets[-1])].view(numpy)
        return FixedCells(self.dtype, flat.reshape(len(self), *shape))


Cells = FixedCells | VariableCells


def as_bytes(array: Array) -> Array:
    """Return the memory of an array as a run of bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def to_arrow(column: Column, cells: Cells) -> list[pa.Array]:
    """Return the Arrow arrays that store a column's rows. Equal rows give equal bytes for every kind of source."""
    rows, fields = len(cells), column.fields
    if isinstance(cells, FixedCells):
        assert column.kind is Kind.FIXED and cells.shape == column.shape, (column, cells.shape)
        return [_numbers(fields[0].type, rows, as_bytes(cells.array))]
    first, last = int(cells.offsets[0]), int(cells.offsets[-1])
    data, offsets = cells.data[first:last], cells.offsets - first
    if column.kind is not Kind.VARIABLE:
        return [pa.Array.from_buffers(fields[0].type, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])]
    assert cells.shapes is not None
    element = column.element
    width = element.arrow.bit_width // 8
    flat = pa.Array.from_buffers(element.arrow, len(data) // width, [None, pa.py_buffer(data)])
    arrays = [pa.Array.from_buffers(fields[0].type, rows, [None, pa.py_buffer(offsets // width)], children=[flat])]
    if len(fields) > 1:
        arrays.append(_numbers(fields[1].type, rows, as_bytes(cells.shapes)))
    return arrays


def _numbers(arrow: pa.DataType, rows: int, data: Array) -> pa.Array:
    """Return an array of numbers, or of fixed-size lists of numbers."""
    if not pa.types.is_fixed_size_list(arrow):
        return pa.Array.from_buffers(arrow, rows, [None, pa.py_buffer(data)])
    child = _numbers(arrow.value_type, rows * arrow.list_size, data)
    return pa.Array.from_buffers(arrow, rows, [None], children=[child])


def from_arrow(
    column: Column, arrays: list[pa.Array], view: Callable[[pa.Buffer | None, np.dtype[Any], int], Array]
) -> Cells:
    """Return the rows stored in Arrow arrays, without copying them.

    ``view(buffer, dtype, count)`` returns the first ``count`` items of a buffer as an array.
    """
    rows, buffers = len(arrays[0]), arrays[0].buffers()
    if column.kind is Kind.FIXED:
        flat = view(buffers[-1], column.element.numpy, rows * math.prod(column.shape))
        return FixedCells(column.dtype, flat.reshape(rows, *column.shape))
    offsets = view(buffers[1], np.dtype(np.int64), rows + 1)
    if column.kind is not Kind.VARIABLE:
        data = view(buffers[-1], np.dtype(np.uint8), int(offsets[-1]))
        return VariableCells(column.kind, column.dtype, offsets, data, None)
    # Offsets are converted from items to bytes, which copies them; the data is not copied.
    offsets = offsets * (column.element.arrow.bit_width // 8)
    data = view(buffers[-1], np.dtype(np.uint8), int(offsets[-1]))
    if len(arrays) == 1:
        shapes = np.diff(offsets)[:, None] // column.element.numpy.itemsize
    else:
        shapes = view(arrays[1].buffers()[-1], np.dtype(np.int64), rows * len(column.shape))
        shapes = shapes.reshape(rows, len(column.shape))
    return VariableCells(column.kind, column.dtype, offsets, data, shapes)


class Builder:
    """A column assembled piece by piece, without a second copy of the rows."""

    def __init__(self, column: Column, rows: int) -> None:
        self._column = column
        self._filled = 0
        if column.kind is Kind.FIXED:
            self._array = np.empty((rows, *column.shape), column.element.numpy)
            return
        self._data = bytearray()
        self._offsets = np.zeros(rows + 1, np.int64)
        self._shapes = np.empty((rows, len(column.shape)), np.int64) if column.kind is Kind.VARIABLE else None

    def take(self, cells: Cells, rows: Array) -> None:
        """Append some rows of other cells."""
        if self._column.kind is not Kind.FIXED:
            self.append(cells.take(rows))
            return
        assert isinstance(cells, FixedCells)
        start, self._filled = self._filled, self._filled + len(rows)
        # Rows are within bounds; with the mode "raise", numpy would copy them once more.
        np.take(cells.array, rows, axis=0, out=self._array[start : self._filled], mode="clip")

    def append(self, cells: Cells) -> None:
        start, self._filled = self._filled, self._filled + len(cells)
        if self._column.kind is Kind.FIXED:
            assert isinstance(cells, FixedCells)
            self._array[start : self._filled] = cells.array
            return
        if isinstance(cells, FixedCells):
            cells = cells.varying()
        first, last = int(cells.offsets[0]), int(cells.offsets[-1])
        self._offsets[start + 1 : self._filled + 1] = cells.offsets[1:] - first + len(self._data)
        self._data += cells.data[first:last].data
        if self._shapes is not None:
            assert cells.shapes is not None
            self._shapes[start : self._filled] = cells.shapes

    def cells(self) -> Cells:
        column = self._column
        if column.kind is Kind.FIXED:
            return FixedCells(column.dtype, self._array)
        data = np.frombuffer(self._data, np.uint8)
        return VariableCells(column.kind, column.dtype, self._offsets, data, self._shapes)
