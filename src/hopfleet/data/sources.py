"""Sources of rows, read as chunks of consecutive rows.

A source is a collection of columns in memory, Parquet files, a data set with random access, or a stream. This module
identifies the kind of source, checks it as far as possible in advance, and cuts it into chunks of a few megabytes.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.cells import Cells
from hopfleet.data.columns import ELEMENTS, Array, check_names
from hopfleet.data.convert import (
    arrow_cells,
    fixed_cells,
    is_missing,
    is_tensor,
    refuse_dtype,
    refuse_missing,
    row_columns,
    same,
    tensor_cells,
)
from hopfleet.data.schema import Chunk
from hopfleet.errors import DataError

CHUNK_BYTES = 32 << 20
CHUNK_ROWS = 1 << 18

TWICE = 16
"""Items of a data set that are read twice, to notice random augmentation."""


@dataclass(frozen=True, slots=True)
class Source:
    """The chunks of a source. ``rows`` is None if the number of rows is not known in advance."""

    rows: int | None
    chunks: Iterator[Chunk]


Slicer = Callable[[int, int], "list[Any] | Array | Cells"]


def open_source(source: Any) -> Source:
    """Open a source, checking it as far as possible without reading all of its rows."""
    if isinstance(source, (str, Path)):
        return _parquet(str(source))
    if isinstance(source, Mapping):
        return _columns(source)
    if isinstance(source, pa.RecordBatch):
        source = pa.table(source)
    if isinstance(source, pa.Table):
        return _table(source)
    if _is_instance(source, "pandas", "DataFrame"):
        return _frame(source)
    if isinstance(source, np.ndarray) or is_tensor(source):
        return _columns({"x": source})
    if isinstance(source, list):
        _check_list(source)
    if isinstance(source, tuple) and len(source) > 1 and _is_array(source[0]):
        return _columns(row_columns(tuple(map(_matrix, source))))
    if _is_instance(source, "torch.utils.data", "DataLoader"):
        raise DataError("a DataLoader yields batches, not rows; pass its data set, loader.dataset")
    streamed = _is_instance(source, "torch.utils.data", "IterableDataset")
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and not streamed:
        rows = len(source)
        return Source(rows, _row_chunks(items(source, rows)))
    if isinstance(source, Iterable):
        return Source(None, _row_chunks(source))
    raise DataError(
        f"a source of type {type(source).__name__} cannot be partitioned; give a dict of arrays, a DataFrame, an Arrow "
        "table, Parquet files, a data set with __len__ and __getitem__, or an iterator of rows"
    )


def _is_instance(value: object, module: str, name: str) -> bool:
    """Check isinstance without importing the module: an instance cannot exist before its module is imported."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


def _is_array(value: object) -> bool:
    """Whether a value has several rows of its own."""
    if _is_instance(value, "pandas", "DataFrame") or _is_instance(value, "pandas", "Series"):
        return True
    return (isinstance(value, np.ndarray) or is_tensor(value)) and bool(getattr(value, "shape", ()))


def _check_list(values: list[Any]) -> None:
    """Raise DataError for a list of columns, which would be read as a list of rows."""
    few = values[:4]
    if len(values) == len(few) and all(map(_is_array, few)) and len({len(array.shape) for array in few}) > 1:
        shapes = ", ".join(str(list(array.shape)) for array in few)
        raise DataError(
            f"a list of arrays of the shapes {shapes} would be read as one row each; pass the columns as a tuple, "
            '(X, y), or as a dict, {"x": X, "y": y}'
        )


def _matrix(array: Any) -> Any:
    """Return a DataFrame in a tuple of columns as one array; return any other column as is."""
    if not _is_instance(array, "pandas", "DataFrame"):
        return array
    if not all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in array.dtypes):
        raise DataError(
            "the DataFrame in (X, y): has columns that are not numbers, so it is no matrix; pass one DataFrame with "
            "all columns, X.assign(y=y)"
        )
    return array.to_numpy()


def _sliced(rows: int, row_bytes: int, slicers: Mapping[str, Slicer]) -> Iterator[Chunk]:
    step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, row_bytes)))
    for start in range(0, rows, step):
        yield {name: slicer(start, min(start + step, rows)) for name, slicer in slicers.items()}


def _columns(source: Mapping[Any, Any]) -> Source:
    """Open columns in memory: arrays, tensors or lists."""
    names = check_names(source)
    slicers: dict[str, Slicer] = {}
    lengths: dict[str, int] = {}
    row_bytes = 0
    for name in names:
        column = source[name]
        if not hasattr(column, "__len__") or isinstance(column, (str, bytes)) or getattr(column, "shape", True) == ():
            raise DataError(
                f"column {name!r}: has type {type(column).__name__}, but must be an array, a tensor or a list of rows"
            )
        lengths[name] = len(column)
        slicers[name] = _slicer(name, column)
        row_bytes += _size(column[0]) if len(column) else 0
    (first, rows), *others = lengths.items()
    for name, length in others:
        if length != rows:
            raise DataError(
                f"columns {first!r} and {name!r}: have {rows} and {length} rows, but must have the same number of rows"
            )
    return Source(rows, _sliced(rows, row_bytes, slicers))


def _slicer(name: str, column: Any) -> Slicer:
    if is_tensor(column):
        tensor_cells(name, column[:1])
        return lambda start, stop: tensor_cells(name, column[start:stop])
    if _is_instance(column, "pandas", "Series"):
        return _series(name, column)
    if not isinstance(column, np.ndarray):
        values = list(column)
        if values and all(type(value) in (bool, int, float, complex) for value in values):
            # numpy determines the dtype of a list of Python numbers as a whole: [1, 2.5] is float64.
            array = np.asarray(values)
            if array.dtype.kind != "O":
                return _slicer(name, array)
        return _objects(name, values)
    if column.dtype.kind in "OT":
        return _objects(name, column.reshape(-1).tolist() if column.ndim == 1 else list(column))
    if column.dtype.kind not in "US":
        fixed_cells(name, column[:1])
    elif column.ndim > 1:
        refuse_dtype(name, f"{column.dtype} in {column.ndim - 1} dimensions")
    return lambda start, stop: column[start:stop]


def _objects(name: str, values: list[Any]) -> Slicer:
    """Return a slicer of Python values. A NaN among numbers is a number; among other values it is a missing value."""
    missing = sum(map(is_missing, values))
    if missing and not all(isinstance(value, (int, float, complex, np.number)) for value in values):
        refuse_missing(name, missing, f"{len(values)} rows")
    return lambda start, stop: values[start:stop]


def _frame(frame: Any) -> Source:
    """Open a pandas DataFrame, ignoring its index."""
    names = check_names(frame.columns)
    slicers = {name: _series(name, frame[name]) for name in names}
    row_bytes = sum(_size(frame[name].iloc[0]) for name in names) if len(frame) else 0
    return Source(len(frame), _sliced(len(frame), row_bytes, slicers))


def _series(name: str, series: Any) -> Slicer:
    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        return _slicer(name, series.to_numpy())
    if missing := int(series.isna().sum()):
        refuse_missing(name, missing, f"{len(series)} rows")
    numpy = getattr(dtype, "numpy_dtype", None)
    if isinstance(numpy, np.dtype) and numpy.name in ELEMENTS:
        return lambda start, stop: np.asarray(series.iloc[start:stop].to_numpy(dtype=numpy))
    if getattr(dtype, "kind", "O") in "mM":
        refuse_dtype(name, dtype)
    values = np.asarray(series)  # categories become their values
    return _slicer(name, values)


def _table(table: pa.Table) -> Source:
    for name, column in zip(check_names(table.column_names), table.columns, strict=True):
        if column.null_count:
            refuse_missing(name, column.null_count, f"{table.num_rows} rows")
        if table.num_rows:
            arrow_cells(name, table.column(name).slice(0, 1).combine_chunks(), 0)
    step = max(1, min(CHUNK_ROWS, CHUNK_BYTES * table.num_rows // max(1, table.nbytes)))
    return Source(table.num_rows, _record_chunks(table.to_batches(max_chunksize=step)))


def _record_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
    row = 0
    for batch in batches:
        if batch.num_rows:
            names = batch.schema.names
            yield {name: arrow_cells(name, array, row) for name, array in zip(names, batch.columns, strict=True)}
            row += batch.num_rows


def _parquet(source: str) -> Source:
    """Open a Parquet file, or all files of a folder in the order of their paths, by local path or fsspec URL."""
    from pyarrow import parquet

    opened: Callable[[str], Any]
    if "://" in source:
        import fsspec

        files, path = fsspec.core.url_to_fs(source)
        opened = lambda name: parquet.ParquetFile(files.open(name))  # noqa: E731
        paths = sorted(files.glob(f"{path.rstrip('/')}/**/*.parquet")) if files.isdir(path) else [path]
        missing = not files.exists(path)
    else:
        folder = Path(source).expanduser()
        opened = parquet.ParquetFile
        paths = sorted(map(str, folder.rglob("*.parquet"))) if folder.is_dir() else [str(folder)]
        missing = not folder.exists()
    if missing:
        raise DataError(f"{source}: no such file or folder; give a Parquet file or a folder of Parquet files")
    if not paths:
        raise DataError(f"{source}: has no *.parquet files; give a Parquet file or a folder of Parquet files")

    rows = 0
    for path in paths:
        try:
            with opened(path) as file:
                rows += file.metadata.num_rows
                check_names(file.schema_arrow.names)
        except (pa.ArrowInvalid, OSError) as error:
            remedy = "read other formats first, as in hop.partition(pandas.read_csv(...), folder)"
            raise DataError(f"{path}: cannot be read as a Parquet file ({error}); {remedy}") from error

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with opened(path) as file:
                metadata = file.metadata
                size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
                step = max(1, min(CHUNK_ROWS, CHUNK_BYTES * metadata.num_rows // max(1, size)))
                yield from file.iter_batches(batch_size=step)

    return Source(rows, _record_chunks(batches()))


def items(source: Any, rows: int) -> Iterator[Any]:
    """Yield the items of a data set. Warn if one of the first items is different when it is read again."""
    steady = isinstance(source, (list, tuple, range))
    for number in range(rows):
        item = source[number]
        if number < TWICE and not steady and (name := _differing(item, source[number])):
            steady = True
            warnings.warn(
                f"column {name!r} of {type(source).__name__} is different each time row {number} is read; one value is "
                "stored and used in all epochs. If this is random augmentation, pass hop.live(dataset) instead, which "
                "makes the items anew in each epoch",
                stacklevel=2,
            )
        yield item


def _differing(item: Any, other: Any) -> str:
    """Return the first column in which two items differ, or an empty string."""
    one, again = row_columns(item), row_columns(other)
    with contextlib.suppress(Exception):  # values that cannot be compared are refused or stored like any other
        return next((str(name) for name in one if not same(one[name], again[name])), "")
    return ""


def _row_chunks(rows: Iterable[Any]) -> Iterator[Chunk]:
    """Gather single rows into chunks of columns."""
    names: list[str] = []
    columns: list[list[Any]] = []
    size = 0
    for number, row in enumerate(map(row_columns, rows)):
        if not names:
            names = check_names(row)
            columns = [[] for _ in names]
        elif len(row) != len(names) or any(name not in row for name in names):
            raise DataError(
                f"row {number}: has the columns {list(row)}, but row 0 has {names}; give every row the same columns"
            )
        for name, column in zip(names, columns, strict=True):
            column.append(value := row[name])
            size += _size(value)
        if size >= CHUNK_BYTES or len(columns[0]) >= CHUNK_ROWS:
            yield dict(zip(names, columns, strict=True))
            columns, size = [[] for _ in names], 0
    if columns and columns[0]:
        yield dict(zip(names, columns, strict=True))


def _size(value: Any) -> int:
    """Estimate the bytes of a value, for cutting chunks."""
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(value, (str, bytes, bytearray)):
        return 64 + len(value)
    if isinstance(value, (list, tuple)) and value:
        return len(value) * _size(value[0])
    return 16
