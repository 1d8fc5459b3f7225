"""Files that are read whole: arrays of numpy, sheets of Excel, and texts that are one row each."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.etl.listing import SourceFile, open_stream
from hopfleet.data.etl.tables import ROWS, as_tables
from hopfleet.errors import DataError, MissingExtra, describe

WHOLE = ("npz", "excel", "texts")
"""The formats of such files."""

Whole = tuple[pa.Table, str, int]
"""A table, the file that it comes from, and the number of its first row there."""


def follow(tables: Iterable[pa.Table]) -> Iterator[Whole]:
    """Yield the tables of a source that is no file."""
    row = 1
    for table in tables:
        yield table, "the source", row
        row += table.num_rows


def file_tables(found: Sequence[SourceFile]) -> Iterator[Whole]:
    """Yield the rows of files that are read whole."""
    if found[0].format == "texts":
        yield from follow(_texts(found))
        return
    for file in found:
        columns, row = (_arrays(file), 1) if file.format == "npz" else (_sheet(file), 2)
        try:
            for table in as_tables(columns, row - 1):
                yield table, file.path, row
                row += table.num_rows
        except DataError as error:
            raise DataError(f"{file.path}: {error}") from None


def _arrays(file: SourceFile) -> dict[str, Any]:
    with open_stream(file) as stream:
        try:
            arrays = np.load(pa.BufferReader(stream.read()))
            if isinstance(arrays, np.ndarray):
                raise ValueError("it is a single array, as numpy.save writes it")
            with arrays:
                columns = {name: arrays[name] for name in arrays.files}
            if other := next((name for name, array in columns.items() if not isinstance(array, np.ndarray)), None):
                raise ValueError(f"{other!r} in it is no array")
        except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(
                f"{file.path}: cannot be read as arrays ({describe(error)}); save numbers and texts, as in "
                "numpy.savez(path, x=x)"
            ) from error
    for name, array in list(columns.items()):
        if not array.ndim:
            raise DataError(f"{file.path}: {name!r} is a single value, not an array of rows; leave it out")
        if array.dtype.kind in "cV" or array.dtype == np.longdouble:
            raise DataError(
                f"{file.path}: {name!r} is of dtype {array.dtype}, which cannot be prepared; save plain numbers and "
                "texts, each part of a value as an array of its own"
            )
        columns[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return columns


def _sheet(file: SourceFile) -> dict[str, list[Any]]:
    """Return the columns of the first sheet of a workbook, whose first row has their names."""
    try:
        import openpyxl
    except ImportError as error:
        raise MissingExtra("openpyxl", "excel", otherwise="or save the sheet as a CSV file") from error
    with open_stream(file) as stream:
        content = pa.BufferReader(stream.read())
    try:
        book = openpyxl.load_workbook(content, read_only=True, data_only=True)
        names, *rows = [list(row) for row in book.worksheets[0].iter_rows(values_only=True)] or [[]]
    except Exception as error:  # of any kind, for any damage
        raise DataError(f"{file.path}: cannot be read as a workbook ({describe(error)}); save it again") from error
    while names and names[-1] is None:
        names.pop()
    while rows and all(value is None for value in rows[-1]):
        rows.pop()
    if not names or None in names or len({str(name) for name in names}) < len(names):
        raise DataError(f"{file.path}, row 1: must have a name of its own for each column")
    for number, row in enumerate(rows, 2):
        if any(value is not None for value in row[len(names) :]):
            raise DataError(f"{file.path}, row {number}: has more values than row 1 has names, {len(names)}")
    return {str(name): [_cell(row, place) for row in rows] for place, name in enumerate(names)}


def _cell(row: Sequence[Any], place: int) -> Any:
    return row[place] if place < len(row) else None


def _texts(found: Sequence[SourceFile]) -> Iterator[pa.Table]:
    """Yield texts with the names of their folders as labels, and their paths."""
    texts, size = list[str](), 0
    for number, file in enumerate(found, 1):
        with open_stream(file) as stream:
            try:
                texts.append(stream.read().decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file.path}: is not UTF-8 ({error}); name the encoding, as in hop.Files(path, encoding='latin-1')"
                ) from error
        size += len(texts[-1])
        if number == len(found) or len(texts) == ROWS or size > 1 << 25:
            files = [each.path for each in found[number - len(texts) : number]]
            labels = [os.path.basename(os.path.dirname(path)) for path in files]  # noqa: PTH119, PTH120, URLs among them
            yield pa.table({"text": pa.array(texts, pa.large_string()), "label": labels, "file": files})
            texts, size = [], 0
