"""Columns of the rows beside predictions, and predictions for no rows."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.errors import DataError, TaskError, UsageError
from hopfleet.testing.tasks import CountingTask

ROWS = 7


class Doubling(CountingTask):
    """A task that knows the column x alone, and says so."""

    def transform(self, batch: Any, rng: Any) -> Any:
        assert set(batch) <= {"x", "id", "y"}, f"a task was given {sorted(batch)}"
        return {"x": batch["x"]}

    def predict(self, model: Any, batch: Any) -> Any:
        return {"double": 2 * batch["x"]}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hop.Results:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    recipe = hop.Tabular({"x": hop.Number(None)})
    data = hop.prepare({"x": [1.0, 2.0]}, tmp_path / "data", recipe, partitions=1)
    return hop.Experiment(
        Doubling(), train=data, space={"number": 1}, search=hop.Grid(max_epochs=1), batch_size=2, name="doubling",
        metric="train_loss", backend="inline",
    ).fit(quiet=True)  # fmt: skip


def raw(**more: Any) -> pa.Table:
    return pa.table({"x": np.arange(ROWS, dtype=float), "id": [f"{row:03d}" for row in range(ROWS)], **more})


WANTED = {"id": [f"{row:03d}" for row in range(ROWS)], "double": [2.0 * row for row in range(ROWS)]}


def test_columns_stand_before_predictions(results: hop.Results, tmp_path: Path) -> None:
    assert results.best.predict(raw(), keep="id").to_pydict() == WANTED
    batches = list(results.best.predict(raw(), keep=["id"], to=iter, batch_size=2))
    assert pa.Table.from_batches(batches).to_pydict() == WANTED and len(batches) == 4
    for ending in (".parquet", ".csv", ".arrow"):
        assert results.best.predict(raw(), keep=["id"], to=tmp_path / f"made{ending}") == ROWS
    assert pq.read_table(tmp_path / "made.parquet").to_pydict() == WANTED
    assert results.best.predict(raw(), keep=["id", "x"], to=tmp_path / "folder") == ROWS
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["part-00000.parquet"]
    assert pq.read_table(tmp_path / "folder").to_pydict() == {**WANTED, "x": [*map(float, range(ROWS))]}
    results.best.export(tmp_path / "bundle", format="bundle")
    assert hop.load_bundle(tmp_path / "bundle").predict(raw(), keep="id").to_pydict() == WANTED


def test_columns_of_rows_in_several_pieces(
    results: hop.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopfleet.runs.inference.PIECE_ROWS", 3)
    assert results.best.predict(raw(), keep="id").to_pydict() == WANTED
    assert results.best.predict(raw(), keep="id", to=tmp_path / "folder") == ROWS
    assert len(list((tmp_path / "folder").iterdir())) == 3
    assert pq.read_table(tmp_path / "folder").to_pydict() == WANTED


@pytest.mark.slow
def test_columns_of_rows_that_processes_predict(
    results: hop.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopfleet.runs.inference.PIECE_ROWS", 3)
    assert results.best.predict(raw(), keep="id", workers=2).to_pydict() == WANTED


@pytest.mark.parametrize(
    "values",
    [
        [1, None, -(2**62)],
        [0.1, None, float("inf")],
        ["", None, 'a "b"\n'],
        [True, None, False],
        [datetime.datetime(2024, 5, 1, 12, 30, 0, 5), None, datetime.datetime(1, 1, 1)],
        [datetime.date(2024, 5, 1), None, None],
        [datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC), None, None],
        [Decimal("1.50"), None, Decimal("-3.25")],
        [None, None, None],
        pa.array(["b", None, "a"]).dictionary_encode(),
    ],
    ids=["integers", "floats", "text", "truth", "times", "dates", "zoned", "decimals", "nothing", "coded"],
)
def test_values_come_back_as_they_were(results: hop.Results, values: Any) -> None:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    found = results.best.predict(pa.table({"x": [1.0, 2.0, 3.0], "kept": column}), keep="kept").column("kept")
    assert found.to_pylist() == column.to_pylist()
    assert pa.types.is_dictionary(column.type) or pa.types.is_null(column.type) or found.type == column.type


def test_columns_of_a_data_set_are_kept_as_stored(results: hop.Results, tmp_path: Path) -> None:
    rows = {"x": np.arange(4.0), "id": ["a", "b", "c", "d"], "pair": np.arange(8).reshape(4, 2)}
    data = hop.partition({name: rows[name] for name in ("x", "id")}, tmp_path / "rows", partitions=2)
    made = results.best.predict(data, keep=["id"]).to_pydict()
    assert made["double"] == [2.0 * "abcd".index(name) for name in made["id"]]

    class Untouched(Doubling):
        def transform(self, batch: Any, rng: Any) -> Any:
            return batch

    data = hop.partition(rows, tmp_path / "pairs", partitions=1)
    found = results.best.predict(data, keep=["pair"], task=Untouched()).to_pydict()
    assert [pair[0] for pair in found["pair"]] == found["double"]


def test_a_label_may_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    recipe = hop.Tabular({"x": hop.Number(None)}, labels="y")
    data = hop.prepare({"x": [1.0, 2.0], "y": [0, 1]}, tmp_path / "data", recipe, partitions=1)
    results = hop.Experiment(
        Doubling(), train=data, space={"number": 1}, search=hop.Grid(max_epochs=1), batch_size=2, metric="train_loss",
        backend="inline",
    ).fit(quiet=True)  # fmt: skip
    new = {"x": [5.0, 6.0], "y": ["what it was", None]}
    assert results.best.predict(new, keep="y").to_pydict() == {"y": ["what it was", None], "double": [10.0, 12.0]}


def test_mistakes(results: hop.Results, tmp_path: Path) -> None:
    data = hop.partition({"x": [1.0]}, tmp_path / "rows", partitions=1)
    for rows in (raw(), data):
        with pytest.raises(DataError, match="keep='idd': the rows have no such column; "):
            results.best.predict(rows, keep="idd")
    with pytest.raises(
        DataError, match=r"keep='bytes': is a column of list<item: int64>; keep numbers, texts and dates"
    ):
        results.best.predict(pa.table({"x": [1.0], "bytes": [[1]]}), keep="bytes")
    with pytest.raises(TaskError, match=r"keep='double': predict.. returns a column of this name, too"):
        results.best.predict(pa.table({"x": [1.0], "double": [1]}), keep="double")
    for wrong in (3, [3], {"id": 1}):
        with pytest.raises(UsageError, match=r"keep=.*: must be names of columns"):
            results.best.predict(raw(), keep=wrong)  # type: ignore[arg-type]


def test_no_rows_have_no_predictions(results: hop.Results, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("x,id\n", encoding="utf-8")
    for rows in (raw().slice(0, 0), {"x": []}, tmp_path / "none.csv"):
        found = results.best.predict(rows)
        assert found.num_rows == 0 and found.schema.names == ["double"]
        assert [batch.num_rows for batch in results.best.predict(rows, to=iter)] == [0]
    assert results.best.predict(raw().slice(0, 0), keep="id").schema.names == ["id", "double"]
    assert results.best.predict(raw().slice(0, 0), to=tmp_path / "none.parquet") == 0
    assert pq.read_table(tmp_path / "none.parquet").schema.names == ["double"]
    assert results.best.predict(raw().slice(0, 0), to=tmp_path / "folder") == 0


def test_the_command(results: hop.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "raw.csv").write_text("x,id\n1,a\n2,b\n", encoding="utf-8")
    made = tmp_path / "made.csv"
    assert main(["predict", "doubling", "--data", str(tmp_path / "raw.csv"), "--to", str(made), "--keep", "id, x"]) == 0
    assert made.read_text() == '"id","x","double"\n"a",1,2\n"b",2,4\n'
