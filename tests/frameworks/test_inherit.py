"""A clone continues from its parent's version with the same bits, and keeps its own settings where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.torch_sessions import Batches

LR = torch.optim.lr_scheduler
BASE = {"optimizer": "sgd", "schedule": "none", "lr": 0.25, "width": 4, "groups": 1}


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        width = config["width"]
        model = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1), torch.nn.Flatten(0)
        )
        parameters: Any = list(model.parameters())
        if config["groups"] == 2:
            parameters = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        if config["optimizer"] == "sgd":
            optimizer: Any = torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9)
        else:
            optimizer = torch.optim.Adam(parameters, lr=config["lr"])
        return model, optimizer, SCHEDULES[config["schedule"]](optimizer)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]) - batch["y"]) ** 2).mean() / 64


#: Halvings only, so that a rate times a factor is exact.
SCHEDULES: dict[str, Any] = {
    "none": lambda o: None,
    "step": lambda o: LR.StepLR(o, 1, gamma=0.5),
    "milestones": lambda o: LR.MultiStepLR(o, [1, 3], gamma=0.5),
    "lambda": lambda o: LR.LambdaLR(o, lambda epoch: 0.5**epoch),
    "sequence": lambda o: LR.SequentialLR(o, [LR.StepLR(o, 1, gamma=0.5), LR.StepLR(o, 2, gamma=0.25)], [3]),
}


def opened(config: Mapping[str, Any], seed: int = 1) -> TorchSession:
    return Task().framework.open(config, seed=seed, placement=CPU, threads=1)


def trained(session: TorchSession, epochs: int) -> TorchSession:
    for _ in range(epochs):
        session.train(Batches(), last=False)
        session.train(Batches(), last=True)
    return session


def inherited(path: Path, changes: Mapping[str, Any], parent: Mapping[str, Any]) -> TorchSession:
    clone = opened({**parent, **changes}, seed=2)
    clone.inherit(path, opened(parent, seed=2))
    return clone


def saved_bytes(session: TorchSession, path: Path) -> bytes:
    session.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_changes_it_has_its_parents_bits(tmp_path: Path, optimizer: str, schedule: str) -> None:
    config = {**BASE, "optimizer": optimizer, "schedule": schedule}
    parent = trained(opened(config), 2)
    parent.save(tmp_path / "parent")
    clone = trained(inherited(tmp_path / "parent", {}, config), 2)
    assert saved_bytes(clone, tmp_path / "clone") == saved_bytes(trained(parent, 2), tmp_path / "later")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_another_rate_is_as_if_it_were_changed_in_the_parent(tmp_path: Path, optimizer: str, schedule: str) -> None:
    config = {**BASE, "optimizer": optimizer, "schedule": schedule}
    alone = trained(opened(config), 2)
    alone.save(tmp_path / "parent")
    clone = trained(inherited(tmp_path / "parent", {"lr": 0.125}, config), 3)
    # By hand: halve the rate of the optimizer and the rate that the schedule starts from.
    for group in alone.optimizers[0].param_groups:
        group["lr"] *= 0.5
        if "initial_lr" in group:
            group["initial_lr"] *= 0.5
    for scheduler in alone.schedulers:
        for part in (scheduler, *getattr(scheduler, "_schedulers", ())):
            for name in ("base_lrs", "_last_lr"):
                if hasattr(part, name):
                    setattr(part, name, [rate * 0.5 for rate in getattr(part, name)])
    trained(alone, 3)
    assert saved_bytes(clone, tmp_path / "clone") == saved_bytes(alone, tmp_path / "alone")


def test_a_schedule_keeps_its_progress(tmp_path: Path) -> None:
    config = {**BASE, "schedule": "step"}
    trained(opened(config), 2).save(tmp_path / "parent")
    clone = inherited(tmp_path / "parent", {"lr": 1.0}, config)
    assert clone.optimizers[0].param_groups[0]["lr"] == 0.25  # halved twice
    assert clone.schedulers[0].last_epoch == 2
    trained(clone, 1)
    assert clone.optimizers[0].param_groups[0]["lr"] == 0.125


def test_another_optimizer_starts_afresh_on_the_same_schedule(tmp_path: Path) -> None:
    config = {**BASE, "schedule": "step"}
    parent = trained(opened(config), 2)
    parent.save(tmp_path / "parent")
    clone = inherited(tmp_path / "parent", {"optimizer": "adam", "lr": 0.5}, config)
    assert not clone.optimizers[0].state
    assert clone.optimizers[0].param_groups[0]["lr"] == 0.125
    assert "momentum" not in clone.optimizers[0].param_groups[0]
    for mine, theirs in zip(clone.model.parameters(), parent.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    trained(clone, 1)


def test_other_groups_of_parameters_start_afresh(tmp_path: Path) -> None:
    trained(opened(BASE), 1).save(tmp_path / "parent")
    clone = inherited(tmp_path / "parent", {"groups": 2, "lr": 0.5}, BASE)
    assert not clone.optimizers[0].state
    assert [group["lr"] for group in clone.optimizers[0].param_groups] == [0.5, 0.5]
    trained(clone, 1)


@pytest.mark.parametrize(("before", "after"), [("step", "lambda"), ("step", "none"), ("none", "step")])
def test_another_schedule_starts_afresh(tmp_path: Path, before: str, after: str) -> None:
    config = {**BASE, "schedule": before}
    trained(opened(config), 2).save(tmp_path / "parent")
    clone = inherited(tmp_path / "parent", {"schedule": after}, config)
    assert clone.optimizers[0].state
    assert clone.optimizers[0].param_groups[0]["lr"] == 0.25
    assert [scheduler.last_epoch for scheduler in clone.schedulers] == [0] * len(clone.schedulers)
    trained(clone, 1)
    assert clone.optimizers[0].param_groups[0]["lr"] == (0.25 if after == "none" else 0.125)


def test_another_architecture_is_refused_with_advice(tmp_path: Path) -> None:
    trained(opened(BASE), 1).save(tmp_path / "parent")
    with pytest.raises(
        TaskError, match=r"does not fit this configuration; clone it cold \(.*size mismatch for 0.weight"
    ):
        inherited(tmp_path / "parent", {"width": 8}, BASE)


def test_a_clone_of_a_clone(tmp_path: Path) -> None:
    config = {**BASE, "schedule": "step"}
    trained(opened(config), 1).save(tmp_path / "first")
    second = {**config, "lr": 0.5}
    trained(inherited(tmp_path / "first", {"lr": 0.5}, config), 1).save(tmp_path / "second")
    third = inherited(tmp_path / "second", {"lr": 2.0}, second)
    assert third.optimizers[0].param_groups[0]["lr"] == 0.5
