"""A task in Keras, and rows for it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.testing.frameworks import ROWS

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
RNG = np.random.default_rng(2)
X = RNG.normal(size=(ROWS, 6)).astype("float32")
Y = RNG.integers(0, 3, ROWS)


def model(optimizer: str, lr: Any, shaped: bool = True) -> Any:
    layers = [keras.Input((6,))] if shaped else []
    layers += [
        keras.layers.Dense(8, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.GaussianNoise(0.1),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(3),
    ]
    made = keras.Sequential(layers)
    rule = {"adam": keras.optimizers.Adam, "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.9)}[optimizer]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer=rule(lr), loss=loss, metrics=["accuracy"])
    return made


class Net(hop.KerasTask):
    shaped = True

    def build(self, config):
        schedule = keras.optimizers.schedules.CosineDecay(config["lr"], 40)
        return model(config["optimizer"], schedule, self.shaped)


class Own(hop.KerasTask):
    """A model with a layer that Keras does not know."""

    def __init__(self, layer: type) -> None:
        self.layer = layer

    def build(self, config):
        made = keras.Sequential([keras.Input((6,)), self.layer(3.0), keras.layers.Dense(3)])
        made.compile(optimizer=config["optimizer"], loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        made.optimizer.learning_rate = config["lr"]
        return made


class Batches(list[Any]):
    rows = ROWS


def batches() -> Batches:
    starts = range(0, ROWS, 8)
    return Batches({"x": X[start : start + 8].copy(), "y": Y[start : start + 8].copy()} for start in starts)


def opened(task: hop.KerasTask, config: dict[str, Any], seed: int = 5) -> Any:
    return task.framework.open(config, seed=seed, placement=CPU, threads=1)


def values(made: Any) -> list[bytes]:
    every = [*made.variables, *made.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(each)).tobytes() for each in every]
