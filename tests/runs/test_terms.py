"""Predictions in the terms of the raw rows: names of classes, numbers in their own unit, for every way to predict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batches, Session
from hopfleet.testing.tasks import CountingSession, CountingTask


class Told(CountingTask):
    """A task that predicts what it is told."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer

    def open(self, config: Config, *, seed: int, placement: Placement, threads: int) -> Session:
        return Rows(config)

    def predict(self, model: Any, batch: Any) -> Any:
        return self.answer(batch)


class Rows(CountingSession):
    """A session that takes rows with any columns."""

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        self.units += sum(1 for _ in batches)
        return {"train_loss": RowSum.of(1.0, batches.rows)}

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        return {"loss": RowSum.of(1.0, batches.rows)}


Trained = Callable[..., hop.Results]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))

    def train(y: Any, answer: Callable[[Any], Any], recipe: Any = None) -> hop.Results:
        made = recipe or hop.Tabular({"x": hop.Number(None)}, labels="y")
        data = hop.prepare({"x": [*map(float, range(len(y)))], "y": y}, tmp_path / "data", made, partitions=1)
        results: hop.Results = hop.Experiment(
            Told(answer), train=data, valid=data, space={"number": 1}, search=hop.Grid(max_epochs=1), batch_size=2,
            name="told", backend="inline",
        ).fit(quiet=True)  # fmt: skip
        return results

    return train


NEW = {"x": [0.0, 1.0, 2.0]}


def test_numbers_come_back_in_their_unit(trained: Trained, tmp_path: Path) -> None:
    prices = [1000.0, 2000.5, 3000.0]
    results = trained(prices, lambda batch: (batch["x"] - 1)[:, None])
    wanted = pytest.approx(np.mean(prices) + np.std(prices) * np.array([-1.0, 0.0, 1.0]), rel=1e-6)
    assert results.best.predict(NEW).column("prediction").to_pylist() == wanted
    assert [value for batch in results.best.predict(NEW, to=iter) for value in batch[0].to_pylist()] == wanted
    assert results.best.predict(NEW, to=tmp_path / "made.csv") == 3
    assert np.loadtxt(tmp_path / "made.csv", skiprows=1) == wanted
    results.best.export(tmp_path / "bundle", format="bundle")
    assert hop.load_bundle(tmp_path / "bundle").predict(NEW).column("prediction").to_pylist() == wanted


def test_classes_come_back_by_name(trained: Trained, tmp_path: Path) -> None:
    results = trained(["yes", "no", "yes"], lambda batch: (batch["x"] > 0).astype(int))
    assert results.best.predict(NEW).to_pydict() == {"prediction": ["no", "yes", "yes"]}


def test_scores_of_classes_are_kept_beside_the_names(trained: Trained, tmp_path: Path) -> None:
    results = trained(["yes", "no"], lambda batch: np.stack([1 - batch["x"], batch["x"]], axis=1))
    assert results.best.predict(NEW).to_pydict() == {
        "prediction": ["no", "yes", "yes"],
        "prediction_scores": [[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]],
    }


def test_several_labels_are_told_apart_by_name(trained: Trained, tmp_path: Path) -> None:
    recipe = hop.Tabular({"x": hop.Number(None)}, labels=["y", "x2"])
    with pytest.raises(hop.HopfleetError, match="labels='x2'"):
        trained(["b", "a"], lambda batch: {}, recipe)
    results = trained(["b", "a"], lambda batch: {"y": batch["x"].astype(int) % 2, "other": batch["x"]})
    assert results.best.predict(NEW).to_pydict() == {"y": ["a", "b", "a"], "other": [0.0, 1.0, 2.0]}


def test_labels_of_rows_to_predict_play_no_part(trained: Trained) -> None:
    results = trained(["yes", "no", "yes"], lambda batch: (batch["x"] > 0).astype(int))
    for y in ([None, "yes", "maybe"], ["no", "no", "no"]):
        assert results.best.predict({**NEW, "y": y}).num_rows == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda batch: np.full(len(batch["x"]), 7), "'prediction': predict.. returned the class 7; there are 2"),
        (lambda batch: np.full((len(batch["x"]), 2), np.nan), "scores of classes that are not finite"),
    ],
    ids=["class", "nan"],
)
def test_what_names_no_class_fails(answer: Any, message: str, trained: Trained) -> None:
    with pytest.raises(TaskError, match=message):
        trained(["yes", "no"], answer).best.predict(NEW)


def test_a_folder_of_new_images_is_predicted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    for number, name in enumerate(["raw/cat/1.png", "raw/dog/1.png", "new/unknown.png"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((2, 2), number, np.uint8)).save(tmp_path / name)
    data = hop.prepare(tmp_path / "raw", tmp_path / "data", hop.Images(mode="L", size=(2, 2)), partitions=1)
    results = hop.Experiment(
        Told(lambda batch: np.ones(len(batch["image"]), int)), train=data, valid=data, space={"number": 1},
        search=hop.Grid(max_epochs=1), batch_size=2, backend="inline",
    ).fit(quiet=True)  # fmt: skip
    assert results.best.predict(tmp_path / "new").to_pydict() == {"prediction": ["dog"]}
