"""Tests of trained models on new data: metrics, partitions and workers, raw data, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config
from hopfleet.errors import CheckpointError, DataError, TaskError, UsageError
from hopfleet.frameworks.base import Batches, Session
from hopfleet.runs.evaluation import open_data, recipe_of
from hopfleet.testing.tasks import CountingSession, CountingTask


class MeanSession(CountingSession):
    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        values = np.concatenate([np.asarray(batch["x"], float) for batch in batches])
        if (values < 0).any():
            raise ValueError("a negative number")
        return {"loss": RowSum.of(float(values.mean()) * self.config["number"] / self.units, len(values))}


class MeanTask(CountingTask):
    """Its loss on new rows is their mean, times a number of the configuration, over the units trained."""

    def open(self, config: Config, *, seed: int, placement: Placement, threads: int) -> Session:
        return MeanSession(config)

    def predict(self, model: Any, batch: Any) -> Any:
        if (batch["x"] < 0).any():
            raise ValueError("negative")
        return {"doubled": 2 * batch["x"], "pair": np.stack([batch["x"], batch["x"]], axis=1)}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hop.Results:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    recipe = hop.Tabular({"x": hop.Number("range")})
    data = hop.prepare({"x": [0.0, 1.0, 2.0, 4.0]}, tmp_path / "data", recipe, partitions=2)
    return hop.Experiment(
        MeanTask(), train=data, valid=data, space={"number": hop.grid_search([1, 2, 3])}, batch_size=2,
        search=hop.Grid(max_epochs=2), name="mean", backend="inline",
    ).fit(quiet=True)  # fmt: skip


def test_metrics_are_those_of_the_best_epoch(results: hop.Results, tmp_path: Path) -> None:
    new = hop.partition({"x": [1.0, 2.0, 3.0, 5.0, 9.0]}, tmp_path / "new", partitions=3)
    assert results.best.best_epoch == 2
    assert results.best.test(new, backend="inline") == {"loss": 4.0 / 4}
    found = results.test(tmp_path / "new", top=2, backend="inline", workers=2)
    assert list(found.items()) == [("t0001", {"loss": 1.0}), ("t0002", {"loss": 2.0})]
    assert results.test(new, ["t0003"], backend="inline") == {"t0003": {"loss": 3.0}}


def test_processes_test_too(results: hop.Results, tmp_path: Path) -> None:
    new = hop.partition({"x": [1.0, 2.0, 3.0]}, tmp_path / "new", partitions=2)
    assert results.test(new, top=2, workers=2) == {"t0001": {"loss": 0.5}, "t0002": {"loss": 1.0}}


def test_raw_data_passes_through_the_recipe(results: hop.Results, tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("x\n8\n4\n")
    for raw in (tmp_path / "raw.csv", {"x": [8.0, 4.0]}):
        assert results.best.test(raw, backend="inline") == {"loss": 1.5 / 4}
    (tmp_path / "raw.csv").write_text("z\n8\n4\n")
    with pytest.raises(DataError, match=r"raw\.csv: the rows lack the columns 'x' .* and has 'z' instead"):
        results.best.test(tmp_path / "raw.csv", backend="inline")


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    recipe = hop.Tabular({"zip": hop.Category()})
    data = hop.prepare({"zip": ["007", "A1", "A1"]}, tmp_path / "data", recipe, partitions=1)
    (tmp_path / "raw.csv").write_text("zip\n007\n7\n")
    found = open_data(tmp_path / "raw.csv", ["zip"], recipe_of(data), tmp_path / "new")
    assert found.head()["zip"].tolist() == [2, 0]


def test_what_goes_wrong_is_named(results: hop.Results, tmp_path: Path) -> None:
    other = hop.partition({"y": [1.0, 2.0]}, tmp_path / "other", partitions=1)
    with pytest.raises(DataError, match="lacks the columns x of the training data; it has y"):
        results.best.test(other, backend="inline")
    negative = hop.partition({"x": [-1.0, 2.0]}, tmp_path / "negative", partitions=1)
    with pytest.raises(TaskError, match="t0001 failed: ValueError: a negative number"):
        results.best.test(negative, backend="inline")
    with pytest.raises(UsageError, match="backend='nowhere': unknown"):
        results.best.test(other.url.replace("other", "data"), backend="nowhere")
    os.truncate(results.best.checkpoint, 1)
    with pytest.raises(CheckpointError, match=r"was written|differs|damaged"):
        results.best.test(hop.partition({"x": [1.0]}, tmp_path / "one", partitions=1), backend="inline")


def test_the_command(results: hop.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hop.partition({"x": [1.0, 2.0, 3.0]}, tmp_path / "new", partitions=1)
    words = ["test", "mean", "--data", str(tmp_path / "new"), "--top", "2", "--backend", "inline"]
    assert main(words) == 0 and capsys.readouterr().out == "t0001  loss 0.5\nt0002  loss 1\n"
    assert main([*words, "--trial", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"t0003": {"loss": 1.5}}


def test_tests_are_recorded(results: hop.Results, tmp_path: Path) -> None:
    assert results.tests == []
    new = hop.partition({"x": [1.0, 2.0, 3.0]}, tmp_path / "new", partitions=1)
    results.test(new, top=2)
    results.best.test({"x": [8.0]})
    first, second = results.tests
    assert (first["data"], first["rows"]) == (new.url, 3) and second["data"] == "dict"
    assert first["metrics"] == {"t0001": {"loss": 0.5}, "t0002": {"loss": 1.0}}
    assert {path.suffix for path in results.folder.tests.iterdir()} == {".json"}  # no workspace is left


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Has Ctrl-C raise KeyboardInterrupt, which a process in the background of a shell ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_killed_test_goes_on(results: hop.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = hop.partition({"x": [1.0, 2.0, 3.0, 6.0]}, tmp_path / "new", partitions=4)
    seen: deque[int] = deque()  # a list would count as a constant of the task's code, and other code begins anew
    evaluate = MeanSession.evaluate

    def killed(self: MeanSession, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        seen.append(len(seen))
        if len(seen) == 3:
            signal.default_int_handler(signal.SIGINT, None)  # as Ctrl-C does
        return evaluate(self, batches, seed=seed)

    monkeypatch.setattr(MeanSession, "evaluate", killed)
    with pytest.raises(KeyboardInterrupt):
        results.best.test(new)
    assert results.best.test(new) == {"loss": 3.0 / 4}
    assert len(seen) == 5  # two partitions were done, one was lost, and two were left
    assert results.best.test(new) == {"loss": 3.0 / 4} and len(seen) == 9  # a finished test begins anew


class TestPredictions:
    def test_come_in_the_order_of_the_rows(self, results: hop.Results, tmp_path: Path) -> None:
        raw = {"x": [float(row) for row in range(2500)]}
        table = results.best.predict(raw)
        assert np.allclose(table.column("doubled").to_pylist(), np.arange(2500) / 2)
        assert table.column("pair")[3].as_py() == [0.75, 0.75]
        for ending in ("parquet", "csv", "arrow"):
            path = tmp_path / "out" / f"made.{ending}"
            assert results.best.predict(raw, to=path, batch_size=100) == 2500
            again = hop.prepare(path, tmp_path / ending, partitions=1)
            assert np.allclose(again.head(2500)["doubled"], np.arange(2500) / 2)
        assert list(again.columns) == ["doubled", "pair"]
        assert list(hop.open_dataset(tmp_path / "csv").columns) == ["doubled", "pair_0", "pair_1"]

    def test_that_fail_leave_no_file(self, results: hop.Results, tmp_path: Path) -> None:
        data = hop.partition({"x": [1.0, 2.0, -1.0]}, tmp_path / "new", partitions=1)
        with pytest.raises(TaskError, match="predict\\(\\) failed: ValueError: negative"):
            results.best.predict(data, to=tmp_path / "out" / "made.csv", batch_size=1)
        assert not list((tmp_path / "out").iterdir())
        with pytest.raises(UsageError, match="CountingTask has no predict hook: add one"):
            results.best.predict(data, task=CountingTask())
        with pytest.raises(UsageError, match=r"must end in \.parquet, \.csv, \.arrow"):
            results.best.predict(data, to="made.xlsx")
        with pytest.raises(UsageError, match="to=7: must be a file, a folder"):
            results.best.predict(data, to=7)
        with pytest.raises(UsageError, match="exists already and is no folder of predictions that Hopfleet wrote"):
            results.best.predict(data, to=tmp_path)
        other = type("DataFrame", (), {"__module__": "polars.dataframe"})
        with pytest.raises(UsageError, match="or None for a table"):
            results.best.predict(data, to=other)

    def test_are_written_to_the_same_folder_again(self, results: hop.Results, tmp_path: Path) -> None:
        out = tmp_path / "out" / "made"
        for parts, rows in ((2, [2.0, 4.0]), (1, [6.0]), (1, [6.0])):
            data = hop.partition({"x": rows}, tmp_path / "new", partitions=parts, overwrite=True)
            assert results.best.predict(data, to=out) == len(rows)
            assert pq.read_table(out)["doubled"].to_pylist() == [2 * row for row in rows]
            assert len(list(out.iterdir())) == parts
        assert sorted(path.name for path in out.parent.iterdir()) == [".made.written", "made"]
        (out / "part-00000.parquet").write_text("by hand")
        with pytest.raises(UsageError, match=r"made': exists already and has the file part-00000\.parquet, which has"):
            results.best.predict(data, to=out)
        assert (out / "part-00000.parquet").read_text() == "by hand"

    def test_in_a_folder_have_no_other_files(self, results: hop.Results, tmp_path: Path) -> None:
        class Littering(MeanTask):
            def predict(self, model: Any, batch: Any) -> Any:
                (space,) = tmp_path.glob(".made.inference/*-1")
                (space / ".part-00000.parquet.7").write_text("of a worker that was killed")
                return batch["x"]

        data = hop.partition({"x": [1.0]}, tmp_path / "new", partitions=1)
        results.best.predict(data, to=tmp_path / "made", task=Littering())
        assert [path.name for path in (tmp_path / "made").iterdir()] == ["part-00000.parquet"]

    def test_that_fail_name_the_columns_that_differ(self, results: hop.Results, tmp_path: Path) -> None:
        other = hop.partition({"x": np.array([[1], [2]], "f4"), "z": [1, 2]}, tmp_path / "other", partitions=1)
        lacking = hop.partition({"z": [1, 2]}, tmp_path / "lacking", partitions=1)

        class Strict(MeanTask):
            def predict(self, model: Any, batch: Any) -> Any:
                assert batch["x"].ndim == 1
                return batch["x"]

        for wanted in (None, iter):
            with pytest.raises(TaskError, match=r"^the rows differ from .*: x is float32\[1\], not float32; rename"):
                list(results.best.predict(other, task=Strict(), to=wanted))
            with pytest.raises(
                DataError, match=r"lacking: has none of the columns x of .*; it has z; rename the columns"
            ):
                list(results.best.predict(lacking, task=Strict(), to=wanted))
            with pytest.raises(DataError, match=r"^data: has none of the columns x"):
                open_data({"z": [1, 2]}, ["x"], None, tmp_path / "table", labelled=False)

    def test_need_no_labels(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
        rows = hop.partition({"x": [1.0, 2.0], "y": [0, 1]}, tmp_path / "rows", partitions=1)
        options: dict[str, Any] = {"space": {"number": 1}, "search": hop.Grid(max_epochs=1), "batch_size": 2}
        found = hop.Experiment(MeanTask(), train=rows, valid=rows, backend="inline", **options).fit(quiet=True)
        assert found.best.predict({"x": [3.0]}).column("doubled").to_pylist() == [6.0]
        with pytest.raises(TaskError, match=r"(?s)^the rows differ from .*: x is missing; rename.*KeyError: 'x'"):
            found.best.predict({"y": [1]})

    def test_go_where_they_are_wanted(self, results: hop.Results, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas")
        data = hop.partition({"x": [1.0, 2.0, 3.0]}, tmp_path / "new", partitions=2)
        wanted = results.best.predict(data).column("doubled").to_pylist()
        frame = results.best.predict(data, to=pandas.DataFrame)
        assert isinstance(frame, pandas.DataFrame) and frame["doubled"].tolist() == wanted
        batches = list(results.best.predict(data, to=iter, batch_size=1))
        assert [batch.column("doubled")[0].as_py() for batch in batches] == wanted
        assert results.best.predict(data, to=tmp_path / "parts") == 3
        assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
            "part-00000.parquet",
            "part-00001.parquet",
        ]
        again = hop.prepare(tmp_path / "parts" / "*.parquet", tmp_path / "again", partitions=1)
        assert again.head(3)["doubled"].tolist() == wanted

    @pytest.mark.slow
    def test_large_partitions_are_divided_among_workers(
        self, results: hop.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hopfleet.runs.inference.PIECE_ROWS", 3)
        wanted = [2.0 * row for row in range(8)]
        data = hop.partition({"x": np.array(wanted) / 2, "text": ["some"] * 8}, tmp_path / "new", partitions=1)
        order = data.head(8)["x"]
        assert results.best.predict(data, to=tmp_path / "parts", workers=2) == 8
        assert len(list((tmp_path / "parts").iterdir())) == 3
        assert results.best.predict(data, workers=2).column("doubled").to_pylist() == (2 * order).tolist()

    @pytest.mark.usefixtures("interruptible")
    def test_go_on_after_a_kill(self, results: hop.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = hop.partition({"x": [1.0, 2.0, 3.0]}, tmp_path / "new", partitions=3)
        seen: deque[float] = deque()
        predict = MeanTask.predict

        def killed(self: MeanTask, model: Any, batch: Any) -> Any:
            seen.append(batch["x"][0])
            if len(seen) == 3:
                signal.default_int_handler(signal.SIGINT, None)  # as Ctrl-C does
            return predict(self, model, batch)

        monkeypatch.setattr(MeanTask, "predict", killed)
        with pytest.raises(KeyboardInterrupt):
            results.best.predict(data, to=tmp_path / "made.csv")
        assert not (tmp_path / "made.csv").exists()
        (first,) = (tmp_path / ".made.csv.inference").glob("*/part-00000.arrow")
        first.unlink()  # what the journal has as done is checked
        assert results.best.predict(data, to=tmp_path / "made.csv") == 3
        assert list(seen)[3:] == [seen[0], seen[2]]
        assert not list(tmp_path.glob(".made*"))

    def test_must_be_alike_for_all_rows(self, results: hop.Results, tmp_path: Path) -> None:
        class Moody(MeanTask):
            def predict(self, model: Any, batch: Any) -> Any:
                return batch["x"] if batch["x"][0] > 1 else ["text"]

        data = hop.partition({"x": [1.0, 2.0]}, tmp_path / "new", partitions=1)
        with pytest.raises(TaskError, match=r"returned prediction: .* for some rows and prediction: .* for others"):
            results.best.predict(data, task=Moody(), batch_size=1)

    def test_the_command(self, results: hop.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "raw.csv").write_text("x\n8\n4\n")
        assert main(["predict", "mean", "--data", str(tmp_path / "raw.csv"), "--to", str(tmp_path / "made.csv")]) == 0
        assert (tmp_path / "made.csv").read_text().splitlines()[1:] == ["4,2,2", "2,1,1"]
        assert capsys.readouterr().out.startswith("2 predictions of t0001 in ")
