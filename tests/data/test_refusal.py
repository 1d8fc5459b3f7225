"""Sources that cannot be partitioned: the error names value and remedy, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import settings

from hopfleet.data import partition, sources
from hopfleet.errors import DataError

quick = settings(max_examples=40, deadline=None)


class TestRefusal:
    """Each refused source leaves no trace."""

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ({}, "no columns"),
            ({"x": []}, "empty"),
            (iter([]), "empty"),
            (pd.DataFrame({"x": []}), "empty"),
            ({"x": np.ones(3), "y": np.ones(4)}, "columns 'x' and 'y': have 3 and 4 rows"),
            ({"x": np.ones(1)}, "partitions=2: must be at most the number of rows, 1"),
            (iter([1]), "partitions=2: must be at most the number of rows, 1"),
            ({"": np.ones(3)}, "column name ''"),
            ({1: np.ones(3)}, "column name 1"),
            (pd.DataFrame(np.ones((3, 2))), "column name 0"),
            ({"x": 5}, "column 'x': has type int"),
            ({"x": np.float64(5)}, "column 'x': has type float64"),
            ({"x": "text"}, "column 'x': has type str"),
            (5, "of type int cannot be partitioned"),
            ({"x": ["a", None, "b", None]}, r"column 'x': 2 of 4 rows are missing a value; fill in the values or drop"),
            ({"x": ["a", float("nan")]}, "column 'x': 1 of 2 rows"),
            (pd.DataFrame({"x": ["a", None, "b"]}), "column 'x': 1 of 3 rows"),
            (pd.DataFrame({"x": pd.array([1, None, 3], dtype="Int64")}), "column 'x': 1 of 3 rows"),
            (pa.table({"x": [1, None, None]}), "column 'x': 2 of 3 rows"),
            (pa.table({"x": [[1], [2, None], [3]]}), "column 'x': 1 of"),
            (iter([{"x": "a"}, {"x": None}]), "column 'x': 1 of rows 0 to 1"),
            ({"x": np.array(["2020-01-01"] * 3, "M8[D]")}, "datetime64.*convert it to numbers"),
            (pd.DataFrame({"x": pd.to_datetime(["2020-01-01"] * 3)}), "datetime64.*convert it to numbers"),
            (pd.DataFrame({"x": pd.to_datetime(["2020-01-01"] * 3, utc=True)}), "datetime64.*convert it to numbers"),
            (pa.table({"x": pa.array([1, 2, 3], pa.timestamp("s"))}), "timestamp.*convert it to numbers"),
            (pa.table({"x": [{"a": 1}] * 3}), "struct.*convert"),
            (pa.table({"x": [["a"]] * 3}), "list of str"),
            (pa.table({"x": [[[1], [2, 3]]] * 3}), "row 0: has lists of different lengths"),
            ({"x": np.ones(3, np.longdouble)}, "dtype .*128"),
            ({"x": np.ones(3, [("a", int)])}, "dtype"),
            ({"x": np.array([["a", "b"]] * 3)}, "in 1 dimensions"),
            ({"x": [object()] * 3}, "column 'x', row 0"),
            ({"x": [{"a": 1}] * 3}, "column 'x', row 0"),
            ({"x": [[1, [2]]] * 3}, "column 'x', row 0"),
            ({"x": ["\ud800"] * 3}, "cannot be encoded as UTF-8"),
            ({"x": torch.zeros(3, dtype=torch.float8_e5m2)}, "float8"),
            (iter([{"a": 1}, {"b": 1}]), r"row 1: has the columns \['b'\], but row 0 has \['a'\]"),
            (iter([(1, 2), (1, 2, 3)]), "row 1: has the columns"),
            (iter([{"a": 1}, {"a": 1.5}]), "column 'a', row 1: float64"),
            (
                iter([{"a": 1}, {"a": "b"}]),
                r"column 'a': mixes int \(row 0\) and str \(row 1\); convert all rows to one",
            ),
            (
                {"a": [1, "b", 2, 3, 4, b"c"]},
                r"mixes int \(rows 0, 2, 3, \.\.\.\) and str \(row 1\) and bytes \(row 5\)",
            ),
            (pd.DataFrame({"a": [1, "b", 2.5]}), r"mixes int \(row 0\) and str \(row 1\) and float \(row 2\)"),
            ((np.ones((3, 2)), np.ones(4)), "columns 'x' and 'y': have 3 and 4 rows"),
            ((np.ones((3, 2)), 5), "column 'y': has type int"),
            ((pd.DataFrame({"a": ["b"] * 3}), np.ones(3)), r"the DataFrame in \(X, y\).*X.assign\(y=y\)"),
            ([np.ones((3, 2)), np.ones(3)], r"shapes \[3, 2\], \[3\] would be read as one row each.*\(X, y\)"),
            ({"x": [[[1, 2], [3]]] * 3}, "column 'x', row 0: cannot be converted.*pad nested lists to one length"),
            (iter([np.ones(2), np.ones(2), np.ones((2, 2))]), "column 'x', row 2: float64 in 2 dimensions"),
            (iter([np.ones(2), np.ones(2, "f4")]), "column 'x', row 1: float32"),
            (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3))), "loader.dataset"),
            ("/no/such.parquet", "/no/such.parquet: no such file"),
            (__file__, "cannot be read as a Parquet file"),
            (str(Path(__file__).parent), r"has no \*.parquet files"),
        ],
    )
    def test_names_value_and_remedy(self, tmp_path: Path, source: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            partition(source, tmp_path / "set", partitions=2)
        assert list(tmp_path.iterdir()) == []

    def test_of_a_later_chunk_names_the_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sources, "CHUNK_ROWS", 10)
        for odd in (1.5, "text", np.ones(2)):
            with pytest.raises(DataError, match="column 'x', row 30"):
                partition(({"x": odd if i == 30 else i} for i in range(31)), tmp_path / "set")
        for name, kind in (("a", int), ("b", float)):
            pq.write_table(pa.table({"x": np.ones(10, kind)}), tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match="column 'x', row 10: float64"):
            partition(tmp_path, tmp_path / "set")

    @pytest.mark.parametrize("partitions", [0, -1])
    def test_of_the_number_of_partitions(self, tmp_path: Path, partitions: int) -> None:
        with pytest.raises(DataError, match=f"partitions={partitions}: must be an integer of at least 1"):
            partition({"x": [1]}, tmp_path / "set", partitions=partitions)
