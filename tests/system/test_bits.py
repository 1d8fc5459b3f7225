"""Every trial's result equals, bit for bit, plain sequential training in the same visit order."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.forecast import rehearsal
from tests.helpers.plain_loop import train_in_sequence
from tests.helpers.sample_tasks import Everything, Plateau, arrays
from tests.helpers.states import assert_same_state

SEED = 11


@pytest.mark.parametrize("device", ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
@pytest.mark.parametrize(
    ("backend", "workers", "profile_trials"),
    [
        *[("inline", 3, False), ("local", 2, True)],
        pytest.param("inline", 1, False, marks=pytest.mark.slow),
        *[pytest.param("local", count, False, marks=pytest.mark.slow) for count in (1, 2, 4)],
    ],
)
def test_every_trial_equals_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, workers: int, profile_trials: bool, device: str
) -> None:
    # Profiling that may take as long as it likes tries all configurations first; profiling without time, none.
    monkeypatch.setattr(rehearsal, "SHARE", 1e9 if profile_trials else 0.0)
    monkeypatch.setattr(rehearsal, "LONG_SHARE", 1e9)
    monkeypatch.setattr(rehearsal, "PREDICTING", 1e9)
    folder = tmp_path / "train"
    hop.partition(arrays(), folder, partitions=4, seed=3)
    task = Everything()
    space = {
        "optimizer": hop.grid_search(["sgd", "adam", "adamw"]),
        "schedule": hop.grid_search(["none", "step", "cosine"]),
    }
    experiment = hop.Experiment(
        task,
        train=folder,
        valid=arrays(60, seed=1),
        space=space,
        search=hop.Grid(max_epochs=3),
        metric="accuracy",
        mode="max",
        seed=SEED,
        name="bits",
        backend=backend,
        workers=workers,
        batch_size=16,
        worker_options=hop.WorkerOptions(device=device),
    )
    results = experiment.fit(quiet=True)
    assert (results.folder.prediction() is not None) is profile_trials
    assert len(results.trials) == 9
    for trial in results.trials:
        assert trial.state is hop.TrialState.COMPLETED, trial.error
        assert [sorted(epoch) for epoch in trial.visits] == [[0, 1, 2, 3]] * 3
        model, optimizer, schedule = train_in_sequence(
            task,
            folder,
            config=trial.config,
            trial_seed=trial.seed,
            seed=SEED,
            visits=trial.visits,
            batch_size=16,
            device=device,
        )
        assert_same_state(trial.last_checkpoint, model, optimizer, schedule)


def test_metrics_are_the_mean_over_all_rows(tmp_path: Path) -> None:
    """Validation in three partitions, on whichever workers are free, gives the exact mean over rows."""
    valid_folder = tmp_path / "valid"
    valid = arrays(100, seed=1)
    hop.partition(valid, valid_folder, partitions=3, seed=0)
    results = hop.Experiment(
        Everything(),
        train=arrays(),
        valid=valid_folder,
        space={"optimizer": "sgd", "schedule": "none"},
        search=hop.Random(trials=2, max_epochs=1),
        metric="accuracy",
        mode="max",
        name="rows",
        workers=2,
        worker_options=hop.WorkerOptions(device="cpu"),
    ).fit(quiet=True)
    for trial in results.trials:
        model = trial.model()
        with torch.no_grad():
            right = (model(torch.from_numpy(valid["x"])).argmax(1).numpy() == valid["y"]).sum()
        # Each partition's mean is a float32; the three add up without any further rounding.
        sizes, rights = [], []
        dataset = hop.open_dataset(valid_folder)
        for partition in range(3):
            (batch,) = dataset.batches(partition, batch_size=256)
            with torch.no_grad():
                hits = model(torch.from_numpy(batch["x"])).argmax(1) == torch.from_numpy(batch["y"])
            sizes.append(len(batch["y"]))
            rights.append(float(hits.float().mean()))
        exact = sum(Fraction(mean) * size for mean, size in zip(rights, sizes, strict=True)) / 100
        assert trial.metrics["accuracy"] == float(exact)
        assert trial.metrics["accuracy"] == pytest.approx(right / 100, abs=1e-6)


@pytest.mark.parametrize(
    ("backend", "workers", "fuse"), [("inline", 2, "exact"), pytest.param("local", 2, "off", marks=pytest.mark.slow)]
)
def test_reduce_lr_on_plateau_follows_the_metric(tmp_path: Path, backend: str, workers: int, fuse: str) -> None:
    """Rates follow the metrics of earlier epochs, in a run and in a replay."""
    folder = tmp_path / "train"
    hop.partition(arrays(), folder, partitions=3, seed=3)
    task = Plateau()
    experiment = hop.Experiment(
        task,
        train=folder,
        valid=arrays(60, seed=1),
        space={"lr": hop.grid_search([0.01, 0.02])},
        search=hop.Grid(max_epochs=4),
        metric="accuracy",
        mode="max",
        seed=SEED,
        name="plateau",
        backend=backend,
        workers=workers,
        batch_size=16,
        worker_options=hop.WorkerOptions(device="cpu", fuse=fuse),
    )
    results = experiment.fit(quiet=True)
    for trial in results.trials:
        metrics = [epoch["accuracy"] for epoch in trial.history]
        model, optimizer, _ = train_in_sequence(
            task,
            folder,
            config=trial.config,
            trial_seed=trial.seed,
            seed=SEED,
            visits=trial.visits,
            batch_size=16,
            metrics=metrics[:3],  # the last metric comes after all training
        )
        assert optimizer.param_groups[0]["lr"] < trial.config["lr"]
        assert_same_state(trial.last_checkpoint, model, optimizer, None)
    assert [trial.verdict for trial in replay(results, workers=1, backend="inline").trials] == ["equal"] * 2
