"""A unit of a Keras model against the loop of Keras itself, ``model.fit``, on the backend that KERAS_BACKEND names.

``python -m benchmarks.keras_units SECONDS REPEATS`` prints the best processor times as JSON: of ``model.fit``, of a
unit, and of ``train_on_batch``, for one batch and for as many as take ``model.fit`` that many seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import hopfleet as hop
from benchmarks.units import Repeated, measured
from hopfleet.domain.placement import CPU

WIDTH, ROWS = 512, 256
"""Units of the two hidden layers, and rows of a batch."""


class Mlp(hop.KerasTask):
    """A network for classes."""

    def build(self, config: Mapping[str, Any]) -> Any:
        dense = keras.layers.Dense
        hidden = [dense(WIDTH, activation="relu"), dense(WIDTH, activation="relu")]
        model = keras.Sequential([keras.Input((32,)), *hidden, dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
        return model


def main(seconds: float, repeats: int) -> None:
    session = Mlp().framework.open({}, seed=0, placement=CPU, threads=1)
    model = Mlp().build({})

    def fit(batches: Repeated) -> None:
        pairs = ((batch["x"], batch["y"]) for batch in batches)
        with session.environment():
            model.fit(pairs, steps_per_epoch=len(batches), epochs=1, verbose=0)

    def by_batch(batches: Repeated) -> None:
        with session.environment():
            for batch in batches:
                model.train_on_batch(batch["x"], batch["y"], return_dict=True)

    def ours(batches: Repeated) -> None:
        session.train(batches, last=True)

    print(json.dumps(measured(session, ROWS, [fit, ours, by_batch], seconds=seconds, repeats=repeats)))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
