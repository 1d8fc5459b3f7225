"""Trials that train together get the bits that each gets alone, or an error says that they cannot."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU, Placement
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import EngineCache, IsolationError
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.recorded_capture import recorded_capture
from tests.helpers.torch_sessions import OPTIMIZERS, Batches, Task, session

#: On "recorded", steps are captured by a stand-in for CUDA graphs, on the CPU.
DEVICES = ["cpu", "recorded", *(["cuda"] if torch.cuda.is_available() else [])]


def bits(one: TorchSession, folder: Path) -> bytes:
    path = folder / "bits"
    one.save(path)
    return path.read_bytes()


class Plain(hop.TorchTask):
    """A small network, with dropout if the configuration asks for it."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(config.get("dropout", 0.0)))
        return model, torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1), momentum=0.9)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        assert isinstance(self.config["lr"], float)
        return ((model(batch["x"]).sum(1) - batch["y"]) ** 2).mean()


def several(task: hop.TorchTask, configs: list[dict[str, Any]], device: str = "cpu") -> list[TorchSession]:
    cache = EngineCache()
    if device == "recorded":
        device = "cpu"
        recorded_capture(cache)
    return [
        task.framework.open(config, seed=number, placement=Placement.on(device), threads=1, cache=cache)
        for number, config in enumerate(configs)
    ]


class On(Batches):
    """Batches on a device."""

    def __init__(self, device: str) -> None:
        self.device = "cpu" if device == "recorded" else device

    def __iter__(self):
        return ({name: value.to(self.device) for name, value in batch.items()} for batch in super().__iter__())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("names", [list(OPTIMIZERS), ["sgd"], ["adam", "adam"]])
def test_the_bits_that_they_have_alone(tmp_path, names, device):
    """Cover dropout, noise from all three generators, schedules, scalers, two units and an evaluation in between."""
    configs = [{"optimizer": name, "schedule": "restarts", "scaler": name == "sgd"} for name in names]
    task = Task()
    alone, together = (several(task, configs, device) for _ in range(2))
    flotilla = task.framework.flotilla(together)
    for last in (False, True):
        found = flotilla.train(On(device), last=[last] * len(names))
        assert found == [one.train(On(device), last=last) for one in alone]
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        assert flotilla.evaluate(On(device), seed=7) == [one.evaluate(On(device), seed=7) for one in alone]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
    assert len(flotilla.shares) == len(names) and sum(flotilla.shares) == pytest.approx(1)


@pytest.mark.parametrize("device", DEVICES)
def test_some_draw_and_some_do_not(tmp_path, device):
    configs = [{"lr": 0.1, "dropout": 0.5}, {"lr": 0.2}, {"lr": 0.3, "dropout": 0.1}, {"lr": 0.01}]
    alone, together = (several(Plain(), configs, device) for _ in range(2))
    assert together[0].task.framework.flotilla(together).train(On(device), last=[True, False, True, False]) == [
        one.train(On(device), last=last) for one, last in zip(alone, [True, False, True, False], strict=True)
    ]
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]


def test_a_guest_leaves_no_traces():
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    members = [session("adam", seed=seed) for seed in (1, 2)]
    members[0].task.framework.flotilla(members).train(Batches(), last=[True, True])
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected
    assert members[0].task.optimizer is None


class Failing(Plain):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.count = getattr(self, "count", 0) + 1
        if self.config["lr"] == 0.3 and self.count > 1:
            raise ValueError("no more")
        return super().loss(model, batch) * (float("nan") if self.config["lr"] == 0.4 else 1.0)

    def metrics(self, model: Any, batch: dict[str, Any]) -> Any:
        return [] if self.config["lr"] == 0.3 else {"loss": self.loss(model, batch)}


def test_a_member_that_fails_does_not_affect_the_others(tmp_path):
    configs = [{"lr": lr, "dropout": 0.5} for lr in (0.1, 0.3, 0.4, 0.2)]
    alone = several(Plain(), [configs[0], configs[3]])
    alone[1] = Plain().framework.open(configs[3], seed=3, placement=CPU, threads=1)
    together = several(Failing(), configs)
    flotilla = together[0].task.framework.flotilla(together)
    first, second, third, fourth = flotilla.train(Batches(), last=[True] * 4)
    assert repr(second) == "ValueError('no more')"
    assert isinstance(third, TaskError) and "the loss is nan in batch 1" in str(third)
    assert [first, fourth] == [one.train(Batches(), last=True) for one in alone]
    assert [bits(together[0], tmp_path), bits(together[3], tmp_path)] == [bits(one, tmp_path) for one in alone]
    found = flotilla.evaluate(Batches(), seed=1)
    assert "metrics() returned []" in str(found[1]) and isinstance(found[0], dict)


class Moody(Plain):
    """Draws, but not with the first batch."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.count = getattr(self, "count", 0) + 1
        draw = {"python": random.random, "numpy": np.random.rand, "torch": lambda: float(torch.rand(1))}
        return super().loss(model, batch) * (draw[self.config["draws"]]() if self.count > 2 else 1.0)


@pytest.mark.parametrize("stream", ["python", "numpy", "torch"])
def test_a_late_draw_is_noticed(stream):
    members = several(Moody(), [{"lr": 0.1, "draws": stream}, {"lr": 0.2, "draws": stream}])
    with pytest.raises(IsolationError, match="drew from a random stream"):
        members[0].task.framework.flotilla(members).train(Batches(), last=[True, True])


class Writing(Plain):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        batch["x"].mul_(2.0)
        return super().loss(model, batch)


class Renaming(Plain):
    """Changes the mapping of the batch, which belongs to the member."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        batch["x"] = batch["x"] * self.config["lr"]
        return super().loss(model, batch)


def test_a_batch_that_is_written_into_is_noticed(tmp_path):
    members = several(Writing(), [{"lr": 0.1}, {"lr": 0.2}])
    with pytest.raises(IsolationError, match="writes into the tensors of its batch"):
        members[0].task.framework.flotilla(members).train(Batches(), last=[True, True])
    alone, together = (several(Renaming(), [{"lr": 0.1}, {"lr": 0.2}]) for _ in range(2))
    together[0].task.framework.flotilla(together).train(Batches(), last=[True, True])
    for one in alone:
        one.train(Batches(), last=True)
    assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]


def test_a_task_that_owns_the_loop_trains_alone():
    task = hop.FunctionTask(lambda batch: batch, lambda config: None, lambda *args: None)
    assert "overrides train" in task.framework.fusion_blocker
    assert Plain().framework.fusion_blocker == ""
