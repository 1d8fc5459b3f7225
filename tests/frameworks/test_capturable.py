"""Optimizers as their constructors make them: on CUDA their updates are captured, with the bits of the trial alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.errors import TaskError
from tests.helpers.captures import Batches, Place, compare, several

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = Place("cuda:0")

KINDS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop", "RMSprop", "SGD")
SCHEDULES: dict[str, Any] = {
    "none": lambda optimizer: None,
    "exponential": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.01, total_steps=1000, cycle_momentum=False
    ),
    "sequential": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
        ],
        milestones=[3],
    ),
}


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        dropout = torch.nn.Dropout(config.get("dropout", 0.0))
        model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), dropout, torch.nn.Linear(32, 3))
        optimizer = getattr(torch.optim, config["kind"])(
            model.parameters(), lr=config["lr"], **config.get("settings", {})
        )
        return model, optimizer, SCHEDULES[config.get("schedule", "none")](optimizer)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class ByBatch(Task):
    lr_step = "batch"


class Clipped(Task):
    clip_norm = 0.1
    ema = 0.99


class Brief(Task):
    precision = "bf16"


class Scaled(Task):
    precision = "fp16"
    clip_norm = 1.0


@needs_gpu
@pytest.mark.parametrize("task", [Task, ByBatch, Clipped, Brief, Scaled])
@pytest.mark.parametrize("kind", KINDS)
def test_default_constructors_are_captured(tmp_path, kind, task):
    configs = [
        {"kind": kind, "lr": lr, "dropout": dropout, "schedule": "exponential"}
        for lr, dropout in ((0.1, 0.5), (0.01, 0.0))
    ]
    captures = compare(CUDA, task(), configs, tmp_path)
    assert all(capture for unit in captures for capture in unit)


@needs_gpu
@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_schedules_change_no_capture(tmp_path, kind, schedule, by_batch):
    task = ByBatch() if by_batch else Task()
    configs = [{"kind": kind, "lr": lr, "schedule": schedule} for lr in (0.1, 0.01)]
    captures = compare(CUDA, task, configs, tmp_path)
    assert all(capture for unit in captures for capture in unit)
    # The second member never hopped: one capture for whole batches and one for the last, smaller batch.
    assert captures[1][1].items() <= captures[4][1].items()


@needs_gpu
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Adam", {"foreach": True}),
        ("Adam", {"foreach": False}),
        ("Adam", {"fused": True}),
        ("AdamW", {"capturable": True}),
        ("Adam", {"fused": False, "amsgrad": True}),
        ("SGD", {"foreach": True, "momentum": 0.9}),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ],
)
def test_settings_given_by_hand_are_respected(tmp_path, kind, settings):
    configs = [{"kind": kind, "lr": lr, "settings": settings} for lr in (0.1, 0.01)]
    captures = compare(CUDA, Task(), configs, tmp_path)
    assert all(capture for unit in captures for capture in unit)
    (one,) = several(CUDA, Task(), configs[:1])
    one.train(Batches("cuda:0"), last=True)
    assert {name: one.optimizers[0].param_groups[0][name] for name in settings} == settings


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_loop_with_one_more_line_has_the_same_bits(kind):
    (one,) = several(CUDA, Task(), [{"kind": kind, "lr": 0.01, "schedule": "exponential"}])
    model, optimizer, schedule = Task().build({"kind": kind, "lr": 0.01, "schedule": "exponential"})
    model.load_state_dict(one.model.state_dict())
    hop.capturable(_moved(model, optimizer))
    for unit in range(3):
        for batch in Batches("cuda:0", seed=unit):
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
        schedule.step()
        one.train(Batches("cuda:0", seed=unit), last=True)
    for mine, theirs in zip(model.parameters(), one.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def _moved(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model.to("cuda:0")
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                state[name] = value.to("cuda:0")
    return optimizer


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_versions_travel_between_devices(tmp_path, kind):
    config = {"kind": kind, "lr": 0.01, "schedule": "exponential"}
    (there,) = several(CUDA, Task(), [config])
    there.train(Batches("cuda:0"), last=True)
    there.save(tmp_path / "there")
    here = Task().framework.open(config, seed=1, placement=Placement.on("cpu"), threads=1)
    here.load(tmp_path / "there")
    here.train(Batches("cpu"), last=True)
    assert not here.optimizers[0].param_groups[0].get("capturable")
    here.save(tmp_path / "here")
    (again,) = several(CUDA, Task(), [config])
    again.load(tmp_path / "here")
    again.train(Batches("cuda:0"), last=True)


class Own(torch.optim.Adam):
    """A class of the user."""


class OwnTask(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, *_ = super().build({**config, "kind": "SGD"})
        return model, Own(model.parameters(), lr=config["lr"])


class Sparse(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.EmbeddingBag(10, 8, sparse=True), torch.nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        rows = (batch["x"].abs() * 3).long().clamp(max=9)
        return torch.nn.functional.cross_entropy(model(rows), batch["y"])


@needs_gpu
@pytest.mark.parametrize("task", [OwnTask, Sparse])
def test_other_optimizers_and_sparse_gradients_stay_as_they_are(tmp_path, task):
    (one,) = several(CUDA, task(), [{"lr": 0.1}])
    one.train(Batches("cuda:0"), last=True)
    assert not any(update is not None and update.active for update in one.updates)


def test_other_devices_stay_as_they_are():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    assert hop.capturable(optimizer) is optimizer
    assert not optimizer._optimizer_step_pre_hooks
    cold = Task().framework.open({"kind": "Adam", "lr": 0.1}, seed=1, placement=Placement.on("cpu"), threads=1)
    assert cold.updates == [None]


def test_capture_is_a_truth_value():
    class Wrong(Task):
        capture = "yes"

    with pytest.raises(TaskError, match="capture='yes': must be True or False"):
        Wrong().framework.open({"kind": "Adam", "lr": 0.1}, seed=1, placement=Placement.on("cpu"), threads=1)
