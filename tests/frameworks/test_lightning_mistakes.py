"""Mistakes in modules of Lightning are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import TaskError, UsageError
from hopfleet.testing.frameworks import BATCH, ROWS, _Batches
from tests.helpers.lightning_tasks import Counts, Net, Task, data, lightning, opened, unit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def refusal(*, callbacks: Any = (), module: Any = None, train: bool = True, **hooks: Any) -> str:
    kind = type("Wrong", (Net,), hooks)

    class Task(hop.LightningTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return kind(**config) if module is None else module

        def callbacks(self, config: Mapping[str, Any]) -> Any:
            return callbacks

    with pytest.raises(TaskError) as caught:
        unit(opened(Task(), {"lr": 0.1}))
    return str(caught.value)


def stops(self: Any, batch: Any, batch_idx: int) -> None:
    self.trainer.should_stop = True


def two(self: Any) -> Any:
    return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"module": torch.nn.Linear(1, 1)}, "build() returned Linear: return a LightningModule"),
        ({"configure_optimizers": lambda self: None}, "configure_optimizers() returned no optimizer"),
        ({"configure_optimizers": lambda self: 3}, "returned a int: return an optimizer"),
        ({"optimizer_step": lambda self: None}, "Wrong overrides optimizer_step(), which only a Trainer calls"),
        ({"on_validation_epoch_end": lambda self: None}, "log the values in validation_step"),
        (
            {"training_step": lambda self, batch, i: self.trainer.train_dataloader},
            "uses trainer.train_dataloader, which",
        ),
        ({"configure_optimizers": lambda self: self.trainer.max_steps}, "use self.trainer.estimated_stepping_batches"),
        ({"setup": lambda self, stage: self.trainer.datamodule}, "with hop.LightningTask.data(datamodule)"),
        ({"configure_optimizers": two}, "returned 2 optimizers: several need self.automatic_optimization = False"),
        ({"training_step": stops}, "stop=hop.Patience(...)"),
        ({"callbacks": [lightning.callbacks.EarlyStopping("val_loss")]}, "EarlyStopping needs a Trainer: give the"),
        ({"callbacks": ["no callback"]}, "callbacks() returned str"),
        ({"callbacks": [Counts]}, "callbacks() returned the class Counts: return objects, e.g. [Counts()]"),
        ({"module": Net}, "build() returned the class Net: return an object of it, e.g. Net()"),
        ({"training_step": lambda self, dataloader_iter: None}, "Wrong.training_step() takes dataloader_iter"),
        ({"validation_step": lambda self, batch, i, dataloader_idx: None}, "a default, e.g. dataloader_idx=0"),
        ({"training_step": lambda self, batch, i: {"l": 1, "m": 2}}, "a dict without 'loss', only l, m"),
        ({"training_step": lambda self, batch, i: [1.0]}, "training_step() returned the loss [1.0]: must be a scalar"),
        ({"training_step": lambda self, batch, i: self.all_gather(batch[0])}, "uses trainer.strategy.all_gather"),
        (
            {"training_step": lambda self, batch, i: self.trainer.callback_metrics["val_loss"]},
            "trainer.callback_metrics['val_loss']: there is no such value, only none",
        ),
    ],
    ids=[
        "module",
        "no-optimizer",
        "number",
        "hook",
        "validation",
        "attribute",
        "steps",
        "data",
        "two",
        "stop",
        "callback",
        "text",
        "class of a callback",
        "class of a module",
        "iterator",
        "index",
        "no-loss",
        "list",
        "gather",
        "values",
    ],
)
def test_what_needs_a_trainer_is_named(wrong: dict[str, Any], words: str) -> None:
    assert words in refusal(**wrong)


class Short(Net):
    """Steps without the number of the batch, and values that were logged before."""

    def training_step(self, batch: Any) -> Any:
        loss = super().training_step(batch, 0)
        self.log("again", self.trainer.callback_metrics.get("again", 0.0) + 1.0)
        return loss

    def validation_step(self, batch: Any) -> None:
        self.log("again", 100.0)


def test_steps_may_leave_out_the_number_and_find_values_of_their_unit() -> None:
    session = opened(type("Task", (Task,), {"build": lambda self, config: Short(**config)})(), {"lr": 0.1})
    counts = [unit(session)["train_again"].mean]
    assert session.evaluate(_Batches(session, data()), seed=0)["again"].mean == 100
    counts.append(unit(session)["train_again"].mean)
    assert counts == [np.mean(range(1, ROWS // BATCH + 1))] * 2


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda self, batch, i: self.logger.experiment.add_scalar("a", 1), "self.logger is None: record values"),
        (lambda self, batch, i: batch["x"].mean(), "override it to return the batch itself"),
    ],
    ids=["logger", "columns"],
)
def test_errors_of_steps_are_explained(step: Any, words: str) -> None:
    task = type("Task", (Task,), {"build": lambda self, config: type("M", (Net,), {"training_step": step})(**config)})()
    with pytest.raises((AttributeError, TypeError)) as caught:
        unit(opened(task, {"lr": 0.1}))
    task.framework.explain(caught.value)
    assert words in caught.value.__notes__[0]


def test_a_schedule_that_monitors_another_metric_is_refused() -> None:
    session = opened(Task(), {"lr": 0.1, "schedule": "plateau"})
    session.check_goal("val_loss", "min")
    with pytest.raises(TaskError, match="monitors 'val_loss', but schedules follow the metric of the experiment"):
        session.check_goal("loss", "min")


def test_a_team_of_devices_is_refused() -> None:
    framework = Task().framework
    assert framework.strategies() == ("single",) and framework.team_shape("single").strategy == "single"
    with pytest.raises(UsageError, match="trains each trial on one device; use parallelism='single'"):
        framework.team_shape("ddp", 2)
