"""Tests of trained models on new data: metrics, partitions and workers, raw data, and what goes wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.domain.messages import UnitFailed, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config, Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import DataError, TaskError, UsageError
from hopfleet.frameworks.base import Batches, Session
from hopfleet.runs.evaluation import Candidate, EvaluationController
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
    with pytest.raises(DataError, match=r"raw\.csv, line 2: the rows lack the columns 'x' .* and has 'z' instead"):
        results.best.test(tmp_path / "raw.csv", backend="inline")


def test_what_goes_wrong_is_named(results: hop.Results, tmp_path: Path) -> None:
    other = hop.partition({"y": [1.0, 2.0]}, tmp_path / "other", partitions=1)
    with pytest.raises(DataError, match="lacks the columns x of the training data; it has y"):
        results.best.test(other, backend="inline")
    negative = hop.partition({"x": [-1.0, 2.0]}, tmp_path / "negative", partitions=1)
    with pytest.raises(TaskError, match="t0001 cannot be tested: ValueError: a negative number"):
        results.best.test(negative, backend="inline")
    with pytest.raises(UsageError, match="backend='nowhere': unknown"):
        results.best.test(other.url.replace("other", "data"), backend="nowhere")
    os.truncate(results.best.checkpoint, 1)
    with pytest.raises(TaskError, match="t0001 cannot be tested"):
        results.best.test(hop.partition({"x": [1.0]}, tmp_path / "one", partitions=1), backend="inline")


def test_the_command(results: hop.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hop.partition({"x": [1.0, 2.0, 3.0]}, tmp_path / "new", partitions=1)
    words = ["test", "mean", "--data", str(tmp_path / "new"), "--top", "2", "--backend", "inline"]
    assert main(words) == 0 and capsys.readouterr().out == "t0001  loss 0.5\nt0002  loss 1\n"
    assert main([*words, "--trial", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"t0003": {"loss": 1.5}}


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
        with pytest.raises(TaskError, match="CountingTask has no predict"):
            results.best.predict(data, task=CountingTask())
        with pytest.raises(UsageError, match=r"must end in \.parquet, \.csv, \.arrow"):
            results.best.predict(data, to="made.xlsx")

    def test_the_command(self, results: hop.Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "raw.csv").write_text("x\n8\n4\n")
        assert main(["predict", "mean", "--data", str(tmp_path / "raw.csv"), "--to", str(tmp_path / "made.csv")]) == 0
        assert (tmp_path / "made.csv").read_text().splitlines()[1:] == ["4,2,2", "2,1,1"]
        assert capsys.readouterr().out.startswith("2 predictions of t0001 in ")


class TestController:
    def made(self) -> EvaluationController:
        trial = Trial("t0001", 1, {}, 0, 1)
        return EvaluationController([Candidate(trial, 1, VersionRef("t0001", 1, 1), "")], 2)

    def finished(self, command: Any, worker: str) -> UnitFinished:
        sums = {"loss": RowSum.of(1.0, 1)}
        return UnitFinished(worker, command.unit, command.attempt, 1, 0.0, 1.0, False, sums)

    def test_units_of_lost_workers_are_done_again(self) -> None:
        controller = self.made()
        one, two = controller.take([WorkerJoined("w1", Placement.on("cpu")), WorkerJoined("w2", Placement.on("cpu"))])
        controller.take([WorkerLost("w1", "killed"), self.finished(two, "w2")])
        assert not controller.finished
        late = self.finished(one, "w1")  # a report that came too late does not count
        controller.take([late])
        assert not controller.finished

    def test_three_losses_end_the_test(self) -> None:
        controller = self.made()
        for number in range(3):
            controller.take([WorkerJoined(f"w{number}", Placement.on("cpu"))])
            controller.take([WorkerLost(f"w{number}", "killed")])
        assert controller.finished and "3 workers were lost; the last one: killed" in controller.error

    def test_a_failure_that_is_not_running_does_not_count(self) -> None:
        controller = self.made()
        unit = Unit("t0001", 1, 0, Work.EVALUATE)
        controller.take([UnitFailed("w9", unit, 7, 0.0, 1.0, "late", "", "")])
        assert not controller.finished and controller.error == ""
