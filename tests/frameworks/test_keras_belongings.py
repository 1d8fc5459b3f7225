"""What users put on a Keras model travels with it: further optimizers, plain values, averages of weights."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from tests.helpers.keras_tasks import ROWS, X, Y, keras

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]

CONFIG = {"lr": 0.01}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Pair(keras.Model):  # type: ignore[misc]
    """Two nets with an optimizer each, as in a GAN, and a count of the steps."""

    def __init__(self, optimizers: Any) -> None:
        super().__init__()
        self.one, self.other = keras.layers.Dense(4), keras.layers.Dense(3)
        self.rules = optimizers
        self.steps, self.seen = 0, [0]

    def call(self, x: Any) -> Any:
        return self.other(self.one(x))

    def train_step(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        # The second net learns more and more slowly.
        for layer, rule, weight in zip((self.one, self.other), self.rules, (1.0, 1 / (1 + self.steps)), strict=True):
            self.zero_grad()
            loss = weight * keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True).mean()
            loss.backward()
            variables = layer.trainable_variables
            rule.apply([each.value.grad for each in variables], variables)
        self.steps += 1
        self.seen.append(self.steps)
        return {"loss": loss}


class Task(hop.KerasTask):
    def build(self, config):
        made = Pair([keras.optimizers.Adam(config["lr"]), keras.optimizers.RMSprop(config["lr"], use_ema=True)])
        made.compile(loss=LOSS)
        return made


class OnTheTask(Task):
    """The second optimizer is an attribute of the task."""

    def build(self, config):
        self.rule = keras.optimizers.RMSprop(config["lr"])
        made = Pair((keras.optimizers.Adam(config["lr"]), self.rule))
        made.compile(loss=LOSS)
        return made


class Batches(list[Any]):
    rows = ROWS


def batches() -> Batches:
    starts = range(0, ROWS, 8)
    return Batches({"x": X[start : start + 8].copy(), "y": Y[start : start + 8].copy()} for start in starts)


def opened(task: hop.KerasTask, seed: int = 5) -> Any:
    return task.framework.open(CONFIG, seed=seed, placement=CPU, threads=1)


def weights(model: Any) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in model.get_weights()]


@pytest.mark.parametrize("task", [Task, OnTheTask])
def test_a_model_with_two_optimizers_hops_with_the_bits_of_a_plain_loop(task: type[Task], tmp_path: Path) -> None:
    session = opened(task())
    for unit in range(3):
        session.train(batches(), last=unit == 2)
        session.save(tmp_path / f"{unit}")
        session = opened(task(), seed=7)
        session.load(tmp_path / f"{unit}")
    random.seed(5)
    sys.modules["torch"].manual_seed(5)
    plain = task().build(CONFIG)
    for _ in range(3):
        for batch in batches():
            plain.train_on_batch(batch["x"], batch["y"])
    assert session.model.steps == plain.steps == 3 * len(batches()) and list(session.model.seen) == list(plain.seen)
    assert weights(session.model) == weights(plain)


def test_a_model_is_returned_with_its_averages(tmp_path: Path) -> None:
    session = opened(Task())
    session.train(batches(), last=True)
    session.save(tmp_path / "version")
    rule = session.model.rules[1]
    before = weights(session.model)
    model = Task().framework.model(CONFIG, tmp_path / "version")
    rule.finalize_variable_values(session.model.other.trainable_variables)
    assert weights(model) == weights(session.model) != before


def test_the_averages_of_the_only_optimizer(tmp_path: Path) -> None:
    class Averaged(hop.KerasTask):
        def build(self, config):
            made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
            rule = keras.optimizers.SGD(config["lr"], use_ema=True, ema_momentum=0.5)
            made.compile(optimizer=rule, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            return made

    session = opened(Averaged())
    session.train(batches(), last=True)
    session.save(tmp_path / "version")
    random.seed(5)
    sys.modules["torch"].manual_seed(5)
    plain = Averaged().build(CONFIG)
    plain.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert weights(Averaged().framework.model(CONFIG, tmp_path / "version")) == weights(plain)


def test_an_optimizer_of_what_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    session = opened(Task())
    session.train(batches(), last=True)
    stray = keras.Variable(np.zeros(3, "float32"))
    session.hooks.stray = keras.optimizers.SGD(0.1)
    session.hooks.stray.build([stray])
    with pytest.raises(TaskError, match=r"optimizer task\.stray: trains a variable that the model does not have"):
        session.save(tmp_path / "version")


def test_another_optimizer_than_the_saved_one_is_refused(tmp_path: Path) -> None:
    session = opened(Task())
    session.train(batches(), last=True)
    session.save(tmp_path / "version")

    class Other(Task):
        def build(self, config):
            made = Pair([keras.optimizers.SGD(config["lr"]), keras.optimizers.SGD(config["lr"])])
            made.compile(loss=LOSS)
            return made

    with pytest.raises(TaskError, match=r"build\(\) returned a model with another optimizer"):
        opened(Other()).load(tmp_path / "version")


class Measured(hop.KerasTask):
    """A model with a metric that Keras names, and one with a value for each class."""

    def build(self, config):
        made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
        metrics = [keras.metrics.AUC(), keras.metrics.F1Score(average=None)]
        made.compile(optimizer="adam", loss="categorical_crossentropy", metrics=metrics)
        return made


def test_metrics_have_the_same_names_in_each_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    data = {"x": X, "y": np.eye(3, dtype="float32")[Y]}
    results = hop.Experiment(
        Measured(), train=data, valid=data, space={"number": hop.grid_search([1, 2])}, metric="auc", mode="max",
        search=hop.Grid(max_epochs=1), backend="inline", batch_size=16,
    ).fit(quiet=True)  # fmt: skip
    for trial in results.trials:
        assert {"auc", "f1_score_0", "f1_score_1", "f1_score_2", "train_f1_score_2"} <= set(trial.metrics)
    wanted = keras.metrics.F1Score(average=None)
    wanted.update_state(data["y"], results.best.model().predict(X, verbose=0))
    found = [results.best.metrics[f"f1_score_{place}"] for place in range(3)]
    assert found == pytest.approx(keras.ops.convert_to_numpy(wanted.result()).tolist())
