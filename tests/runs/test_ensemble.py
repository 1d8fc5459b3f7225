"""Ensembles: weights, averages of outputs and of probabilities, and one model in the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.cli.app import main
from hopfleet.errors import TaskError, UsageError
from hopfleet.runs.ensemble import greedy
from hopfleet.testing.tasks import CountingTask


class Constant(torch.nn.Module):
    """Returns its configuration's value, whatever it learned."""

    def __init__(self, value: Sequence[float]) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value.expand(x.shape[0], -1)


class Guess(hop.TorchTask):
    def build(self, config: Any) -> Any:
        model = Constant(config["value"])
        return model, torch.optim.SGD(model.parameters(), lr=0.0)

    def loss(self, model: Any, batch: Any) -> Any:
        return ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()

    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(batch["x"]))


class Peeking(Guess):
    def metrics(self, model: Any, batch: Any) -> Any:
        return {"loss": ((model.value[0] - batch["y"]) ** 2).mean()}


def results(
    folder: Path, monkeypatch: pytest.MonkeyPatch, values: Any, task: Any = None, **options: Any
) -> hop.Results:
    monkeypatch.setenv("HOPFLEET_HOME", str(folder / "home"))
    data = hop.partition({"x": np.zeros((6, 1), "f4"), "y": np.full(6, 3, "f4")}, folder / "data", partitions=2)
    return hop.Experiment(
        Guess(), train=data, valid=data, space={"value": hop.grid_search(values)}, batch_size=2,
        search=hop.Grid(max_epochs=1), metric="loss", mode="min", name="guess", backend="inline",
    ).fit(quiet=True)  # fmt: skip


@pytest.mark.slow
def test_greedy_weights_fit_the_validation_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path, monkeypatch, [[2.0], [6.0], [90.0]])
    made = hop.Ensemble(found)
    # 3 = 3/4 of 2 and 1/4 of 6: models are added until the mean is right.
    assert made.weights == {"t0001": 0.75, "t0002": 0.25}
    assert made.test() == {"loss": 0.0}
    assert made.predict({"x": np.zeros((2, 1), "f4")}).to_pydict() == {"prediction": [[3.0], [3.0]]}
    assert repr(made) == "<Ensemble of 0.75 t0001, 0.25 t0002>"
    new = {"x": np.zeros((2, 1), "f4"), "y": np.array([4, 2], "f4")}
    assert made.test(new) == {"loss": 1.0}
    assert made.predict(new, on_error="null").column_names == ["prediction", "error"]


def test_uniform_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path, monkeypatch, [[2.0], [6.0], [90.0]])
    made = hop.Ensemble(found, top=2, weights="uniform")
    assert made.weights == {"t0001": 0.5, "t0002": 0.5}
    assert made.test() == {"loss": 1.0}
    assert hop.Ensemble(found, top=1).weights == {"t0001": 1.0}


def test_probabilities_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path, monkeypatch, [[0.0, 0.0], [0.0, 4.0]])
    made = hop.Ensemble(found, weights="uniform", logits=True)
    (row,) = made.predict({"x": np.zeros((1, 1), "f4")}).to_pydict()["prediction"]
    wanted = (torch.tensor([0.0, 0.0]).softmax(0) + torch.tensor([0.0, 4.0]).softmax(0)) / 2
    assert np.allclose(np.exp(row), wanted)


@pytest.mark.slow
def test_an_ensemble_is_exported_as_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = hop.Ensemble(results(tmp_path, monkeypatch, [[2.0], [6.0]]))
    rows = {"x": np.zeros((3, 1), "f4")}
    assert made.export(tmp_path / "bundle").deviation == 0
    loaded = hop.load_bundle(tmp_path / "bundle")
    assert loaded.predict(rows).to_pydict() == made.predict(rows).to_pydict() == {"prediction": [[3.0]] * 3}
    assert list(loaded.metrics) == ["t0001", "t0002"]
    assert made.export(tmp_path / "model.pt2", format="torch.export").deviation == 0
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert program(torch.zeros(5, 1)).tolist() == [[3.0]] * 5


def test_the_data_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = hop.Ensemble(results(tmp_path, monkeypatch, [[2.0], [6.0]]), weights="uniform")
    read: list[int] = []
    batches = hop.Dataset.batches

    def noted(self: hop.Dataset, partition: int, **options: Any) -> Any:
        read.append(partition)
        return batches(self, partition, **options)

    monkeypatch.setattr(hop.Dataset, "batches", noted)
    made.test(tmp_path / "data")
    assert read == [0, 1]


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    results(tmp_path, monkeypatch, [[2.0], [6.0]])
    capsys.readouterr()
    assert main(["ensemble", "guess", "--json", "--data", str(tmp_path / "data")]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == {"t0001": 0.75, "t0002": 0.25}
    assert main(["ensemble", "guess", "--weights", "uniform", "--export", str(tmp_path / "bundle")]) == 0
    assert "t0002  weight 0.5\nensemble  loss 1\n" in capsys.readouterr().out
    assert (tmp_path / "bundle" / "README.md").is_file()
    assert main(["ensemble", "guess", "--data", str(tmp_path / "data"), "--to", str(tmp_path / "made.csv")]) == 0
    assert f"6 predictions of the ensemble in {tmp_path}" in capsys.readouterr().out
    assert (tmp_path / "made.csv").read_text().splitlines()[1:] == ["3"] * 6
    assert main(["ensemble", "guess", "--to", str(tmp_path / "valid.csv")]) == 0  # for the rows of validation


def test_mistakes_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path, monkeypatch, [[2.0], [6.0]])
    with pytest.raises(UsageError, match="weights='best': must be 'greedy' or 'uniform'"):
        hop.Ensemble(found, weights="best")
    with pytest.raises(UsageError, match="top=0"):
        hop.Ensemble(found, top=0)
    with pytest.raises(UsageError, match=r"Ensemble\('guess'\): must be results"):
        hop.Ensemble("guess")  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"metrics\(\) uses model.value, which an ensemble does not have"):
        hop.Ensemble(found, task=Peeking())


def test_models_that_differ_cannot_be_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path, monkeypatch, [[2.0], [6.0, 1.0]])
    with pytest.raises(TaskError, match=r"tensors of different shapes \(\(2, 1\), \(2, 2\)\)"):
        hop.Ensemble(found)


def test_other_frameworks_say_that_they_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    found = hop.Experiment(
        CountingTask(), train={"x": np.arange(8.0)}, valid={"x": np.arange(4.0)},
        space={"number": hop.grid_search([1, 2])}, batch_size=2, search=hop.Grid(max_epochs=1), name="counted",
        backend="inline",
    ).fit(quiet=True)  # fmt: skip
    for weights in ("greedy", "uniform"):
        with pytest.raises(TaskError, match="need a task of PyTorch"):
            hop.Ensemble(found, weights=weights)


def test_a_score_that_is_no_number_selects_all() -> None:
    assert greedy(3, lambda counts: float("nan")) == [1, 1, 1]
