"""Models with convolutions where steps are captured: stacked if that was measured to be faster, else side by side.

Each test runs with CUDA where there is a GPU, and everywhere with a stand-in that captures steps on the CPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Measures
from hopfleet.frameworks.torch.engines.stacked import attempts, flotilla, measured
from hopfleet.frameworks.torch.engines.stacked.attempts import Attempts
from hopfleet.frameworks.torch.engines.stacked.cache import StackCache
from hopfleet.frameworks.torch.engines.stacked.flotilla import FEW
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.captures import Batches, Place, bits, several

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CONFIGS = [{"lr": 0.01 * (number + 1), "patience": number} for number in range(FEW)]
SHAPE = (3, 8, 8)


@pytest.fixture(params=[pytest.param("cuda:0", marks=needs_gpu), "cpu"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


@pytest.fixture(autouse=True)
def attempts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SHARE", math.inf)
    monkeypatch.setattr(flotilla, "begin", lambda session: False)  # kernels are compiled when they are needed


class Images(hop.TorchTask):
    """In double precision, so that mistakes show."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Dropout(config.get("dropout", 0.0)),
            torch.nn.Flatten(),
            torch.nn.Linear(144, 3),
        ).double()
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"].double()), batch["y"])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that takes the durations of the next measurements, whose steps are taken all the same."""
    durations: list[float] = []

    def seconds(step: Callable[[], object], *_: object) -> float:
        for _ in range(3):
            step()
        return durations.pop(0)

    monkeypatch.setattr(measured, "seconds", seconds)
    return durations


def train(task: hop.TorchTask, members: list[TorchSession], place: Place, unit: int) -> Any:
    together = task.framework.flotilla(members, fast=True)
    return together.train(Batches(place.device, SHAPE, count=4, seed=unit), last=[False] * len(members))


def exactly_as_alone(
    task: hop.TorchTask, place: Place, folder: Any, configs: list[dict[str, Any]], units: int = 3
) -> list[TorchSession]:
    """Train some units together and alone, and compare sums and bits; return the members."""
    together, alone = several(place, task, configs), several(place, task, configs)
    for unit in range(units):
        found = train(task, together, place, unit)
        batches = Batches(place.device, SHAPE, count=4, seed=unit)
        assert found == [one.train(batches, last=False) for one in alone]
        assert [bits(one, folder) for one in together] == [bits(one, folder) for one in alone]
    return together


def nearly_as_alone(task: hop.TorchTask, place: Place, units: list[list[int]]) -> list[TorchSession]:
    """Train units of some members together and alone; return the members."""
    together, alone = several(place, task, CONFIGS), several(place, task, CONFIGS)
    for unit, numbers in enumerate(units):
        found = train(task, [together[number] for number in numbers], place, unit)
        for number, sums in zip(numbers, found, strict=True):
            expected = alone[number].train(Batches(place.device, SHAPE, count=4, seed=unit), last=False)
            assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-6)
            for mine, theirs in zip(
                together[number].model.state_dict().values(), alone[number].model.state_dict().values(), strict=True
            ):
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    return together


ALL = list(range(FEW))


@pytest.mark.slow
def test_a_slower_stack_leaves_no_trace(place, tmp_path, timed, capfd):
    """Members keep their tensors, captures and random streams."""
    timed += [0.0112, 0.0198]
    configs = [{**config, "dropout": 0.2} for config in CONFIGS]
    together = exactly_as_alone(Images(), place, tmp_path, configs, units=2)
    kept = [dict(one.kept[Steps]) for one in together]
    assert timed == [] and not any(Stack in one.kept for one in together)
    train(Images(), together, place, 2)
    for one, before in zip(together, kept, strict=True):
        assert all(one.kept[Steps][key] is capture for key, capture in before.items())
    said = capfd.readouterr().err
    assert said.count("4 trials train side by side: 11.2 ms a step, 19.8 ms as a stack") == 1
    assert list(together[0].cache.part(StackCache).faster.values()) == [False]


def test_short_runs_try_no_stack(place, timed, capfd, monkeypatch):
    monkeypatch.setattr(attempts, "SHARE", 0.0)
    together = nearly_as_alone(Images(), place, [ALL] * 3)
    assert type(Images().framework.flotilla(together, fast=True)) is CudaGraphs, "as with exact"
    assert not any(Stack in one.kept for one in together)
    assert "4 trials" not in capfd.readouterr().err

    # After a longer time, one is tried.
    monkeypatch.setattr(attempts, "SHARE", math.inf)
    timed += [0.02, 0.01]
    train(Images(), together, place, 3)
    assert all(Stack in one.kept for one in together)
    assert together[0].cache.part(Attempts).spent > 0


def test_a_faster_stack_is_kept(place, timed, capfd):
    timed += [0.02, 0.01]
    together = nearly_as_alone(Images(), place, [ALL] * 4)
    stack = together[0].kept[Stack]
    assert all(one.kept[Stack] is stack and Steps not in one.kept for one in together)
    assert len(stack.captures) == 2 and stack.lasting, "whole batches and the last, smaller one"
    said = capfd.readouterr().err
    assert said.count("4 trials are stacked: 10 ms a step, 20 ms side by side") == 1
    batches = Batches(place.device, SHAPE)
    found = Images().framework.flotilla(together, fast=True).evaluate(batches, seed=0)
    assert found == [one.evaluate(batches, seed=0) for one in together]
    # Another stack of the kind needs no measurement.
    others = [
        Images().framework.open(
            config, seed=9, placement=Placement.on(place.device), threads=1, cache=together[0].cache
        )
        for config in CONFIGS
    ]
    train(Images(), others, place, 0)
    assert all(Stack in one.kept for one in others)


@pytest.mark.slow
def test_members_leave_a_stack_and_come_back(place, timed):
    """Alone they are captured anew: earlier captures read other tensors. A kind that was measured stays stacked."""
    timed += [0.02, 0.01]
    together = nearly_as_alone(Images(), place, [ALL, ALL, ALL[1:], ALL[:1], ALL, ALL])
    assert len({id(one.kept[Stack]) for one in together}) == 1


@pytest.mark.parametrize("fails", ["Stack", "StackCapture"])
def test_a_stack_that_does_not_fit_is_not_tried_again(place, tmp_path, timed, fails, monkeypatch, capfd):
    tried = []

    def crowded(*_: object) -> None:
        tried.append(fails)
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(flotilla if fails == "Stack" else measured, fails, crowded)
    timed += [0.02]
    exactly_as_alone(Images(), place, tmp_path, CONFIGS)
    assert len(tried) == 1
    assert capfd.readouterr().err.count("train side by side: OutOfMemoryError: no room") == 1


class Reading(Images):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, batch) * (1 + self.config["patience"])


class Hooked(Images):
    def build(self, config: Mapping[str, Any]) -> Any:
        model, optimizer = super().build(config)
        optimizer.register_step_post_hook(lambda *_: None)
        return model, optimizer


@pytest.mark.parametrize("task", [Reading, Hooked])
def test_members_that_cannot_be_compared_train_side_by_side(place, tmp_path, timed, task):
    """Their losses read different numbers, or their updates run code on the host."""
    if task is Reading:
        timed += [0.02]
    together = exactly_as_alone(task(), place, tmp_path, CONFIGS)
    assert not any(Stack in one.kept for one in together) and timed == []


def test_few_members_are_not_measured(place, tmp_path, timed):
    exactly_as_alone(Images(), place, tmp_path, CONFIGS[: FEW - 1])


def test_both_ways_are_measured(place, capfd):
    together = several(place, Images(), CONFIGS)
    for unit in range(3):
        train(Images(), together, place, unit)
    said = capfd.readouterr().err
    assert re.search(r"4 trials (are stacked|train side by side): [\d.]+ ms a step, [\d.]+ ms", said)
    assert Measures not in together[0].kept
