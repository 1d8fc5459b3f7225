"""Keras: the suite, bits of plain loops, callbacks across hops, export, and what is refused.

One process has one backend of Keras: PyTorch here, the others in processes of their own.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import NotFinite, TaskError, describe
from hopfleet.frameworks.whole_set import Gathered
from hopfleet.testing.frameworks import FrameworkSuite
from tests.helpers import warm
from tests.helpers.keras_tasks import Batches, Net, X, Y, batches, keras, model, opened, values
from tests.helpers.marks import LONG, long

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


class TestKeras(FrameworkSuite):
    module = "keras"
    config: ClassVar[dict[str, Any]] = {"optimizer": "adam", "lr": 1e-2}
    other: ClassVar[dict[str, Any]] = {"optimizer": "sgd", "lr": 1e-2}
    bad: ClassVar[dict[str, Any]] = {"optimizer": "none", "lr": 1e-2}
    _run = staticmethod(warm.run)

    def make(self):
        return Net()

    def columns(self):
        return {"x": X, "y": Y}


@pytest.mark.parametrize("shaped", [True, False], ids=["shaped", "unshaped"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_trial_that_hops_has_the_bits_of_a_plain_loop(tmp_path: Path, optimizer: str, shaped: bool) -> None:
    config = {"optimizer": optimizer, "lr": 1e-2}
    task = Net()
    task.shaped = shaped
    first = opened(task, config)
    first.train(batches(), last=False)
    first.evaluate(batches(), seed=1)
    first.save(tmp_path / "version")
    second = opened(task, config, seed=6)
    second.load(tmp_path / "version")
    second.train(batches(), last=True)

    random.seed(5)
    if keras.backend.backend() == "torch":
        sys.modules["torch"].manual_seed(5)
    plain = task.build(config)
    for batch in [*batches(), *batches()]:
        plain.train_on_batch(batch["x"], batch["y"])
    plain.reset_metrics()
    assert values(second.model) == values(plain)


class Counts(keras.Model):
    """A model class without a build() of its own, which counts words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.dense = keras.layers.Embedding(9, 4), keras.layers.Dense(3)

    def call(self, x):
        assert keras.backend.is_int_dtype(x.dtype)
        return self.dense(keras.ops.mean(self.words(x), axis=1))


def test_a_model_class_is_built_for_the_first_batch(tmp_path: Path) -> None:
    class Task(Net):
        def example(self, batch):
            return np.abs(batch["x"] * 3).astype("int32") % 9, batch["y"]

        def build(self, config):
            made = Counts()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            made.compile(optimizer="adam", loss=loss)
            return made

    first, again = opened(Task(), {}), opened(Task(), {}, seed=6)
    first.train(batches(), last=False)
    first.save(tmp_path / "version")
    again.load(tmp_path / "version")
    assert again.train(batches(), last=True) == first.train(batches(), last=True)
    assert values(again.model) == values(first.model)


def test_trials_that_train_together_have_the_bits_of_each_alone() -> None:
    class Greedy(Net):
        transform = staticmethod(lambda batch, rng: batch)

        def train_step(self, model, x, y, sample_weight):
            found = super().train_step(model, x, y, sample_weight)
            x[:] = 0  # a member's own copy
            return found

    configs = [{"optimizer": name, "lr": 1e-2} for name in ("adam", "sgd")]
    task = Greedy()
    alone = [opened(task, config) for config in configs]
    together = [opened(task, config) for config in configs]
    failing = opened(task, {"optimizer": "sgd", "lr": float("nan")})
    apart = [session.train(batches(), last=True) for session in alone]
    *found, error = task.framework.flotilla([*together, failing]).train(batches(), last=[True] * 3)
    assert found == apart and isinstance(error, NotFinite)
    assert [values(each.model) for each in together] == [values(each.model) for each in alone]
    scores = task.framework.flotilla(together).evaluate(batches(), seed=0)
    assert scores == [session.evaluate(batches(), seed=0) for session in alone]
    assert task.framework.gains(alone[0], fast=False) and not Net().framework.gains(alone[0], fast=True)


def test_metrics_are_those_of_keras() -> None:
    session = opened(Net(), {"optimizer": "adam", "lr": 1e-2})
    session.train(batches(), last=True)
    found = session.evaluate(batches(), seed=0)
    theirs = session.model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)
    assert found["accuracy"].mean == pytest.approx(theirs["accuracy"])
    assert found["loss"].mean == pytest.approx(theirs["loss"], rel=1e-5)


def test_metrics_of_training_are_means_over_all_batches() -> None:
    class Own(Net):
        def train_step(self, model, x, y, sample_weight):
            return super().train_step(model, x, y, sample_weight)

    config = {"optimizer": "sgd", "lr": 1e-2}
    plain = opened(Net(), config)
    with plain.environment():
        steps = [plain.model.train_on_batch(batch["x"], batch["y"]) for batch in batches()]
    loss, accuracy = np.mean(steps, axis=0)
    for task in (Net(), Own()):
        found = opened(task, config).train(batches(), last=True)
        assert found["train_loss"].mean == pytest.approx(loss, rel=1e-5)
        assert found["train_accuracy"].mean == pytest.approx(accuracy, rel=1e-5)


def test_operations_without_a_seed_draw_from_the_trial(tmp_path: Path) -> None:
    class Noisy(Net):
        def example(self, batch):
            noise = keras.random.normal((len(batch["x"]), 6))
            return batch["x"] + keras.ops.convert_to_numpy(noise), batch["y"]

    config = {"optimizer": "sgd", "lr": 1e-2}
    alone = opened(Noisy(), config)
    alone.train(batches(), last=True)
    alone.save(tmp_path / "version")
    alone.train(batches(), last=True)
    keras.random.normal((3,))
    again = opened(Noisy(), config, seed=6)
    again.load(tmp_path / "version")
    again.train(batches(), last=True)
    assert values(again.model) == values(alone.model) != values(opened(Noisy(), config, seed=6).model)


class Scheduled(hop.KerasTask):
    def build(self, config):
        return model("sgd", 0.1)

    def callbacks(self, config):
        falling = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.5 if epoch else lr)
        return [falling, keras.callbacks.ReduceLROnPlateau(factor=0.1, patience=2, min_delta=0.0)]


def test_callbacks_hop_with_the_model(tmp_path: Path) -> None:
    def rate(session: Any) -> float:
        return float(keras.ops.convert_to_numpy(session.model.optimizer.learning_rate))

    session = opened(Scheduled(), {})
    session.check_goal("loss", "min")
    rates = []
    for epoch in range(4):
        if epoch:
            session.observe(1.0)
        for last in (False, True):  # an epoch of two units: the schedule acts once
            session.train(batches(), last=last)
            session.save(tmp_path / "version")
            session = opened(Scheduled(), {}, seed=9)
            session.load(tmp_path / "version")
        rates.append(rate(session))
    assert rates == pytest.approx([0.1, 0.05, 0.025, 0.1 * 0.25 * 0.1 * 0.5])
    session.check_goal("loss", "min")
    with pytest.raises(TaskError, match=r"mode='min'.*is better if it is larger; set mode='max'"):
        session.check_goal("accuracy", "max")


def test_own_steps_and_the_papers_three_functions() -> None:
    class Own(Net):
        def train_step(self, model, x, y, sample_weight):
            return super().train_step(model, x, y, np.ones(len(x)))

    assert "train_loss" in opened(Own(), {"optimizer": "sgd", "lr": 0.1}).train(batches(), last=True)

    class Steps(keras.Model):
        """A model that takes its steps in train_on_batch."""

        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

        def train_on_batch(self, x, y=None, **options):
            return {"loss": float(len(x))}

    class Whole(Net):
        def build(self, config):
            made = Steps()
            made.compile(optimizer="sgd", loss="mse")
            return made

    assert opened(Whole(), {}).train(batches(), last=True)["train_loss"].mean == 8

    def train_fn(model, examples, config):
        return {"loss": np.mean([model.train_on_batch(*example)[0] for example in examples])}

    three = hop.KerasFunctionTask(
        lambda batch: (batch["x"], batch["y"]), lambda config: model("sgd", config["lr"]), train_fn
    )
    session = opened(three, {"lr": 0.1})
    assert session.train(batches(), last=True)["train_loss"].mean > 0
    assert session.evaluate(batches(), seed=0)["loss"].mean > 0
    with pytest.raises(TaskError, match="train_fn=3: must be a function"):
        hop.KerasFunctionTask(train_fn, train_fn, 3)  # type: ignore[arg-type]


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    class Build(hop.KerasTask):
        def __init__(self, made: Any, callbacks: Any = ()) -> None:
            self.made, self.given = made, callbacks

        def build(self, config):
            return self.made

        def callbacks(self, config):
            return self.given

    with pytest.raises(TaskError, match=r"not compiled: call model\.compile\(optimizer="):
        opened(Build(keras.Sequential([keras.layers.Dense(1)])), {})
    with pytest.raises(TaskError, match=r"build\(\) returned 3: return a compiled"):
        opened(Build(3), {})
    with pytest.raises(TaskError, match=r"EarlyStopping cannot be kept.*stop=hop\.Patience\(4, min_delta=0\.01\)"):
        opened(Build(model("sgd", 0.1), [keras.callbacks.EarlyStopping(patience=4, min_delta=0.01)]), {})
    with pytest.raises(TaskError, match=r"ModelCheckpoint cannot be kept.*leave it out"):
        opened(Build(model("sgd", 0.1), [keras.callbacks.ModelCheckpoint("x.keras")]), {})
    with pytest.raises(TaskError, match="must be a list"):
        opened(Build(model("sgd", 0.1), 3), {})
    with pytest.raises(TaskError, match="override build"):
        opened(hop.KerasTask(), {})
    with pytest.raises(TaskError, match="no batches"):
        opened(Build(model("sgd", 0.1)), {}).train(Batches(), last=True)
    wide = keras.Sequential([keras.Input((7,)), keras.layers.Dense(2)])
    wide.compile(optimizer="sgd", loss="mse")
    with pytest.raises(Exception, match="Exception encountered when calling") as caught:
        opened(Build(wide), {}).train(batches(), last=True)
    shapes = (
        "x of the first batch has the shape (8, 6), y the shape (8,); the model takes (None, 7) and returns (None, 2)"
    )
    assert shapes in describe(caught.value)
    opened(Build(model("sgd", 0.1)), {}).save(tmp_path / "version")
    other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    other.compile(optimizer="sgd", loss="mse")
    with pytest.raises(TaskError, match="returned a different model for the same configuration"):
        opened(Build(other), {}).load(tmp_path / "version")


@pytest.mark.skipif("HOPFLEET_OTHER_BACKEND" in os.environ, reason="runs on another backend already")
@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=long)])
def test_other_backends(backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    # Each model is traced and compiled, so all tests take minutes: HOPFLEET_LONG=1 runs them.
    chosen = "not fresh_process" if LONG else "adam-unshaped or metrics_are_those"
    files = [__file__, str(Path(__file__).with_name("test_keras_exports.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", chosen]
    # A warm process of this session has imported Keras with another backend.
    own = {name: value for name, value in os.environ.items() if name not in (warm.ADDRESS, warm.APART)}
    variables = {
        "KERAS_BACKEND": backend,
        "HOPFLEET_OTHER_BACKEND": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(command, env={**own, **variables}, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]


def test_metrics_that_are_not_means_are_those_of_the_whole_set() -> None:
    class Scored(hop.KerasTask):
        def build(self, config: Any) -> Any:
            inputs = keras.Input((X.shape[1],))
            made = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
            made.compile(
                optimizer="sgd",
                loss="mse",
                metrics=["mae", keras.metrics.AUC(name="auc"), keras.metrics.RootMeanSquaredError(name="rmse")],
            )
            return made

        def example(self, batch: Any) -> Any:
            return batch["x"], (batch["x"][:, :1] > 0).astype("float32")

    session = opened(Scored(), {})
    session.train(batches(), last=True)
    found = session.evaluate(batches(), seed=0)
    theirs = session.model.evaluate(X, (X[:, :1] > 0).astype("float32"), batch_size=len(X), verbose=0, return_dict=True)
    assert {name for name, value in found.items() if isinstance(value, Gathered)} == {"auc", "rmse"}
    for name in ("auc", "rmse", "mae"):
        assert found[name].mean == pytest.approx(theirs[name], rel=1e-5)


class Peak(keras.metrics.Metric):
    """A metric with one variable, which ``config["state"]`` makes: only sums can be merged."""

    def __init__(self, state: str) -> None:
        super().__init__(name="peak")
        self.state = state
        self.kept = self.add_variable((), "zeros", name="kept")

    def update_state(self, y: Any, made: Any, sample_weight: Any = None) -> None:
        made = keras.ops.max(made) if self.state == "maximum" else keras.ops.sum(made)
        join = {"maximum": keras.ops.maximum, "latest": lambda kept, new: new}.get(self.state, keras.ops.add)
        self.kept.assign(join(self.kept, made))

    def result(self) -> Any:
        return keras.ops.sqrt(self.kept)


@pytest.mark.parametrize("state", ["sum", "maximum", "latest"])
def test_a_metric_whose_state_is_no_sum_is_refused(state: str) -> None:
    class Scored(hop.KerasTask):
        def build(self, config: Any) -> Any:
            inputs = keras.Input((X.shape[1],))
            made = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
            made.compile(optimizer="sgd", loss="mse", metrics=[Peak(state)])
            return made

        def example(self, batch: Any) -> Any:
            return batch["x"], batch["x"][:, :1]

    session = opened(Scored(), {})
    if state == "sum":
        found = session.evaluate(batches(), seed=0)["peak"].mean
        made = keras.ops.convert_to_numpy(session.model(X))
        assert found == pytest.approx(float(np.sqrt(made.sum())), rel=1e-5)
        return
    with pytest.raises(
        TaskError, match=r"metric 'peak': the variables of Peak must be sums over rows, got '\w+', which"
    ):
        session.evaluate(batches(), seed=0)
