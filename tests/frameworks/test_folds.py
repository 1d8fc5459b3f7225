"""Cross-validation: a model for each fold, with the bits of a plain loop, and every row validated once."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.errors import CheckpointError, ExperimentExists, TaskError, UsageError
from hopfleet.frameworks.folds import FoldedTask
from tests.helpers.plain_loop import train_in_sequence
from tests.helpers.sample_tasks import Adapters, Everything, Plain, arrays
from tests.helpers.states import assert_same_state

SEED = 5


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    return tmp_path


def experiment(task: hop.TorchTask, train: Any, folds: int = 3, **more: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "space": {"optimizer": "adam", "schedule": "cosine", "lr": hop.grid_search([0.1, 0.2])},
        "search": hop.Grid(max_epochs=2),
        "backend": "inline",
        **more,
    }
    return hop.Experiment(
        task, train=train, valid=f"kfold({folds})", metric="accuracy", mode="max", seed=SEED, name="folds",
        batch_size=8, **given,
    )  # fmt: skip


def parts(checkpoint: Path, folder: Path) -> list[Path]:
    with zipfile.ZipFile(checkpoint) as archive:
        archive.extractall(folder)
    return sorted((folder / "models").iterdir(), key=lambda path: int(path.name))


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "workers"), [("inline", 2), pytest.param("local", 2, marks=pytest.mark.slow)])
def test_each_model_equals_training_alone(home: Path, backend: str, workers: int) -> None:
    data = hop.partition(arrays(60), home / "train", partitions=4, seed=3)
    task = Everything()
    results = experiment(task, data, backend=backend, workers=workers).fit(quiet=True)
    assert results.verify().ok and not list(results.folder.path.rglob("*.arrow"))
    for trial in results.trials:
        assert [sorted(epoch) for epoch in trial.visits] == [[0, 1, 2, 3]] * 2
        correct = 0
        for fold, part in enumerate(parts(trial.last_checkpoint, home / trial.id)):
            visits = [[number for number in epoch if number % 3 != fold] for epoch in trial.visits]
            model, optimizer, schedule = train_in_sequence(
                task, home / "train", config=trial.config, trial_seed=trial.seed, seed=SEED, visits=visits, batch_size=8
            )
            assert_same_state(part, model, optimizer, schedule)
            for number in range(fold, 4, 3):
                (batch,) = data.batches(number, batch_size=60)
                found = task.metrics(model.eval(), {name: _tensor(value) for name, value in batch.items()})
                correct += round(float(found["accuracy"]) * len(batch["y"]))
        assert trial.history[-1]["accuracy"] == pytest.approx(correct / 60)


def _tensor(value: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(value))


@pytest.mark.slow
def test_a_run_is_replayed_and_not_trained_twice(home: Path) -> None:
    data = hop.partition(arrays(60), home / "train", partitions=4)
    results = experiment(Everything(), data).fit(quiet=True)
    assert replay(results, task=Everything(), backend="inline").ok
    assert experiment(Everything(), data).fit(quiet=True).best.checkpoint == results.best.checkpoint
    with pytest.raises(ExperimentExists, match="folds: 3 before, 2 now"):
        experiment(Everything(), data, folds=2).fit(quiet=True)


def test_one_model_for_all_rows_comes_from_a_refit(home: Path) -> None:
    results = experiment(Plain(), arrays(60), folds=4, space={"lr": 0.1}).fit(quiet=True)
    assert results.definition["train"]["partitions"] == 4  # rows that are not partitioned get enough partitions
    with pytest.raises(UsageError, match=r"a trial of 4 folds has 4 models.*; 'torch.*' or .*results\.refit\(\)"):
        results.best.export(home / "weights.safetensors")
    with pytest.raises(UsageError, match="holds a model for each fold"):
        hop.state_dict(results)
    assert not results.folder.best.exists()
    final = results.refit(backend="inline", quiet=True)
    assert final.definition["train"]["rows"] == 60
    assert final.best.model()(_tensor(arrays(4)["x"])).shape[0] == 4


def test_clones_and_frozen_tensors(home: Path) -> None:
    results = experiment(
        Adapters(), arrays(60), folds=2, space={"lr": hop.uniform(0.01, 0.1), "rank": 2},
        search=hop.PBT(population=2, max_epochs=3, interval=1),
    ).fit(quiet=True)  # fmt: skip
    assert [trial.error for trial in results.trials] == [None] * len(results.trials)
    assert any(trial.parent for trial in results.trials)
    assert results.verify().ok


class TestWhatGoesWrong:
    def test_in_the_arguments(self, home: Path) -> None:
        class Own(Plain):
            def train(self, model: Any, optimizer: Any, batches: Any) -> Any:
                return {}

        for folds in ("kfold(1)", "kfold()", "kfold(x)"):
            with pytest.raises(UsageError, match=r"needs a number of folds of at least 2, as in valid='kfold\(5\)'"):
                hop.Experiment(Plain(), train=arrays(), valid=folds, space={"lr": 0.1})
        with pytest.raises(UsageError, match="cannot train together: it owns its training loop"):
            experiment(Own(), arrays())
        with pytest.raises(UsageError, match="needs parallelism='single'"):
            experiment(Plain(), arrays(), parallelism="ddp:2")
        with pytest.raises(UsageError, match=r"fuse='fast': trials with valid='kfold.3.' do not train together"):
            experiment(Plain(), arrays(), worker_options=hop.WorkerOptions(fuse="fast"))

    def test_too_few_partitions(self, home: Path) -> None:
        data = hop.partition(arrays(60), home / "train", partitions=2)
        with pytest.raises(UsageError, match="needs at least 3 partitions, and the training data has 2; use more"):
            experiment(Plain(), data).fit(quiet=True)

    def test_a_damaged_version(self, home: Path) -> None:
        from hopfleet.domain.placement import CPU

        framework = FoldedTask(Plain(), 2, 2).framework
        session = framework.open({"lr": 0.1}, seed=1, placement=CPU, threads=1)
        session.save(home / "version.safetensors")
        again = (home / "version.safetensors").read_bytes()
        session.load(home / "version.safetensors")
        session.save(home / "version.safetensors")
        assert (home / "version.safetensors").read_bytes() == again
        (home / "version.safetensors").write_bytes(again[:100])
        with pytest.raises(CheckpointError, match="is damaged"):
            session.load(home / "version.safetensors")

    def test_a_model_that_fails(self, home: Path) -> None:
        class Failing(Plain):
            def loss(self, model: Any, batch: Any) -> Any:
                raise ValueError("no loss")

        with pytest.raises((TaskError, hop.AllTrialsFailed), match="no loss"):
            experiment(Failing(), arrays(60), space={"lr": 0.1}).fit(quiet=True)
