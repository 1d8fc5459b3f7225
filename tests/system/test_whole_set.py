"""Metrics over the whole set in whole experiments: the same bits wherever and however a trial is evaluated."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.errors import HopfleetError
from hopfleet.frameworks import whole_set
from tests.helpers.sample_tasks import Plain, arrays
from tests.helpers.whole_sets import DIES, begun, curves, f1, fitted, guessed, order, rows


def one_class(targets: Any, outputs: Any) -> float:
    raise ValueError("Only one class is present")


@pytest.fixture
def valid(tmp_path: Path) -> hop.Dataset:
    return hop.partition(arrays(61, seed=1), tmp_path / "valid", partitions=4)


@pytest.mark.slow
def test_one_worker_and_four_and_flotillas(valid: hop.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    off, exact = hop.WorkerOptions(fuse="off"), hop.WorkerOptions(fuse="exact")
    alone = fitted(valid, workers=1, worker_options=off)
    x, y = rows(valid)
    for trial in alone.trials:
        logits = trial.model()(torch.from_numpy(x)).detach().numpy()
        assert trial.metrics["f1"] == f1(y, logits.argmax(1))
    bits = curves(alone)
    assert curves(fitted(valid, workers=4, worker_options=off)) == bits
    together = fitted(valid, workers=2, worker_options=exact)
    assert curves(together) == bits
    best = together.best
    for workers in (1, 3):
        found = together.test(valid, workers=workers, backend="inline")
        assert found[best.id] == {
            name: best.metrics[name] for name in ("accuracy", "loss", "f1", "order", "rows", "fixed")
        }
    joined = hop.Ensemble(together, top=2, weights="greedy")
    assert joined.test(backend="inline")["f1"] >= best.metrics["f1"]
    assert main(["verify", "e"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fuse", ["off", "exact", "fast"])
def test_processes(valid: hop.Dataset, fuse: str) -> None:
    alone = fitted(valid, workers=1, worker_options=hop.WorkerOptions(fuse="off"))
    several = fitted(valid, workers=3, backend="local", worker_options=hop.WorkerOptions(fuse=fuse))
    if fuse == "fast":
        assert [trial.metrics["f1"] for trial in several.trials] == [trial.metrics["f1"] for trial in alone.trials]
    else:
        assert curves(several) == curves(alone)


@pytest.mark.slow
def test_folds_are_pooled(tmp_path: Path) -> None:
    train = hop.partition(arrays(90), tmp_path / "train", partitions=3)
    given: Any = {"train": train, "partitions": None, "batch_size": 8, "search": hop.Grid(max_epochs=1)}
    x, y = rows(train)
    pooled = f1(y, guessed(x))
    folds = [train.batches(part, batch_size=1000) for part in range(3)]
    assert pooled != pytest.approx(np.mean([f1(one["y"], guessed(one["x"])) for (one,) in folds]), rel=1e-3)
    for workers in (1, 2):
        for trial in fitted("kfold(3)", workers=workers, **given).trials:
            assert (trial.metrics["rows"], trial.metrics["fixed"]) == (90, pooled)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_team_scores_all_rows_in_their_order(valid: hop.Dataset) -> None:
    results = fitted(valid, workers=1, backend="local", parallelism="ddp:2", batch_size=16)
    x, y = rows(valid)
    for trial in results.trials:
        assert_scores(trial.metrics, trial.model(), x, y)


def assert_scores(metrics: Any, model: Any, x: Any, y: Any) -> None:
    """Assert that metrics are those of a model on all rows, in their order."""
    logits = model(torch.from_numpy(x)).detach().numpy()
    assert (metrics["rows"], metrics["fixed"]) == (len(y), f1(y, guessed(x)))
    assert metrics["f1"] == f1(y, logits.argmax(1))
    assert metrics["order"] == pytest.approx(order(logits, logits), rel=1e-5)


def test_a_refitted_model_is_scored(valid: hop.Dataset) -> None:
    again = fitted(valid, workers=1, batch_size=8, search=hop.Grid(max_epochs=1)).refit(backend="inline", quiet=True)
    (found,) = again.test(valid, backend="inline").values()
    assert_scores(found, again.best.model(), *rows(valid))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_killed_while_it_scores(
    valid: hop.Dataset, backend: str, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    """Inline, the driver is killed with its worker, and the run is resumed; else a worker is replaced."""
    from tests.helpers import warm  # this module is the user's code, and all that it imports is watched
    from tests.helpers.processes import environment

    bits = curves(fitted(valid, workers=1, name="undisturbed"))
    code = f"from tests.helpers.whole_sets import begun; begun({valid.url!r}, {backend!r})"
    done = warm.run([sys.executable, "-c", code], env={**environment(), "HOPFLEET_HOME": str(own_home), DIES: "3"})
    assert done.returncode == (-signal.SIGKILL if backend == "inline" else 0), done.stderr[-2000:]
    assert curves(begun(valid.url, backend)) == bits


class Undefined(Plain):
    def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        return {**super().metrics(model, batch), "auc": hop.WholeSet(one_class, model(batch["x"])[:, 1], batch["y"])}


def test_an_undefined_score_is_nan_and_explained(valid: hop.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = hop.Experiment(
        Undefined(),
        train=arrays(),
        valid=valid,
        space={"lr": 0.1},
        search=hop.Random(trials=1, max_epochs=1),
        metric="auc",
        mode="max",
        name="e",
        backend="inline",
    )
    results = experiment.fit()
    assert math.isnan(results.trials[0].metrics["auc"])
    text = "the metric 'auc' is NaN over 61 rows: Only one class is present"
    assert text in results.trials[0].log() and text in " ".join(capsys.readouterr().out.split())


def test_too_many_rows_are_refused(valid: hop.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_set, "LIMIT", 1000)
    with pytest.raises(HopfleetError, match=r"metric '\w+': the 61 validation rows would take .* GiB"):
        fitted(valid)


class Averaged(Plain):
    def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        return {**super().metrics(model, batch), "val_f1": 0.5}


@pytest.mark.parametrize("several", [False, True])
def test_an_averaged_score_is_doubted(
    valid: hop.Dataset, several: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = valid if several else hop.partition(arrays(61, seed=1), tmp_path / "one", partitions=1)
    given: dict[str, Any] = {"space": {"lr": 0.1}, "search": hop.Random(trials=1, max_epochs=1), "name": "e"}
    hop.Experiment(Averaged(), train=arrays(), valid=data, backend="inline", **given).fit()
    said = "the metric 'val_f1' is averaged over batches" in " ".join(capsys.readouterr().out.split())
    assert said is several


def test_arrays_are_split_and_a_fraction_is_no_validation_data(tmp_path: Path) -> None:
    pair = (np.zeros((20, 3), "float32"), np.arange(20))
    for given, text in [
        ((pair,), "folder=None: must be the folder"),
        ((pair, tmp_path), "fractions=None: must be the"),
    ]:
        with pytest.raises(HopfleetError, match=f"{text}.*e.g. data = hop.split"):
            hop.split(*given)
    made = hop.split(pair, tmp_path / "split", {"train": 0.8, "valid": 0.2}, partitions=2, quiet=True)
    assert {name: (data.rows, list(data.columns)) for name, data in made.items()} == {
        "train": (16, ["x", "y"]),
        "valid": (4, ["x", "y"]),
    }
    with pytest.raises(HopfleetError, match=r"valid=0.2: must be data, not a number; divide the rows .*'kfold\(5\)'"):
        fitted(0.2)
