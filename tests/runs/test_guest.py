"""Models of trials in the user's own process, which keeps its settings whatever ``build`` changes."""

from __future__ import annotations

import decimal
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.experiment.preparation import check_data, open_data
from hopfleet.runs.guest import Guest
from hopfleet.store.folder import RunFolder
from tests.helpers.process_changes import seen

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x.to(self.layer.weight.dtype))[:, 0] * torch.ones(()).element_size()


class Changing(hop.TorchTask):
    """Changes its process in build() and transform(), and computes something else without the changes in build()."""

    factor = 1.0

    def build(self, config: Mapping[str, Any]) -> Any:
        torch.set_default_dtype(torch.float64)
        os.environ["OWN_VARIABLE"] = "1"
        os.chdir("/")
        type(self).factor = 2.0
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        model = Model()
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def transform(self, batch: Any, rng: Any) -> Any:
        decimal.getcontext().prec = 7
        return batch

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]) - batch["y"]) ** 2).mean() * self.factor * len(os.environ["OWN_VARIABLE"])

    def predict(self, model: Any, batch: dict[str, Any]) -> Any:
        return model(torch.as_tensor(batch["x"])) * self.factor * len(os.environ["OWN_VARIABLE"])


@pytest.fixture
def results() -> hop.Results:
    before = everything()
    found = hop.Experiment(
        Changing(),
        train={"x": X, "y": X.sum(1)},
        valid={"x": X, "y": X.sum(1)},
        space={"lr": hop.grid_search([0.01, 0.02])},
        search=hop.Grid(max_epochs=1),
        partitions=2,
        batch_size=8,
        name="guests",
        backend="inline",
        workers=1,
    ).fit(quiet=True)
    assert everything() == before
    return found


def everything() -> list[Any]:
    streams = random.getstate(), [repr(np.random.get_state())], torch.get_rng_state().tolist()
    return [Changing.factor, *streams, *seen()]


USES: Mapping[str, Callable[[hop.Results, Path], Any]] = {
    "model": lambda results, folder: results.best.model(),
    "export": lambda results, folder: results.best.export(folder / "model.safetensors"),
    "iter": lambda results, folder: _values(results.best.predict({"x": X}, to=iter)),
    "predict": lambda results, folder: _values([results.best.predict({"x": X}, backend="inline")]),
    "bundle": lambda results, folder: _bundled(results, folder),
    "test": lambda results, folder: results.test({"x": X, "y": X.sum(1)}, backend="inline"),
    "ensemble": lambda results, folder: hop.Ensemble(results, weights="greedy").test(backend="inline"),
    "torch": lambda results, folder: results.best.export(folder / "model.pt", format="torch"),
}


def _values(batches: Any) -> list[float]:
    return [value for batch in batches for value in batch["prediction"].to_pylist()]


def _bundled(results: hop.Results, folder: Path) -> Any:
    results.best.export(folder / "bundle", format="bundle")
    return _values([hop.load_bundle(folder / "bundle").predict({"x": X})])


@pytest.mark.slow
def test_no_use_of_a_model_changes_the_process(results: hop.Results, tmp_path: Path) -> None:
    made = {}
    for name, use in USES.items():
        before = everything()
        made[name] = use(results, tmp_path)
        assert everything() == before, name
    assert made["iter"] == made["predict"] == made["bundle"]


def test_attributes_of_the_task_stay() -> None:
    """A task may keep in them what takes long to load."""
    task, variable = Changing(), os.environ.get("OWN_VARIABLE")
    with Guest(task).building():
        task.build({"lr": 0.1})
        task.kept = 1
    assert task.kept == 1 and os.environ.get("OWN_VARIABLE") == variable


def test_a_team_is_checked_without_changes(tmp_path: Path) -> None:
    train = {"x": X, "y": X.sum(1)}
    shape = {"parallelism": "pipeline:2", "partitions": 2, "batch_size": 4}
    made = hop.Experiment(Changing(), train=train, space={"lr": 0.1}, search=hop.Grid(max_epochs=1), **shape)
    before = everything()
    with pytest.raises(hop.HopfleetError, match="must have a block for each of 2 devices, got 1"):
        check_data(made.definition, open_data(made.definition, RunFolder(tmp_path / "run")))
    assert everything() == before


@pytest.mark.slow
def test_a_program_is_exported_with_the_settings_of_its_trial(results: hop.Results, tmp_path: Path) -> None:
    before = everything()
    results.best.export(tmp_path / "model.pt2", format="torch.export")
    assert everything() == before


def test_a_change_is_named_once(results: hop.Results, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        results.best.model()
    told = [line for line in capsys.readouterr().err.splitlines() if "build() changed" in line]
    assert len(told) == 1
    assert "settings of torch (default_dtype)" in told[0] or "and 1 more" in told[0]
