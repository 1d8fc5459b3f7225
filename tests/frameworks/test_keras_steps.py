"""Keras: the numbers of steps that hooks are told are the steps that are taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from tests.helpers.counted_steps import trained

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


def test_steps(tmp_path: Path) -> None:
    told: list[int] = []

    class Task(hop.KerasTask):
        length: int | None = None

        def build(self, config: Any) -> Any:
            told.append(self.total_steps)
            schedule = keras.optimizers.schedules.CosineDecay(0.1, self.length or self.total_steps)
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, activation="softmax")])
            model.compile(keras.optimizers.SGD(schedule), "sparse_categorical_crossentropy")
            return model

        def train(self, model: Any, batches: Any, config: Any) -> Any:
            found = super().train(model, batches, config)
            return {**(found or {}), "iterations": float(model.optimizer.iterations)}

    best, plan = trained(tmp_path, Task())
    assert set(told) == {plan.total_steps()}
    assert best.model().optimizer.iterations == plan.total_steps()
    short = Task()
    short.length = 5
    trial, _ = trained(tmp_path / "short", short)
    assert f"CosineDecay(decay_steps=5): must end after {plan.total_steps()} steps" in _logs(trial)


def _logs(trial: Any) -> str:
    folder = trial.checkpoint.parents[2] / "logs"
    return "".join(path.read_text() for path in folder.iterdir())
