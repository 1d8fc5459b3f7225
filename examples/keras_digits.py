"""Keras on any backend: which width, dropout and learning rate read handwritten digits best?

Run this example with `python examples/keras_digits.py`; `KERAS_BACKEND=jax` or `tensorflow` chooses another backend.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from sklearn.datasets import load_digits

import hopfleet as hop


class Digits(hop.KerasTask):
    def build(self, config):
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(config["width"], activation="relu"),
                keras.layers.Dropout(config["dropout"]),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(config["lr"]), loss=loss, metrics=["accuracy"])
        return model


digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.data))
x, y = digits.data[order].astype("float32") / 16, digits.target[order]

results = hop.Experiment(
    Digits(),
    train={"x": x[:1400], "y": y[:1400]},
    valid={"x": x[1400:], "y": y[1400:]},
    space={"width": hop.choice([64, 128]), "dropout": hop.uniform(0, 0.5), "lr": hop.loguniform(1e-3, 1e-2)},
    search=hop.Random(trials=4, max_epochs=3),
    metric="accuracy",
    mode="max",
).fit()

print("best:", results.best.config, results.best.metrics)
results.best.export("digits.keras")  # for keras.models.load_model
