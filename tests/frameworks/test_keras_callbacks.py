"""Keras: callbacks of users run once an epoch as in ``fit``, hop with the trial, and are refused where they cannot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import TaskError
from tests.helpers.keras_tasks import X, Y, batches, keras, opened, values

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning", "ignore:__array__:DeprecationWarning"),
]


class Clipping(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps weights small, slows down when the loss does not fall, and notes what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, float]] = []
        self.least = float("inf")
        self.begun = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        self.begun += 1

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        assert logs is not None
        self.seen.append((epoch, logs["loss"]))
        self.least = min(self.least, logs["loss"])
        for variable in self.model.trainable_variables:
            variable.assign(np.clip(keras.ops.convert_to_numpy(variable.value), -0.3, 0.3))
        self.model.optimizer.learning_rate = 0.1 / (1 + len(self.seen))


def perceptron() -> Any:
    made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
    made.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
    )  # fmt: skip
    return made


class Task(hop.KerasTask):
    given: Any = None

    def build(self, config: Any) -> Any:
        return perceptron()

    def callbacks(self, config: Any) -> Any:
        own = Clipping()
        type(self).given = own
        return [own, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["val_loss"]))]


def test_callbacks_act_as_in_fit_though_the_trial_hops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keras.utils.set_random_seed(5)
    alone, own = perceptron(), Clipping()
    session = opened(Task(), {})
    for variable, mine in zip(alone.variables, session.model.variables, strict=True):
        variable.assign(mine)
    alone.fit(X, Y, batch_size=8, epochs=3, shuffle=False, callbacks=[own], verbose=0)

    session.check_goal("loss", "min")
    for epoch in range(3):
        if epoch:
            session.observe(0.5)
        for last in (False, True):  # two units, each on another worker
            half = list(batches())
            half = half[len(half) // 2 :] if last else half[: len(half) // 2]
            session.train(type(batches())(half), last=last)
            session.save(tmp_path / "version")
            session = opened(Task(), {}, seed=9)
            session.load(tmp_path / "version")
    session.observe(0.5)  # as after the last epoch of fit
    assert values(session.model) == values(alone)
    assert Task.given.begun == own.begun == 3
    assert [epoch for epoch, _ in Task.given.seen] == [epoch for epoch, _ in own.seen] == [0, 1, 2]
    assert [loss for _, loss in Task.given.seen] == pytest.approx([loss for _, loss in own.seen], rel=1e-5)
    assert capsys.readouterr().out.splitlines() == ["0 0.5", "1 0.5", "2 0.5"]


class Built(hop.KerasTask):
    def __init__(self, *callbacks: Any) -> None:
        self.given = callbacks

    def build(self, config: Any) -> Any:
        return perceptron()

    def callbacks(self, config: Any) -> Any:
        return self.given


class Batchwise(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class Patient(keras.callbacks.EarlyStopping):  # type: ignore[misc]
    pass


class Keeping(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.best = keras.Sequential([keras.layers.Dense(1)])


class Asking(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print(logs["val_auc"])


def test_what_cannot_be_called_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"Batchwise.on_train_batch_end would not be called.*override train_step\(\)"):
        opened(Built(Batchwise()), {})
    last = keras.callbacks.LambdaCallback(on_train_end=lambda logs: None)
    with pytest.raises(TaskError, match=r"LambdaCallback.on_train_end would not be called.*use on_epoch_end"):
        opened(Built(last), {})
    with pytest.raises(TaskError, match=r"Patient cannot be kept.*stop=hop.Patience"):
        opened(Built(Patient()), {})
    with pytest.raises(TaskError, match="must be a list of Keras callbacks"):
        opened(Built(3), {})
    session = opened(Built(Keeping()), {})
    session.train(batches(), last=True)
    with pytest.raises(TaskError, match=r"Keeping.best was set to .*, which cannot hop with the trial"):
        session.save(tmp_path / "version")
    session = opened(Built(Asking()), {})
    session.check_goal("accuracy", "max")
    session.train(batches(), last=True)
    with pytest.raises(TaskError, match=r"logs\['val_auc'\] is not known .*there are .*val_accuracy"):
        session.observe(0.5)
