"""The numbers of steps that hooks are told, in each framework beside PyTorch: they are the steps that are taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.batching import Batching

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]

EPOCHS, SIZE = 2, 4


def trained(folder: Path, task: hop.Task, **more: Any) -> tuple[Any, Batching]:
    """Train a trial on partitions of different sizes; return it, and how its rows become steps."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(29, 2)).astype("float32"), "y": rng.integers(0, 2, 29)}
    train = hop.partition(columns, folder / "data", capacities=[3, 2, 1])
    results = hop.Experiment(
        task, train=train, valid={name: column[:5] for name, column in columns.items()}, batch_size=SIZE,
        search=hop.Grid(max_epochs=EPOCHS), seed=1, backend="inline", workers=1, name="steps",
        **{"space": {"lr": 0.1}, "metric": "loss", "mode": "min", **more},
    ).fit(quiet=True)  # fmt: skip
    return results.best, Batching(train.partition_rows, SIZE, False, EPOCHS)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_lightning(tmp_path: Path, accumulate: int) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    torch = pytest.importorskip("torch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            schedule, loop = self.lr_schedulers(), self.trainer
            self.log("loss", self.training_step(batch, number))
            self.log("updates", float(loop.global_step))
            self.log("stepped", float(schedule.last_epoch))
            self.log("total", float(loop.estimated_stepping_batches))
            self.log("batches", float(loop.max_epochs * loop.num_training_batches))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Task(hop.LightningTask):
        def build(self, config: Any) -> Any:
            return Module()

    task = Task()
    task.accumulate = accumulate
    best, plan = trained(tmp_path, task)
    found = best.history[-1]
    assert found["updates"] == found["stepped"] == found["total"] == plan.total_steps(accumulate)
    assert found["batches"] == plan.total_steps()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_transformers(tmp_path: Path, accumulate: int) -> None:
    transformers = pytest.importorskip("transformers")

    class Task(hop.TransformersTask):
        def build(self, config: Any) -> Any:
            small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
            return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=4, **small))

        def inputs(self, model: Any, batch: Any) -> Any:
            return {"input_ids": (batch["x"] > 0).long(), "labels": batch["y"]}

        def metrics(self, model: Any, batch: Any) -> Any:
            schedule = getattr(self.lr_scheduler, "schedule", self.lr_scheduler)
            updates = next(iter(self.optimizer.state.values()))["step"].item()
            rate = schedule.get_last_lr()[0]
            return {**super().metrics(model, batch), "updates": updates, "stepped": schedule.last_epoch, "rate": rate}

    space = {"lr_scheduler_type": "linear", "warmup_ratio": 0.2, "gradient_accumulation_steps": accumulate}
    best, plan = trained(tmp_path, Task(), space=space)
    found = best.history[-1]
    assert found["updates"] == found["stepped"] == plan.total_steps(accumulate)
    assert found["rate"] == 0.0  # the end of a linear schedule
    with pytest.raises(hop.HopfleetError, match=r"num_train_epochs=3: must be left out.*set max_epochs of the search"):
        trained(tmp_path / "epochs", Task(), space={"num_train_epochs": 3})


def test_keras(tmp_path: Path) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
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


def test_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    import jax.numpy as jnp

    told: list[int] = []

    class Task(hop.JaxTask):
        def init(self, config: Any, key: Any) -> Any:
            return {"w": jnp.zeros((2, 2)), "steps": jnp.zeros(())}

        def optimizer(self, config: Any) -> Any:
            told.append(self.total_steps)
            return optax.sgd(optax.linear_schedule(1.0, 0.0, self.total_steps))

        def loss(self, params: Any, batch: Any, key: Any) -> Any:
            # The gradient of "steps" is 1, so its value is the negative sum of all learning rates.
            loss = optax.softmax_cross_entropy_with_integer_labels(batch["x"] @ params["w"], batch["y"]).mean()
            return loss + params["steps"]

    best, plan = trained(tmp_path, Task())
    total = plan.total_steps()
    assert set(told) == {total}
    rates = [1 - step / total for step in range(total)]
    assert float(best.model()["steps"]) == pytest.approx(-sum(rates), rel=1e-5)


def test_scikit_learn(tmp_path: Path) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    told: list[int] = []

    class Task(hop.SklearnTask):
        classes = (0, 1)
        scoring = "accuracy"

        def build(self, config: Any) -> Any:
            told.append(self.total_steps)
            return linear_model.SGDClassifier()

    best, plan = trained(tmp_path, Task(), metric="accuracy", mode="max")
    assert set(told) == {plan.total_steps()}
    assert best.model().t_ - 1 == EPOCHS * sum(plan.rows)
