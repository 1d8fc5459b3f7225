"""The tasks that users write: their hooks, and the view of a task that each trial has."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from hopfleet.frameworks import torch as adapter
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.torch_sessions import Batches, Task


def test_tasks_without_their_methods() -> None:
    with pytest.raises(TaskError, match="override build"):
        hop.TorchTask().framework.open({}, seed=0, placement=CPU, threads=1)

    class Lossless(hop.TorchTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            net = torch.nn.Linear(4, 1)
            return net, torch.optim.SGD(net.parameters(), lr=1)

    with pytest.raises(TaskError, match="override loss"):
        Lossless().framework.open({}, seed=0, placement=CPU, threads=1).train(Batches(), last=True)


def test_owning_the_loop() -> None:
    seen: list[Any] = []

    class Owner(Task):
        def train(self, model: Any, batches: Any, config: Mapping[str, Any]) -> Mapping[str, Any]:
            seen.append((len(batches), self.optimizer is not None, self.lr_scheduler is not None, config["optimizer"]))
            return {"speed": 3.0}

    one = Owner().framework.open(
        {"optimizer": "sgd", "schedule": "multistep", "scaler": False}, seed=0, placement=CPU, threads=1
    )
    sums = one.train(Batches(), last=False)
    assert seen == [(3, True, True, "sgd")]
    assert {name: value.mean for name, value in sums.items()} == {"train_speed": 3.0}


def test_the_three_functions_of_the_paper(tmp_path: Path) -> None:
    def train_fn(model: Any, optimizer: Any, batches: Any, config: Mapping[str, Any]) -> dict[str, float]:
        for x, y in batches:
            loss = ((model(x).squeeze(1) - y) ** 2).mean()
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return {"loss": loss}

    def model_fn(config: Mapping[str, Any]) -> Any:
        net = torch.nn.Linear(4, 1)
        return net, torch.optim.SGD(net.parameters(), lr=config["lr"])

    task = hop.FunctionTask(lambda batch: (batch["x"], batch["y"]), model_fn, train_fn)
    one = task.framework.open({"lr": 0.1}, seed=0, placement=CPU, threads=1)
    before = one.model.weight.clone()
    assert set(one.train(Batches(), last=True)) == {"train_loss"}
    after = one.model.weight.clone()
    assert not torch.equal(before, after)
    assert one.evaluate(Batches(), seed=0)["loss"].rows == 24
    assert torch.equal(one.model.weight, after)
    with pytest.raises(TaskError, match="model_fn=3: must be a function"):
        hop.FunctionTask(len, 3, len)


class Remembering(hop.TorchTask):
    """Keeps what its hooks see in an attribute of its own."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def build(self, config: Mapping[str, Any]) -> Any:
        self.seen.append(("build", self.config["lr"], self.optimizer))
        net = torch.nn.Linear(4, 1)
        return net, torch.optim.SGD(net.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.seen.append(("loss", self.config["lr"], self.optimizer.param_groups[0]["lr"]))
        self.last = self.config["lr"]
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()


def opened(task: hop.TorchTask, lr: float) -> TorchSession:
    return task.framework.open({"lr": lr}, seed=0, placement=CPU, threads=1)


def test_trials_share_the_attributes_of_a_task_and_nothing_of_each_other() -> None:
    task = Remembering()
    one, other = opened(task, 0.1), opened(task, 0.2)
    one.train(Batches(), last=True)
    other.train(Batches(), last=True)
    losses = [("loss", lr, lr) for lr in (0.1, 0.2) for _ in range(3)]
    assert task.seen == [("build", 0.1, None), ("build", 0.2, None), *losses]
    assert (one.hooks.last, other.hooks.last) == (0.1, 0.2) and not hasattr(task, "last")
    assert one.hooks.config == {"lr": 0.1} and one.hooks.optimizer is one.optimizers[0]
    assert task.config == {} and task.optimizer is task.lr_scheduler is task.scaler is None, "the task is not changed"


def test_a_view_with_another_configuration_belongs_to_the_same_trial() -> None:
    one = opened(Remembering(), 0.1)
    view = one.hooks.with_config({"lr": 0.3})
    assert view.config == {"lr": 0.3} and view.optimizer is one.optimizers[0]
    assert one.hooks.config == {"lr": 0.1}


def test_a_task_may_be_given_a_configuration_by_hand() -> None:
    task = Remembering()
    task.config = {"lr": 0.5}
    assert task.config == {"lr": 0.5} and Remembering().config == hop.TorchTask.config == {}
    assert opened(task, 0.1).hooks.config == {"lr": 0.1}


def test_a_value_in_the_class_body_does_not_hide_that_of_the_trial() -> None:
    class Declaring(Remembering):
        config: Mapping[str, Any] = {}
        optimizer = None

    one = opened(Declaring(), 0.1)
    assert one.hooks.config == {"lr": 0.1} and one.hooks.optimizer is one.optimizers[0]


@dataclass(slots=True)
class Slotted(Task):
    """A task with attributes outside of its ``__dict__``."""

    width: int = 7

    def metrics(self, model: Any, batch: dict[str, Any]) -> Mapping[str, Any]:
        return {"width": self.width}


def test_a_task_with_slots(tmp_path: Path) -> None:
    config = {"optimizer": "sgd", "schedule": "none", "scaler": False}
    one = Slotted(9).framework.open(config, seed=0, placement=CPU, threads=1)
    assert one.evaluate(Batches(), seed=0)["width"].mean == 9


def test_a_task_travels_to_workers_without_a_trial() -> None:
    task = Task()
    task.note = "kept"  # type: ignore[attr-defined]
    task.framework.open({"optimizer": "sgd", "schedule": "none", "scaler": False}, seed=0, placement=CPU, threads=1)
    assert vars(pickle.loads(pickle.dumps(task))) == {"note": "kept"}


def test_the_adapter_exports_its_tasks() -> None:
    assert adapter.TorchTask is hop.TorchTask and adapter.FunctionTask is hop.FunctionTask
    with pytest.raises(AttributeError, match="has no attribute 'KerasTask'"):
        _ = adapter.KerasTask
