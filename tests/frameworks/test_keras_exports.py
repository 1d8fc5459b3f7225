"""Models of Keras that leave Hopfleet: files, exports and bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import TaskError
from tests.helpers.keras_tasks import Net, Own, X, Y, keras

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


def test_the_best_model_is_a_keras_model_and_a_file_of_keras(tmp_path: Path) -> None:
    best = trained(Net()).best
    model = best.model()
    assert isinstance(model, keras.Model)
    made = best.export(tmp_path / "best.keras")
    assert made.deviation == 0
    again = keras.models.load_model(tmp_path / "best.keras")
    assert np.array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))


def trained(task: hop.KerasTask) -> hop.Results:
    return hop.Experiment(
        task, train={"x": X, "y": Y}, valid={"x": X, "y": Y}, space={"optimizer": "adam", "lr": hop.choice([0.1])},
        search=hop.Random(trials=1, max_epochs=1), batch_size=8, partitions=2, backend="inline",
        name=getattr(task, "layer", type(task)).__name__.lower(),
    ).fit(quiet=True)  # fmt: skip


class Scaled(keras.layers.Layer):
    def __init__(self, scale: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.scale = scale

    def call(self, x: Any) -> Any:
        return self.scale * x

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


class Forgetful(Scaled):
    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


class Needy(Scaled):
    def __init__(self, scale: float, **options: Any) -> None:
        super().__init__(scale, **options)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


def test_an_exported_model_computes_the_same_or_is_not_written(tmp_path: Path) -> None:
    assert trained(Own(Scaled)).best.export(tmp_path / "scaled").deviation == 0
    keras.models.load_model(_named(tmp_path / "scaled"), custom_objects={"Scaled": Scaled})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TaskError, match=r"forgetful: is not written: read back, its outputs on 8 rows deviate by \d"):
        trained(Own(Forgetful)).best.export(tmp_path / "forgetful")
    with pytest.raises(TaskError, match=r"Keras cannot read back .*let get_config\(\) return all arguments"):
        trained(Own(Needy)).best.export(tmp_path / "needy.keras")
    assert sorted(tmp_path.iterdir()) == before


def _named(path: Path) -> Path:
    return path.rename(path.with_suffix(".keras"))


def test_a_bundle_predicts_rows_without_targets(tmp_path: Path) -> None:
    best = trained(Own(Forgetful)).best
    wanted = best.predict({"x": X[:3]})
    assert np.allclose(wanted["prediction"].to_pylist(), best.model().predict(X[:3], verbose=0))
    made = best.export(tmp_path / "bundle", format="bundle")
    assert made.deviation == 0 and (tmp_path / "bundle" / "model.safetensors").is_file()
    assert hop.load_bundle(tmp_path / "bundle").predict({"x": X[:3]}).equals(wanted)
    task = hop.KerasFunctionTask(lambda batch: (batch["x"], batch["y"]), lambda config: None, lambda *_: None)
    with pytest.raises(TaskError, match=r"takes the column 'y' out of a batch that has x; .* define predict"):
        task.predict(best.model(), {"x": X})
