"""Conversion of user data to cells: numpy arrays, torch tensors, Python values, Arrow arrays.

All kinds of values are interpreted here and nowhere else, so that equal rows give equal cells for every kind of source.
torch and pandas are looked up among the imported modules: their values cannot exist before their modules are imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from hopfleet.data.cells import Cells, FixedCells, VariableCells
from hopfleet.data.columns import ELEMENTS, Array, Column, Kind
from hopfleet.errors import DataError

_SCALARS = (bool, int, float, complex)


def is_tensor(value: object) -> bool:
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def row_columns(row: Any) -> Mapping[str, Any]:
    """Name a row's values: a mapping keeps its keys, a pair is x and y, a longer tuple 0, 1, ..., a single value x."""
    if isinstance(row, Mapping):
        return row
    if isinstance(row, (tuple, list)):
        if len(row) == 2:
            return {"x": row[0], "y": row[1]}
        return {str(i): value for i, value in enumerate(row)}
    return {"x": row}


def same(one: Any, other: Any) -> bool:
    """Whether two values of a column are the same, bit for bit."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is not type(other):
        return False
    if is_tensor(one):
        one, other = (tensor_cells("", tensor[None]).array for tensor in (one, other))
    if not hasattr(one, "__array__"):
        return bool(one == other or (one != one and other != other))  # a NaN differs from itself
    mine, theirs = np.asarray(one), np.asarray(other)
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return False
    return same(mine.tolist(), theirs.tolist()) if mine.dtype == object else mine.tobytes() == theirs.tobytes()


def is_missing(value: Any) -> bool:
    """Whether a value counts as missing: None, a float NaN, pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def refuse_missing(name: str, count: int, rows: str) -> NoReturn:
    raise DataError(f"column {name!r}: {count} of {rows} are missing a value; fill in the values or drop the rows")


def refuse_dtype(name: str, dtype: object) -> NoReturn:
    text = str(dtype)
    if any(word in text for word in ("datetime", "timedelta", "timestamp", "date32", "date64", "duration", "time")):
        remedy = "convert it to numbers, such as seconds since a date as float64 (array.astype('int64'))"
    else:
        remedy = "convert it to numbers, strings or bytes"
    raise DataError(f"column {name!r}: dtype {text} cannot be stored; {remedy}")


def fixed_cells(name: str, array: Array) -> FixedCells:
    """Convert a numeric array, whose first dimension counts the rows."""
    if array.dtype.name == "bfloat16":
        return FixedCells("bfloat16", array.view(np.uint16))
    if array.dtype.name not in ELEMENTS:
        refuse_dtype(name, array.dtype)
    return FixedCells(array.dtype.name, array.astype(array.dtype.newbyteorder("="), copy=False))


def tensor_cells(name: str, tensor: Any) -> FixedCells:
    """Convert a torch tensor, whose first dimension counts the rows."""
    torch: Any = sys.modules["torch"]
    tensor = tensor.detach().cpu()
    try:
        if tensor.dtype == torch.bfloat16:
            return FixedCells("bfloat16", tensor.contiguous().view(torch.int16).numpy().view(np.uint16))
        array = tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError):
        refuse_dtype(name, f"{tensor.dtype} ({tensor.layout})")
    return fixed_cells(name, array)


def column_cells(name: str, values: list[Any] | Array, first_row: int, expected: Column | None) -> Cells:
    """Convert consecutive rows of a column, starting with ``first_row``.

    Raise DataError with the row's number for a row that does not match the others or the ``expected`` column.
    """
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "OUST":
            return fixed_cells(name, values)
        if values.ndim != 1:
            refuse_dtype(name, f"{values.dtype} in {values.ndim - 1} dimensions")
        values = list(values)
    assert isinstance(values, list)
    types = set(map(type, values))
    if all(issubclass(kind, str) for kind in types):
        return _text_cells(name, values, first_row)
    if all(issubclass(kind, (bytes, bytearray)) for kind in types):
        return _run_cells(Kind.BYTES, "bytes", values)
    missing = sum(map(is_missing, values))
    if missing and not all(issubclass(kind, (*_SCALARS, np.number)) for kind in types):
        refuse_missing(name, missing, f"rows {first_row} to {first_row + len(values) - 1}")
    if any(issubclass(kind, (str, bytes, bytearray)) for kind in types):
        _refuse_mixture(name, values, first_row)
    if len(types) == 1 and issubclass(next(iter(types)), (*_SCALARS, np.generic)):
        return fixed_cells(name, _array(name, values, first_row))
    return _stacked(name, values, first_row, expected)


def _refuse_mixture(name: str, values: list[Any], first_row: int) -> NoReturn:
    """Raise DataError for a column of several types, and name some rows of each."""
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(values, first_row):
        rows.setdefault(type(value).__name__, []).append(row)
    listed = " and ".join(
        f"{kind} (row{'s' if len(some) > 1 else ''} {', '.join(map(str, some[:3]))}{', ...' if len(some) > 3 else ''})"
        for kind, some in rows.items()
    )
    raise DataError(
        f"column {name!r}: mixes {listed}; convert all rows to one type, such as str(value), or drop the odd ones"
    )


def _array(name: str, value: Any, row: int) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"column {name!r}, row {row}: cannot be converted to an array ({error}); pad nested lists to one length"
        ) from error
    if array.dtype.kind in "OUSTV" and array.dtype.name != "bfloat16":
        shown = repr(value)
        shown = shown if len(shown) < 60 else f"{shown[:56]} ..."
        raise DataError(
            f"column {name!r}, row {row}: {shown} is a {type(value).__name__} of dtype {array.dtype}, which cannot be "
            "stored; give a number, a str, bytes, or an array or list of numbers"
        )
    return array


def _text_cells(name: str, values: list[str], first_row: int) -> VariableCells:
    try:
        return _run_cells(Kind.STRING, "str", [value.encode() for value in values])
    except UnicodeEncodeError as error:
        rows = f"rows {first_row} to {first_row + len(values) - 1}"
        raise DataError(
            f"column {name!r}, {rows}: contains a str that cannot be encoded as UTF-8 ({error}); give bytes instead"
        ) from error


def _run_cells(kind: Kind, dtype: str, values: list[Any]) -> VariableCells:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    return VariableCells(kind, dtype, offsets, np.frombuffer(b"".join(values), np.uint8), None)


def _stacked(name: str, values: list[Any], first_row: int, expected: Column | None) -> Cells:
    """Convert each array-like row on its own; the result is one array if all shapes agree."""
    rows = [_row(name, value, first_row + i) for i, value in enumerate(values)]
    # An empty list has no dtype of its own and takes that of the other rows.
    bare = [isinstance(value, (list, tuple)) and not row.size for value, (_, row) in zip(values, rows, strict=True)]
    if expected is not None:
        dtype, dimensions = expected.dtype, len(expected.shape)
    else:
        dtype, model = rows[bare.index(False)] if False in bare else rows[0]
        dimensions = model.ndim
    arrays = []
    for i, ((seen, row), empty) in enumerate(zip(rows, bare, strict=True)):
        if row.ndim != dimensions or (seen != dtype and not (empty and dtype in ELEMENTS)):
            given = f"{seen} in {row.ndim} dimensions"
            refuse_row(name, first_row + i, given, f"{dtype} in {dimensions} dimensions")
        arrays.append(row if seen == dtype else row.astype(ELEMENTS[dtype].numpy))
    if len({array.shape for array in arrays}) == 1:
        return FixedCells(dtype, np.stack(arrays))
    shapes = np.array([array.shape for array in arrays], np.int64)
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([array.nbytes for array in arrays], out=offsets[1:])
    return VariableCells(Kind.VARIABLE, dtype, offsets, flat.view(np.uint8), shapes)


def _row(name: str, value: Any, row: int) -> tuple[str, Array]:
    """Return the dtype and the array of one row."""
    if type(value) is np.ndarray and value.dtype.isnative and (dtype := value.dtype.name) in ELEMENTS:
        return dtype, value
    cells = tensor_cells(name, value[None]) if is_tensor(value) else fixed_cells(name, _array(name, value, row)[None])
    return cells.dtype, cells.array.reshape(cells.shape)


def refuse_row(name: str, row: int, seen: str, expected: str) -> NoReturn:
    raise DataError(
        f"column {name!r}, row {row}: {seen}, but earlier rows have {expected}; give every row the same kind of "
        "value, such as np.asarray(value, dtype=...), and fill in or drop missing values"
    )


def arrow_cells(name: str, array: pa.Array, first_row: int) -> Cells:
    """Convert an Arrow array of numbers, strings, bytes, or lists of numbers of any depth."""
    cells = _arrow_cells(name, array, first_row)
    return cells.narrowed() if isinstance(cells, VariableCells) else cells


def _arrow_cells(name: str, array: pa.Array, first_row: int) -> Cells:
    arrow = array.type
    if array.null_count:
        refuse_missing(name, array.null_count, f"the values from row {first_row} on")
    if isinstance(arrow, pa.FixedShapeTensorType):
        return _arrow_tensors(name, array, first_row)
    if isinstance(arrow, pa.BaseExtensionType):
        return _arrow_cells(name, array.storage, first_row)
    if pa.types.is_dictionary(arrow):
        return _arrow_cells(name, array.dictionary_decode(), first_row)
    if pa.types.is_boolean(arrow):
        return FixedCells("bool", arrow_numbers(array.cast(pa.uint8())).view(np.bool_))
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        return fixed_cells(name, arrow_numbers(array))
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return _arrow_run(Kind.STRING, "str", array.cast(pa.large_string()))
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return _arrow_run(Kind.BYTES, "bytes", array.cast(pa.large_binary()))
    if pa.types.is_fixed_size_binary(arrow):
        return _arrow_run(Kind.BYTES, "bytes", array.cast(pa.binary()).cast(pa.large_binary()))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        offsets = arrow_numbers(array.offsets).astype(np.int64)
    elif pa.types.is_fixed_size_list(arrow):
        offsets = (np.arange(len(array) + 1, dtype=np.int64) + array.offset) * arrow.list_size
    else:
        refuse_dtype(name, arrow)
    # Convert only the items that these rows use: the array may be a slice of a long one.
    start, stop = int(offsets[0]), int(offsets[-1])
    inner = _arrow_cells(name, array.values.slice(start, stop - start), first_row)
    return _arrow_lists(name, inner, offsets - start, first_row)


def arrow_numbers(array: pa.Array) -> Array:
    """Convert a numeric array without nulls. Arrow's own to_numpy would import pandas."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def number_array(values: Array) -> pa.Array:
    """Return numbers as an Arrow array. ``pa.array`` would import pandas."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array. ``pa.array`` would import pandas."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    runs = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), runs)


def _arrow_tensors(name: str, array: pa.Array, first_row: int) -> FixedCells:
    cells = arrow_cells(name, array.storage, first_row)
    assert isinstance(cells, FixedCells)
    tensors = cells.array.reshape(len(array), *array.type.shape)
    axes = array.type.permutation or range(len(array.type.shape))
    return FixedCells(cells.dtype, tensors.transpose(0, *(axis + 1 for axis in axes)))


def _arrow_run(kind: Kind, dtype: str, array: pa.Array) -> VariableCells:
    _, offsets, data = array.buffers()
    runs = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    return VariableCells(kind, dtype, runs, np.frombuffer(data or b"", np.uint8), None)


def _arrow_lists(name: str, inner: Cells, offsets: Array, first_row: int) -> VariableCells:
    """Convert lists to arrays of one dimension more. Row i has the items ``offsets[i]:offsets[i + 1]`` of ``inner``."""
    if inner.kind in (Kind.STRING, Kind.BYTES):
        refuse_dtype(name, f"list of {inner.dtype}")
    inner = inner.varying() if isinstance(inner, FixedCells) else inner
    assert inner.shapes is not None
    lengths = np.diff(offsets)  # (rows,)
    heads = np.zeros((len(lengths), inner.shapes.shape[1]), np.int64)  # (rows, inner dimensions)
    heads[lengths > 0] = inner.shapes[offsets[:-1][lengths > 0]]
    owners = np.repeat(np.arange(len(lengths)), lengths)  # (items,)
    odd = (inner.shapes[: len(owners)] != heads[owners]).any(axis=1)
    if odd.any():
        row = first_row + int(owners[odd.argmax()])
        raise DataError(f"column {name!r}, row {row}: has lists of different lengths; pad them to one length")
    return VariableCells(
        Kind.VARIABLE, inner.dtype, inner.offsets[offsets], inner.data, np.column_stack([lengths, heads])
    )
