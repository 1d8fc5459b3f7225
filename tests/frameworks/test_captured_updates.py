"""Steps that are captured in part: gradients alone, updates alone, and accumulated gradients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.frameworks.torch.engines.captured_update import UpdateCapture
from tests.helpers.captured_tasks import OPTIMIZERS, SOME_SLOW, Peeking, Task, needs_gpu
from tests.helpers.captures import Place, compare


class Plain(Task):
    capture = False

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *_ = super().build({**config, "optimizer": "sgd"})
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])


class Gathering(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, *_ = super().build({**config, "optimizer": "sgd"})
        return model, torch.optim.Adagrad(model.parameters(), lr=config["lr"])


class Noisy(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, batch) * (1 + 0.01 * float(torch.rand(1)))


class Hooked(Task):
    """An optimizer with a hook of the user, which changes what it sees."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer, schedule = super().build(config)
        optimizer.register_step_post_hook(lambda *_: [p.data.mul_(0.999) for p in model.parameters()])
        return model, optimizer, schedule


class Cycled(Task):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *_ = super().build(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=1000)


@pytest.mark.parametrize("task", [Gathering, Hooked, Cycled])
def test_gradients_are_captured_where_updates_cannot_be(place, tmp_path, task, capfd):
    configs = [{"optimizer": "sgd", "lr": lr, "dropout": 0.1} for lr in (0.1, 0.01)]
    captures = compare(place, task(place), configs, tmp_path)
    assert all(capture for unit in captures for capture in unit)
    said = capfd.readouterr().err
    assert said.count("only gradients are captured") == 1 and "steps are not captured" not in said


class Accumulating(Task):
    def __init__(self, place: Place, batches: int, **more: Any) -> None:
        super().__init__(place)
        self.accumulate = batches
        for name, value in more.items():
            setattr(self, name, value)


class AccumulatingCycled(Accumulating):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *_ = super().build(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


class Pair(Accumulating):
    """Two optimizers."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model, *_ = Task.build(self, config)
        first = OPTIMIZERS["fused adam"](model[0].parameters(), config["lr"], self.cuda)
        return model, [first, OPTIMIZERS["momentum"](model[3].parameters(), config["lr"] / 2, self.cuda)]


class AccumulatingHooked(Accumulating, Hooked):
    pass


@pytest.mark.parametrize(
    ("kind", "batches", "more", "graphs"),
    [
        (Accumulating, 2, {}, 2),
        (Accumulating, 3, {"clip_norm": 0.1, "ema": 0.9}, 3),  # nine batches: all of them are used
        (Accumulating, 4, {}, 3),  # the gradients of the ninth batch wait for the end of the unit
        pytest.param(AccumulatingCycled, 2, {}, 2, marks=pytest.mark.slow),
        pytest.param(AccumulatingHooked, 2, {}, 2, marks=pytest.mark.slow),
        pytest.param(Pair, 1, {}, 1, marks=pytest.mark.slow),
        (Pair, 2, {}, 2),
    ],
)
def test_accumulated_gradients_and_several_optimizers_are_captured(place, tmp_path, kind, batches, more, graphs, capfd):
    configs = [{"optimizer": "fused adam", "lr": lr, "dropout": 0.1} for lr in (0.1, 0.01)]
    captures = compare(place, kind(place, batches, **more), configs, tmp_path)
    found = {len(capture.graphs) for unit in captures for kept in unit for capture in (kept or {}).values()}
    assert found == {graphs} and "steps are not captured" not in capfd.readouterr().err


def test_accumulated_gradients_are_captured_where_nothing_is_drawn(place, tmp_path):
    """The capture comes after the first update, and is compared with eager steps that use the members' streams."""
    configs = [{"optimizer": "sgd", "lr": lr, "dropout": 0.0} for lr in (0.1, 0.01)]
    captures = compare(place, Accumulating(place, 2), configs, tmp_path)
    assert all(capture for unit in captures for capture in unit)


class PeekingGathering(Peeking, Gathering):
    """Neither the gradients nor the update can be captured: Adagrad counts its steps on the host."""


@pytest.mark.parametrize("task", [Plain, PeekingGathering])
def test_what_cannot_be_captured_trains_all_the_same(place, tmp_path, task, capfd):
    configs = [{"optimizer": "sgd", "lr": lr, "dropout": 0.1} for lr in (0.1, 0.01)]
    captures = compare(place, task(place), configs, tmp_path)
    assert not any(capture for unit in captures for capture in unit)
    said = capfd.readouterr().err
    assert said.count("steps are not captured") == 1
    assert {
        Plain: "capture = False",
        PeekingGathering: "without .item(), float(), print or a condition on a tensor",
    }[task] in said


class Printing(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        print("the loss is", loss)
        return loss


class Optioned(Peeking):
    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(place)
        for name, value in options.items():
            setattr(self, name, value)


class PeekingPair(Optioned):
    build = Pair.build


def only_updates(place: Place, task: hop.TorchTask, optimizer: str, folder: Path, said: Any) -> list[UpdateCapture]:
    """Compare trials whose updates alone are captured with trials alone; return the captures."""
    configs = [{"optimizer": optimizer, "lr": lr, "dropout": 0.1} for lr in (0.1, 0.01)]
    found: list[UpdateCapture] = []
    captures = compare(place, task, configs, folder, watch=lambda one: found.append(one.kept[UpdateCapture]))
    assert not any(capture for unit in captures for capture in unit)
    text = said.readouterr().err
    assert text.count("only updates are captured") == 1 and "steps are not captured" not in text
    return found


@pytest.mark.parametrize("task", [Peeking, Noisy, Printing])
def test_updates_are_captured_alone_where_gradients_cannot_be(place, tmp_path, task, capfd):
    if task is Printing and not place.on_cuda:
        pytest.skip("the stand-in lets tensors be printed")
    found = only_updates(place, task(place), "momentum", tmp_path, capfd)
    # Neither another batch size nor, on CUDA, another learning rate is a reason to capture again; only the hop is.
    assert len(set(map(id, found))) == (3 if place.on_cuda else 5)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_captured_updates_of_each_optimizer(place, tmp_path, name, capfd):
    only_updates(place, Peeking(place), name, tmp_path, capfd)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Optioned, {"clip_norm": 0.1, "ema": 0.9}),
        (Optioned, {"accumulate": 2, "clip_norm": 0.1}),
        (PeekingPair, {"accumulate": 4, "ema": 0.9}),
        pytest.param(Optioned, {"precision": "fp16"}, marks=needs_gpu),
        pytest.param(Optioned, {"precision": "fp16", "clip_norm": 0.1, "accumulate": 2}, marks=needs_gpu),
    ],
)
def test_captured_updates_clip_accumulate_scale_and_average(place, tmp_path, kind, options, capfd):
    if options.get("precision") and not place.on_cuda:
        pytest.skip("half precision is scaled on CUDA")
    only_updates(place, kind(place, **options), "fused adam", tmp_path, capfd)


@needs_gpu
def test_captured_updates_read_the_learning_rates_of_schedules_that_step_after_each_batch(tmp_path, capfd):
    place = Place("cuda:0")
    found = only_updates(place, Optioned(place, lr_step="batch"), "adam", tmp_path, capfd)
    assert len(set(map(id, found))) == 3
