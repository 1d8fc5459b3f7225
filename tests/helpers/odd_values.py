"""Odd tables in memory, and odd values for labels, numbers and dates of a recipe."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import hopfleet as hop
from tests.helpers.odd_files import INF, MISSING, Odd, text

Expect = Mapping[str, Any] | tuple[str, ...]


def memory(name: str, source: Any, expect: Expect, recipe: Any = None) -> Odd:
    return Odd(f"memory: {name}", lambda folder: None, expect, lambda folder: source, recipe)


def told(name: str, values: list[str], expect: Expect, recipe: Any, **options: Any) -> Odd:
    """Return the case of a CSV file with the column ``x`` and a recipe."""
    return text(f"recipe: {name}", "\n".join(["x|i", *(f"{value}|1" for value in values), ""]), expect, recipe=recipe,
                delimiter="|", **options)  # fmt: skip


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"]}


FRAME = pd.DataFrame({"x": pd.Categorical(["b", "a", "b"], categories=["z", "b", "a"])})

MEMORY = [
    memory("categories of pandas", FRAME, {"x": ["b", "a", "b"]}),
    memory("categories that are numbers", pd.DataFrame({"x": pd.Categorical([7, 5, 7])}), {"x": [7, 5, 7]}),
    memory("a missing category", pd.DataFrame({"x": pd.Categorical(["a", None])}), ("row 2: column 'x'", MISSING)),
    memory("whole numbers with a gap", pd.DataFrame({"x": pd.array([2**53 + 1, None], "Int64")}), ("row 2", MISSING)),
    memory("whole numbers of pandas", pd.DataFrame({"x": pd.array([2**53 + 1, 1], "Int64")}), {"x": [2**53 + 1, 1]}),
    memory(
        "mixed objects", pd.DataFrame({"x": [1, "a"]}), ("column 'x', row 2: mixes types", "convert all to one type")
    ),
    memory("an index of names", pd.DataFrame({"x": [1, 2]}, index=["b", "a"]), {"x": [1, 2]}),
    memory("columns of one name", pd.DataFrame([[1, 2]], columns=["x", "x"]), ("'x'",)),
    memory("names that are numbers", pd.DataFrame({0: [1], 1: [2]}), {"0": [1], "1": [2]}),
    memory("no rows", pd.DataFrame({"x": []}), ("the source has no rows",)),
    memory("different lengths", {"x": [1, 2], "y": [1]}, ("columns of different lengths, {'x': 2, 'y': 1}",)),
    memory("integers beyond all types", {"x": [1, 2**70]}, ("column 'x', row ", "convert all to one type")),
    memory("the largest uint64", {"x": [2**64 - 1, 0]}, {"x": [2**64 - 1, 0]}),
    memory("odd floats", {"x": [float("nan"), INF, -0.0]}, {"x": [float("nan"), INF, -0.0]}),
    memory("truth and numbers", {"x": [True, 2]}, ("column 'x', row 2: mixes types", "convert all to one type")),
    memory("complex numbers", {"x": np.array([1j])}, ("column 'x': dtype complex128", "convert it to plain numbers")),
    memory("rows with other keys", [{"x": 1}, {"y": 2}], ("row 1: has the columns ['y'], others have ['x']",)),
    memory("a row that is a number", [5], ("row 0: is a int; give each row as a dict or a tuple",)),
    memory("two columns of one name", pa.table([[1], [2]], names=["x", "x"]), ("'x'", "used twice")),
    memory(
        "a query with two columns of one name",
        hop.Query(lambda: sqlite3.connect(":memory:"), "select 1 as x, 2 as x"),
        ("column name 'x': used twice; name one of the two columns with AS",),
    ),
    memory(
        "a large number that a function gets with a gap", pa.table({"x": [2**53 + 1, None]}), ("column 'x'",), doubled
    ),
]

NUMBER = hop.Tabular({"x": hop.Number(scale=None)})
SCALED = hop.Tabular({"x": hop.Number()})
FILLED = hop.Tabular({"x": hop.Number(scale=None, missing=-1.0)})
LABEL = hop.Tabular({"x": hop.Label()})
CATEGORY = hop.Tabular({"x": hop.Category(unseen="raise")})
DATE = hop.Tabular({"x": hop.Date(["year", "month", "day"])})
HOUR = hop.Tabular({"x": hop.Date(["day", "hour"])})
AMERICAN = hop.Tabular({"x": hop.Date(["year", "month", "day"], format="%m/%d/%Y")})
NO_LABEL = "column 'x': a label is missing; fill it in"

RECIPES = [
    told("a number that is missing", ["1", ""], ("a.csv, line 3: column 'x'", "hop.Number(missing='mean')"), NUMBER),
    told("a number that is filled in", ["1", "NA", "3"], {"x": [1.0, -1.0, 3.0]}, FILLED),
    told("infinity", ["1", "inf"], ("a.csv, line 3: column 'x': inf is not finite; correct the value",), NUMBER),
    told(
        "a number beyond float32",
        ["1", "1e39"],
        ("line 3: column 'x': 1e+39 is beyond the numbers of float32",),
        NUMBER,
    ),
    told(
        "numbers whose spread is beyond all",
        ["-1e308", "1e308", "1e308"],
        ("a.csv, line 2: column 'x': the training rows have numbers",),
        SCALED,
    ),
    told("numbers that are all the same", ["5", "5"], {"x": [0.0, 0.0]}, SCALED),
    told("a text among numbers", ["1", "2", "x"], ("a.csv, line 4: column 'x' has 'x' among numbers",), NUMBER),
    told("a label that is missing", ["a", "", "b"], ("a.csv, line 3", NO_LABEL), LABEL),
    told("a label that is NaN", ["1.5", "NaN"], ("a.csv, line 3", NO_LABEL), LABEL),
    told("a label that is infinite", ["1.5", "-inf"], ("a.csv, line 3: column 'x': -inf is not finite",), LABEL),
    told("labels that look alike", ["A", "A ", "a", "Ａ"], {"x": [0, 1, 2, 3]}, LABEL),
    told("labels in two normal forms", ["é", "e\u0301", "é"], {"x": [1, 0, 1]}, LABEL),
    told("labels of one class", ["a", "a"], {"x": [0, 0]}, LABEL),
    told("labels of truth", ["true", "false"], {"x": [1, 0]}, LABEL),
    told("labels as yes and no", ["yes", "no", "yes"], {"x": [1, 0, 1]}, LABEL),
    told("labels of one number", ["0", "0"], {"x": [0, 0]}, LABEL),
    told("a category that is missing", ["a", ""], ("a.csv, line 3: column 'x': a value is missing",), CATEGORY),
    told("dates", ["2024-02-29", "1969-12-31"], {"x": [[2024.0, 2.0, 29.0], [1969.0, 12.0, 31.0]]}, DATE),
    told("American dates as they are", ["01/02/2024", "12/31/2024"], ("a.csv, line 2: column 'x'", "01/02/2024"), DATE),
    told(
        "American dates that are told",
        ["01/02/2024", "12/31/2024"],
        {"x": [[2024.0, 1.0, 2.0], [2024.0, 12.0, 31.0]]},
        AMERICAN,
    ),
    told(
        "European dates told as American",
        ["31/01/2024"],
        ("line 2: column 'x': '31/01/2024' is not a date of",),
        AMERICAN,
    ),
    told("days that do not exist", ["2024-02-28", "2023-02-29"], ("a.csv, line 3: column 'x'", "2023-02-29"), DATE),
    told("a date that is missing", ["2024-02-28", ""], ("a.csv, line 3: column 'x': a value is missing",), DATE),
    told(
        "times of two zones",
        ["2024-01-31T23:00:00Z", "2024-01-31T23:00:00-02:00"],
        {"x": [[31.0, 23.0], [1.0, 1.0]]},
        HOUR,
    ),
    told(
        "a time without its zone",
        ["2024-01-31T23:00:00Z", "2024-01-31T23:00:00"],
        ("a.csv, line 3: does not fit the rows before: column 'x'",),
        HOUR,
    ),
    told("years beyond four digits", ["10000-01-01"], ("a.csv, line 2: column 'x'", "10000-01-01"), DATE),
    told(
        "a column that is not there",
        ["1"],
        ("a.csv: has no column 'z' for columns={'z': ...}", "it has x, i"),
        hop.Tabular({"z": hop.Number()}),
    ),
    told(
        "a label that is not there",
        ["1"],
        ("a.csv: has no column 'X' for labels='X'; did you mean 'x'?",),
        hop.Tabular(labels="X"),
    ),
]

CASES = [*MEMORY, *RECIPES]
