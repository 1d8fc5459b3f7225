"""Refitting: a configuration trained anew on all data, without a copy of the rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.data.partitioning import join
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config
from hopfleet.errors import DataChanged, DataError, ExperimentExists, NotFound, UsageError
from hopfleet.frameworks.base import Batches, Session
from hopfleet.testing.tasks import CountingSession, CountingTask


class WorseSession(CountingSession):
    """Its training loss grows, and its validation loss is smallest after four units."""

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        super().train(batches, last=last)
        return {"train_loss": RowSum.of(float(self.units), batches.rows)}

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        return {"loss": RowSum.of(abs(self.units - 4.0) + self.config["number"], batches.rows)}


class WorseTask(CountingTask):
    def open(self, config: Config, *, seed: int, placement: Placement, threads: int) -> Session:
        return WorseSession(config)

    def predict(self, model: Any, batch: Any) -> Any:
        return batch["x"] + model[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    return tmp_path


def searched(train: Any, valid: Any, **options: Any) -> hop.Results:
    return hop.Experiment(
        WorseTask(), train=train, valid=valid, space={"number": hop.grid_search([1, 2])}, batch_size=2,
        search=hop.Grid(max_epochs=4), name="worse", backend="inline", **options,
    ).fit(quiet=True)  # fmt: skip


@pytest.fixture
def results(home: Path) -> hop.Results:
    recipe = hop.Tabular({"x": hop.Number("range")})
    whole = {"x": [float(row) for row in range(8)], "part": ["train", "valid"] * 4}
    data = hop.prepare(whole, home / "data", recipe, partitions=2, split=hop.Split(column="part"), quiet=True)
    return searched(data["train"], data["valid"])


def test_all_rows_are_seen_until_the_best_epoch_and_the_last_model_is_kept(results: hop.Results, home: Path) -> None:
    assert results.best.best_epoch == 2
    again = results.refit(backend="inline", quiet=True)
    assert (again.name, len(again), again.best.config) == ("worse-refit", 1, {"number": 1})
    assert [sorted(epoch) for epoch in again.best.visits] == [[0, 1, 2, 3]] * 2
    assert again.best.best_epoch == 2 and again.best.model() == [8, 16]
    assert again.best.metrics == {"epoch": 2.0, "train_loss": 6.5}  # that of the first epoch is 2.5
    assert hop.load("worse-refit").best.model(WorseTask()) == [8, 16]
    assert again.verify().ok


def test_no_row_is_copied_and_the_recipe_comes_along(results: hop.Results, home: Path) -> None:
    again = results.refit(backend="inline", quiet=True)
    linked = sorted((again.folder.data / "train").glob("*.arrow"))
    files = [*sorted((home / "data/train").glob("*.arrow")), *sorted((home / "data/valid").glob("*.arrow"))]
    assert [path.stat().st_ino for path in linked] == [path.stat().st_ino for path in files]
    assert again.best.predict({"x": [0.0, 6.0]}).to_pydict() == {"prediction": [16.0, 17.0]}


def test_another_trial_other_epochs_and_other_data(results: hop.Results) -> None:
    options: dict[str, Any] = {"backend": "inline", "quiet": True}
    other = results.refit("t0002", on={"x": np.arange(6.0)}, epochs=3, name="other", **options)
    assert other.best.config == {"number": 2} and other.best.model() == [3, 18]
    assert results.refit("t0002", on={"x": np.arange(6.0)}, epochs=3, name="other", **options).best.model() == [3, 18]
    with pytest.raises(ExperimentExists, match=r"search\.max_epochs: 3 before, 1 now"):
        results.refit("t0002", on={"x": np.arange(6.0)}, epochs=1, name="other", **options)
    replaced = results.refit(epochs=1, name="other", overwrite=True, **options)
    assert replaced.best.model() == [4, 8]


def test_the_command(results: hop.Results, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["refit", "worse", "--trial", "2", "--epochs", "3", "--as", "final", "--backend", "inline", "--quiet"]
    assert main(words) == 0
    assert capsys.readouterr().out == "t0001 of final: the configuration of t0002, trained for 3 epochs\n"
    assert hop.load("final").best.config == {"number": 2}
    assert main(["refit", "worse", "--epochs", "some"]) == 2
    assert "epochs='some': must be a number of epochs, or 'best'" in capsys.readouterr().err


def test_data_in_the_run_folder_is_joined_too(home: Path) -> None:
    found = searched({"x": np.arange(4.0)}, {"x": np.arange(2.0)}, run_options=hop.RunOptions(folder=home / "own"))
    again = found.refit(backend="inline", quiet=True)
    assert again.folder.path == home / "worse-refit"
    assert again.best.model() == [8, 24]  # four epochs of both partitions


def test_processes_refit_too(results: hop.Results) -> None:
    assert results.refit(workers=1, quiet=True).best.model() == [8, 16]


class TestWhatGoesWrong:
    def test_without_validation_data(self, home: Path) -> None:
        found = searched({"x": np.arange(4.0)}, None)
        with pytest.raises(UsageError, match=r"on='train\+valid': worse has no validation data; pass the data"):
            found.refit(backend="inline")

    def test_a_number_of_epochs(self, results: hop.Results) -> None:
        for epochs, message in ((0, "epochs=0: must be an integer of at least 1"), ("all", "epochs='all': must be")):
            with pytest.raises(UsageError, match=message):
                results.refit(epochs=epochs, backend="inline")
        with pytest.raises(NotFound, match="no such trial"):
            results.refit("t0009", backend="inline")

    def test_a_small_validation_set(self, home: Path) -> None:
        found = searched({"x": np.arange(4.0)}, {"x": np.arange(1.0)})
        with pytest.raises(UsageError, match=r"a batch has 2 rows, but the smallest partition .* only 1; pass"):
            found.refit(backend="inline")

    def test_other_columns_are_named(self, home: Path) -> None:
        found = searched({"x": np.arange(4.0)}, {"x": np.arange(2, dtype="f4")})
        with pytest.raises(DataError, match=r"their columns differ \(x: float64 and float32\); make both"):
            found.refit(backend="inline", quiet=True)
        assert not (home / "home/worse-refit").exists()


class TestJoin:
    def test_needs_the_same_columns(self, tmp_path: Path) -> None:
        made = {
            name: hop.partition(columns, tmp_path / name, partitions=1)
            for name, columns in {
                "xy": {"x": [1], "y": [2]},
                "yx": {"y": [1], "x": [2]},
                "xz": {"x": [1.5], "z": ["a"]},
                "live": hop.live([1, 2]),
            }.items()
        }
        for second, message in {
            "xz": r"\(x: int64 and float64; y: int64 and missing; z: missing and str\)",
            "yx": r"\(the order is x, y and y, x\)",
            "live": "live: is a live data set, which cannot be joined",
        }.items():
            with pytest.raises(DataError, match=message):
                join([made["xy"], made[second]], tmp_path / "both")
        assert not (tmp_path / "both").exists()

    def test_the_same_again_changes_nothing_and_other_data_is_refused(self, tmp_path: Path) -> None:
        one, two = (hop.partition({"x": [n, n, n]}, tmp_path / str(n), partitions=n) for n in (1, 2))
        both = join([one, two], tmp_path / "both")
        assert both.partition_rows == (*one.partition_rows, *two.partition_rows) and both.seed == one.seed
        assert both.head(9)["x"].tolist() == [1, 1, 1, 2, 2, 2]
        assert join([one, two], tmp_path / "both").fingerprint == hop.open_dataset(tmp_path / "both").fingerprint
        with pytest.raises(DataChanged, match="rows 6 → 3"):
            join([two], tmp_path / "both")

    def test_a_damaged_join_is_made_again(self, tmp_path: Path) -> None:
        data = hop.partition({"x": [1, 2]}, tmp_path / "data", partitions=1)
        join([data, data], tmp_path / "both")
        (tmp_path / "both/part-00001.arrow").unlink()
        assert sorted(join([data, data], tmp_path / "both").head()["x"]) == [1, 1, 2, 2]

    def test_files_of_another_file_system_are_symbolic_links(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = hop.partition({"x": [1, 2]}, tmp_path / "data", partitions=1)

        def across(self: Path, target: Path) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", across)
        both = join([data, data], tmp_path / "both")
        assert (tmp_path / "both/part-00001.arrow").is_symlink()
        both.check(checksums=True)
        assert both.rows == 4

    def test_a_remote_data_set_is_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
        data = hop.partition({"x": [1, 2]}, "memory://refit/data", partitions=1)
        assert join([data, data], tmp_path / "both").rows == 4
