"""Folds whose data has statistics of their own: each model has the bits of a plain loop over the rows of its fold."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.errors import DataError, ExperimentExists, UsageError
from hopfleet.frameworks.torch.engines.interleaved import Interleaved
from hopfleet.frameworks.torch.framework import TorchFramework
from tests.helpers.plain_loop import train_in_sequence
from tests.helpers.sample_tasks import Everything, Plain, arrays
from tests.helpers.states import assert_same_state

SEED, ROWS, PARTS, FOLDS = 5, 80, 4, 3


class Scaled(hop.Recipe):
    """Images with mean 0 and deviation 1 over the training rows."""

    def fit(self, batch: Any) -> Mapping[str, Any]:
        return {"x": hop.Moments.of(batch["x"].reshape(-1))}

    def apply(self, batch: Any, fitted: Mapping[str, Any]) -> Any:
        x = (batch["x"] - fitted["x"].mean) / fitted["x"].deviation
        return {"x": x.astype(np.float32), "y": batch["y"]}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    return tmp_path


def prepared(folder: Path, folds: int = FOLDS) -> hop.Dataset:
    return hop.prepare(arrays(ROWS), folder, Scaled(), partitions=PARTS, folds=folds, quiet=True, seed=3)


def experiment(task: hop.TorchTask, data: hop.Dataset, folds: int = FOLDS, **more: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "space": {"optimizer": "adam", "schedule": "cosine", "lr": hop.grid_search([0.1, 0.2])},
        "search": hop.Grid(max_epochs=2),
        "backend": "inline",
        **more,
    }
    return hop.Experiment(
        task, train=data, valid=f"kfold({folds})", metric="accuracy", mode="max", seed=SEED, name="folds",
        batch_size=8, **given,
    )  # fmt: skip


def check_bits(task: hop.TorchTask, results: hop.Results[Any], data: hop.Dataset, home: Path) -> None:
    """Compare each model with a plain loop over the folder of its fold, and metrics with those of the fold's rows."""
    for trial in results.trials:
        with zipfile.ZipFile(trial.last_checkpoint) as archive:
            archive.extractall(home / trial.id)
        right = 0
        for fold, rows in enumerate(data.folds):
            visits = [[number for number in epoch if number % FOLDS != fold] for epoch in trial.visits]
            model, optimizer, schedule = train_in_sequence(
                task, Path(rows.url), config=trial.config, trial_seed=trial.seed, seed=SEED, visits=visits, batch_size=8
            )
            assert_same_state(home / trial.id / "models" / str(fold), model, optimizer, schedule)
            for number in range(fold, PARTS, FOLDS):
                (batch,) = rows.batches(number, batch_size=ROWS)
                some = {name: torch.from_numpy(np.array(value)) for name, value in batch.items()}
                right += round(float(task.metrics(model.eval(), some)["accuracy"]) * len(batch["y"]))
        assert trial.history[-1]["accuracy"] == pytest.approx(right / ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_each_model_equals_a_plain_loop_over_the_rows_of_its_fold(home: Path, backend: str) -> None:
    data = prepared(home / "data")
    results = experiment(Everything(), data, backend=backend, workers=2).fit(quiet=True)
    check_bits(Everything(), results, data, home)
    assert results.verify().ok
    assert replay(results, task=Everything(), backend="inline").ok
    assert experiment(Everything(), data).fit(quiet=True).best.checkpoint == results.best.checkpoint


@pytest.mark.slow
def test_partitions_on_a_device_train_the_models_together(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    mixed = Interleaved.train_mixed

    def counted(self: Any, streams: Any, of: Any, *, last: Any) -> Any:
        kept.append(len(streams))
        return mixed(self, streams, of, last=last)

    class NoNoise(Everything):
        transform = None  # batches of a transform are not kept

    monkeypatch.setattr(TorchFramework, "spare_memory", lambda self, placement: 1 << 30)
    monkeypatch.setattr(Interleaved, "train_mixed", counted)
    data = prepared(home / "data")
    results = experiment(NoNoise(), data).fit(quiet=True)
    check_bits(NoNoise(), results, data, home)
    assert set(kept) == {FOLDS - 1}


def test_a_refit_takes_the_statistics_of_all_rows(home: Path) -> None:
    data = prepared(home / "data")
    results = experiment(Plain(), data, space={"lr": 0.1}).fit(quiet=True)
    final = results.refit(backend="inline", quiet=True)
    assert final.definition["train"]["url"] == data.url and "folds" not in final.definition


def test_other_folds_are_refused(home: Path) -> None:
    data = prepared(home / "data")
    with pytest.raises(UsageError, match=r"was prepared with folds=3; use valid='kfold\(3\)', or prepare .* folds=2"):
        experiment(Plain(), data, folds=2).fit(quiet=True)
    experiment(Plain(), data, space={"lr": 0.1}).fit(quiet=True)
    with pytest.raises(ExperimentExists, match="train: as many rows, but with other values"):
        experiment(Plain(), prepared(home / "plain", folds=0), space={"lr": 0.1}).fit(quiet=True)
    next((home / "data" / "fold-2").glob("*.arrow")).unlink()
    assert "fold-2" in str(hop.load("folds").verify().faults)
    with pytest.raises(DataError, match=r"fold-2.*is missing"):
        experiment(Plain(), data, space={"lr": 0.2}).fit(quiet=True, overwrite=True)


def test_statistics_that_folds_share_are_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment(Plain(), prepared(home / "plain", folds=0), space={"lr": 0.1}).fit(quiet=True)
    said = capsys.readouterr()
    assert "the statistics of Scaled are those of all rows" in said.out + said.err
    assert "prepare the data with folds=3" in said.out + said.err
