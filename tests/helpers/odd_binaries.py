"""Odd files that store types: Parquet, Arrow, arrays of numpy and workbooks."""

from __future__ import annotations

import datetime
import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hopfleet as hop
from tests.helpers.odd_files import INF, MISSING, Odd, text

Expect = Mapping[str, Any] | tuple[str, ...]
CANNOT = "cannot be stored; convert it to numbers"
BERLIN = pa.timestamp("us", "Europe/Berlin")
NOON = datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC)


def parquet(columns: Any, *, keep: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), sink, **options)
    return sink.getvalue()[:keep]


def arrow(columns: Any, *, stream: bool = False, keep: int | None = None) -> bytes:
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes()[:keep])


def p(name: str, data: bytes, expect: Expect, recipe: Any = None) -> Odd:
    return text(f"parquet: {name}", data, expect, file="a.parquet", recipe=recipe)


def a(name: str, data: bytes, expect: Expect) -> Odd:
    return text(f"arrow: {name}", data, expect, file="a.arrow")


def latin() -> pa.Array:
    """A text that is not UTF-8."""
    offsets = np.array([0, 1, 2], np.int32)
    return pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xe9")])


def damaged(data: bytes, start: int, stop: int) -> bytes:
    return data[:start] + b"\xff" * (stop - start) + data[stop:]


MANY = {"x": [f"text {row % 700}" for row in range(1000)]}
NO_FILE = ("a.parquet: cannot be read as a Parquet file", "restore the file")
RAW = hop.Tabular({"x": hop.Number(scale=None)})
HOURS = hop.Tabular({"x": hop.Date(["day", "hour"])})

PARQUET = [
    p("decimals", parquet({"x": [Decimal("1.10")]}), ("a.parquet, row 1: column 'x': dtype decimal128", CANNOT)),
    p("decimals as numbers", parquet({"x": [Decimal("1.50"), Decimal("-2.25")]}), {"x": [1.5, -2.25]}, RAW),
    p("dictionaries", parquet({"x": pa.array(["a", "b", "a"]).dictionary_encode()}), {"x": ["a", "b", "a"]}),
    p("dictionaries of numbers", parquet({"x": pa.array([5, 6, 5]).dictionary_encode()}), {"x": [5, 6, 5]}),
    p(
        "a dictionary with a gap",
        parquet({"x": pa.array(["a", None]).dictionary_encode()}),
        ("row 2: column 'x'", MISSING),
    ),
    p("nested lists", parquet({"x": [[[1], [2]], [[3], [4]]]}), {"x": [[[1], [2]], [[3], [4]]]}),
    p("uneven nested lists", parquet({"x": [[[1]], [[2], [3, 4]]]}), ("a.parquet, row 2: column 'x'", "pad them")),
    p("lists of texts", parquet({"x": [["a"], []]}), ("a.parquet, row 1: column 'x': dtype list of str", CANNOT)),
    p("objects", parquet({"x": [{"a": 1}]}), ("a.parquet, row 1: column 'x': dtype struct<a: int64>", CANNOT)),
    p("maps", parquet({"x": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), ("row 1: column 'x'", CANNOT)),
    p("times", parquet({"x": [NOON]}), ("a.parquet, row 1: column 'x': dtype timestamp", "cannot be stored; convert")),
    p("times of a zone", parquet({"x": pa.array([NOON], BERLIN)}), {"x": [[31.0, 13.0]]}, HOURS),
    p("times of no zone", parquet({"x": [NOON.replace(tzinfo=None)]}), {"x": [[31.0, 12.0]]}, HOURS),
    p("durations", parquet({"x": [datetime.timedelta(1)]}), ("row 1: column 'x': dtype duration", "cannot be stored")),
    p("nothing but gaps", parquet({"x": pa.nulls(2)}), ("a.parquet, row 1: column 'x'", MISSING)),
    p("a gap", parquet({"x": [1, None]}), ("a.parquet, row 2: column 'x'", MISSING)),
    p("a large number and a gap", parquet({"x": [2**53 + 1, None]}), ("a.parquet, row 2: column 'x'", MISSING)),
    p("NaN and infinities", parquet({"x": [float("nan"), -INF, -0.0]}), {"x": [float("nan"), -INF, -0.0]}),
    p("the largest uint64", parquet({"x": pa.array([2**64 - 1, 0], pa.uint64())}), {"x": [2**64 - 1, 0]}),
    p("float16", parquet({"x": np.array([1.5, 65504], np.float16)}), {"x": [1.5, 65504.0]}),
    p("bytes", parquet({"x": [b"\xff\x00", b""]}), {"x": [b"\xff\x00", b""]}),
    p("views", parquet({"x": pa.array(["a", "b"], pa.string_view())}), {"x": ["a", "b"]}),
    p("no rows", parquet({"x": pa.array([], pa.int64())}), ("the source has no rows",)),
    p(
        "two columns of one name",
        parquet(pa.table([[1], [2]], names=["x", "x"])),
        ("a.parquet: column name 'x': used twice",),
    ),
    p("a column without a name", parquet({"": [1]}), ("a.parquet, row 1: column name '': must be",)),
    p("names with points", parquet({"a.b": [1], "a": [2]}), {"a.b": [1], "a": [2]}),
    p("several row groups", parquet({"x": [1, 2, 3]}, row_group_size=1), {"x": [1, 2, 3]}),
    p("text that is not UTF-8", parquet({"x": latin()}), ("a.parquet: cannot be read", "UTF8", "restore the file")),
    p("no end", parquet(MANY, keep=-4), NO_FILE),
    p("hardly any bytes", b"PAR1", NO_FILE),
    p("a CSV file", b"x,y\n1,2\n", NO_FILE),
    p(
        "damaged pages",
        damaged(parquet(MANY, compression="snappy"), 300, 900),
        ("a.parquet: cannot be read", "restore"),
    ),
]

ARROW = [
    a("a stream", arrow({"x": [1, 2]}, stream=True), {"x": [1, 2]}),
    a("dictionaries", arrow({"x": pa.array(["a", "b"]).dictionary_encode()}), {"x": ["a", "b"]}),
    a(
        "a file that breaks off",
        arrow(MANY, keep=-60),
        ("a.arrow: cannot be read as an Arrow file", "restore the file"),
    ),
    a("a stream that breaks off", arrow(MANY, stream=True, keep=-400), ("a.arrow: cannot be read as an Arrow file",)),
    a("a CSV file", b"x,y\n1,2\n", ("a.arrow: cannot be read as an Arrow file", "restore the file")),
    a("text that is not UTF-8", arrow({"x": latin()}), ("a.arrow: cannot be read", "UTF8", "restore the file")),
    a(
        "codes of no word",
        arrow({"x": pa.DictionaryArray.from_arrays(pa.array([0, 77]), pa.array(["a"]), safe=False)}),
        ("a.arrow: cannot be read", "restore the file"),
    ),
]


class Trap:
    """Unpickling this would leave a trace."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


def arrays(**columns: Any) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, **columns)
    return sink.getvalue()


def n(name: str, data: bytes, expect: Expect) -> Odd:
    return text(f"npz: {name}", data, expect, file="a.npz")


def zipped(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(name, content)
    return sink.getvalue()


def single() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.arange(3))
    return sink.getvalue()


NO_ARRAYS = ("a.npz: cannot be read as arrays", "save numbers and texts, as in numpy.savez(path, x=x)")
HUGE = (
    b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(127)
    + b"\nabc"
)

NPZ = [
    n("pickles", arrays(x=np.array([Trap(), 1], object)), NO_ARRAYS),
    n("a pickle", pickle.dumps(Trap()), NO_ARRAYS),
    n(
        "different lengths",
        arrays(x=np.arange(3), y=np.arange(2)),
        ("a.npz", "columns of different lengths, {'x': 3, 'y': 2}"),
    ),
    n("a single value", arrays(x=np.float64(1)), ("a.npz: 'x' is a single value, not an array of rows; leave it out",)),
    n("a single array", single(), NO_ARRAYS),
    n("a text in the archive", zipped("a.csv", b"x\n1\n"), (*NO_ARRAYS, "'a.csv' in it is no array")),
    n("an array of 800 terabytes", zipped("x.npy", HUGE), NO_ARRAYS),
    n(
        "records",
        arrays(x=np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])),
        ("a.npz: 'x' is of dtype", "array of its own"),
    ),
    n("complex numbers", arrays(x=np.array([1j])), ("a.npz: 'x' is of dtype complex128", "an array of its own")),
    n(
        "bytes in another order",
        arrays(x=np.array([1, 256], ">i4"), y=np.array([1.5, -0.0], ">f8")),
        {"x": [1, 256], "y": [1.5, -0.0]},
    ),
    n(
        "dates",
        arrays(x=np.array(["2024-01-01"], "M8[D]")),
        ("a.npz, row 1: column 'x': dtype date32", "cannot be stored"),
    ),
    n("no date", arrays(x=np.array(["2024-01-01", "NaT"], "M8[s]")), ("a.npz, row ", "column 'x'")),
    n("bytes", arrays(x=np.array([b"a\xff", b"b"])), {"x": [b"a\xff", b"b"]}),
    n("texts", arrays(x=np.array(["é", "\U0001f600"])), {"x": ["é", "\U0001f600"]}),
    n("odd numbers", arrays(x=np.array([np.nan, np.inf, -0.0, 5e-324])), {"x": [float("nan"), INF, -0.0, 5e-324]}),
    n("columns of an array", arrays(x=np.asfortranarray(np.arange(6).reshape(2, 3))), {"x": [[0, 1, 2], [3, 4, 5]]}),
    n("rows without values", arrays(x=np.zeros((2, 0))), {"x": [[], []]}),
    n("no rows", arrays(x=np.zeros(0)), ("the source has no rows",)),
    n("no arrays", arrays(), ("the source has no rows",)),
    n("an archive that breaks off", arrays(x=np.arange(100))[:-40], NO_ARRAYS),
    n("a wrong sum", damaged(arrays(x=np.arange(1000)), 2000, 2008), NO_ARRAYS),
]


def sheet(*rows: list[Any]) -> bytes:
    import openpyxl

    sink, book = io.BytesIO(), openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(sink)
    return sink.getvalue()


def x(name: str, rows: list[list[Any]] | bytes, expect: Expect) -> Odd:
    def write(folder: Path) -> None:
        (folder / "a.xlsx").write_bytes(rows if isinstance(rows, bytes) else sheet(*rows))

    return Odd(f"sheet: {name}", write, expect)


SHEETS = [
    x("blank rows and columns at the end", [["x", None], [1, None], [2, None], [None, None]], {"x": [1, 2]}),
    x("a blank row between", [["x"], [1], [None], [2]], ("a.xlsx, row 3: column 'x'", MISSING)),
    x("texts that look like numbers", [["x"], ["007"], ["1,5"]], {"x": ["007", "1,5"]}),
    x("whole numbers and fractions", [["x"], [1], [2.5]], {"x": [1.0, 2.5]}),
    x("numbers and texts", [["x"], [1], ["a"]], ("a.xlsx: column 'x', row 3: mixes types", "convert all to one type")),
    x("names that are numbers", [[2023, "x"], [1, 2]], {"2023": [1], "x": [2]}),
    x("a name twice", [["x", "x"], [1, 2]], ("a.xlsx, row 1: must have a name of its own for each column",)),
    x("a sheet without rows", [], ("a.xlsx, row 1: must have a name",)),
    x("a header alone", [["x"]], ("the source has no rows",)),
    x("errors of formulas", [["x"], [1], ["#DIV/0!"]], ("a.xlsx: column 'x', row 3: mixes types",)),
    x(
        "a workbook that breaks off",
        sheet(["x"], [1])[:-200],
        ("a.xlsx: cannot be read as a workbook", "save it again"),
    ),
    x("a CSV file", b"x\n1\n", ("a.xlsx: cannot be read as a workbook", "save it again")),
]

CASES = [*PARQUET, *ARROW, *NPZ, *SHEETS]
