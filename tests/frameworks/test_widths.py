"""Perceptrons of different widths where steps are captured: padded with zeros and stacked where that takes less time.

Each test runs with CUDA where there is a GPU, and everywhere with a stand-in that captures steps on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import hopfleet as hop
from hopfleet.frameworks.torch.engines.stacked import widths
from hopfleet.frameworks.torch.engines.stacked.models import family
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.engines.stacked.widths import Alike, together
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.captures import Batches, Place, several

pytestmark = pytest.mark.usefixtures("stacked_at_once")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPE = (12,)
WIDTHS = [8, 6, 8, 5, 6, 3]

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.1),
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, centered=True),
}


@pytest.fixture(params=[pytest.param("cuda:0", marks=needs_gpu), "cpu"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


class Layers(hop.TorchTask):
    """In double precision, so that mistakes show."""

    def build(self, config: Mapping[str, Any]) -> Any:
        width = config["width"]
        model = nn.Sequential(
            nn.Linear(12, width),
            nn.GELU(),
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh()),
            nn.Linear(2 * width, 3),
        ).double()
        return model, OPTIMIZERS[config["optimizer"]](model.parameters(), config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"].double()), batch["y"])


class Reading(Layers):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return super().loss(model, batch) * self.config["width"]


def configs(optimizer: str = "adamw") -> list[dict[str, Any]]:
    return [{"width": width, "lr": 0.01 * (number + 1), "optimizer": optimizer} for number, width in enumerate(WIDTHS)]


def train(task: hop.TorchTask, members: list[TorchSession], place: Place, unit: int) -> Any:
    flotilla = task.framework.flotilla(members, fast=True)
    return flotilla.train(Batches(place.device, SHAPE, count=4, seed=unit), last=[False] * len(members))


def stacks(members: list[TorchSession]) -> list[int]:
    return sorted(len(stack.sessions) for stack in {one.kept[Stack] for one in members if Stack in one.kept})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_padded_members_learn_what_they_learn_alone(place: Place, optimizer: str) -> None:
    task, some = Layers(), [0, 2, 3, 5]
    members, alone = (several(place, task, configs(optimizer)) for _ in range(2))
    kept = []
    for unit, numbers in enumerate([range(6), range(6), some, range(6)]):
        found = train(task, [members[number] for number in numbers], place, unit)
        kept.append({members[number].kept[Stack] for number in numbers})
        for number, sums in zip(numbers, found, strict=True):
            expected = alone[number].train(Batches(place.device, SHAPE, count=4, seed=unit), last=False)
            assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-6)
        for mine, theirs in zip(members, alone, strict=True):
            for own, other in zip(mine.model.parameters(), theirs.model.parameters(), strict=True):
                assert own.is_contiguous() and own.shape == other.shape
                torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-9)
                for name, value in theirs.optimizers[0].state[other].items():
                    torch.testing.assert_close(mine.optimizers[0].state[own][name], value, rtol=1e-6, atol=1e-9)
    assert [len(each) for each in kept] == [1, 1, 1, 1], "all are in one stack"
    assert kept[0] == kept[1], "and stay there"
    assert len({id(stack) for each in kept for stack in each}) == 3


class Single(Layers):
    """In single precision, for which there are kernels."""

    def build(self, config: Mapping[str, Any]) -> Any:
        width = config["width"]
        model = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 3))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"].float()), batch["y"])


def test_padded_members_learn_the_same_with_kernels(place: Place) -> None:
    members, alone = (several(place, Single(), configs()) for _ in range(2))
    for unit in range(3):
        found = train(Single(), members, place, unit)
        for one, sums in zip(alone, found, strict=True):
            expected = one.train(Batches(place.device, SHAPE, count=4, seed=unit), last=False)
            assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-4)
    assert stacks(members) == [len(WIDTHS)]
    for mine, theirs in zip(members, alone, strict=True):
        for own, other in zip(mine.model.parameters(), theirs.model.parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def test_padded_weights_stay_zero(place: Place) -> None:
    members = several(place, Layers(), configs())
    for unit in range(2):
        train(Layers(), members, place, unit)
    (stack,) = {one.kept[Stack] for one in members}
    own = sum(weight.numel() for one in members for weight in one.model.parameters())
    assert int((stack.weights != 0).sum()) <= own < stack.weights.numel()


def test_a_loss_that_reads_the_width_keeps_widths_apart(place: Place) -> None:
    task, wide = Reading(), [{"width": 8, "lr": 0.01 * (n + 1), "optimizer": "adamw"} for n in range(4)]
    members = several(place, task, [*wide, {"width": 4, "lr": 0.01, "optimizer": "adamw"}])
    alone = several(place, task, [*wide, {"width": 4, "lr": 0.01, "optimizer": "adamw"}])
    found = train(task, members, place, 0)
    for one, sums in zip(alone, found, strict=True):
        expected = one.train(Batches(place.device, SHAPE, count=4, seed=0), last=False)
        assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-6)
    assert stacks(members) == [4]


def test_padding_that_does_not_pay_leaves_stacks_by_width(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widths, "WORTH", 0)
    task = Layers()
    configs = [{"width": 4 + 4 * (n % 2), "lr": 0.01 * (n + 1), "optimizer": "adamw"} for n in range(8)]
    members, alone = (several(place, task, configs) for _ in range(2))
    for unit in range(2):
        found = train(task, members, place, unit)
        for one, sums in zip(alone, found, strict=True):
            expected = one.train(Batches(place.device, SHAPE, count=4, seed=unit), last=False)
            assert float(sums["train_loss"].mean) == pytest.approx(float(expected["train_loss"].mean), rel=1e-6)
    assert stacks(members) == [4, 4]


def test_groups_are_joined_while_few_zeros_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widths, "WORTH", 100)
    wide, close, narrow = (Alike(4, [(10, width), (width,)]) for width in (10, 9, 1))
    assert together([narrow, wide, close]) == [[1, 2], [0]]
    assert together([close]) == [[0]]
    assert together([]) == []
    assert together([wide, Alike(1, [(10, 2), (2,)])]) == [[0, 1]], "one small member needs fewer zeros than four"


UNFIT: dict[str, Any] = {
    "a norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
    "zeros do not stay zeros": lambda: nn.Sequential(nn.Linear(12, 8), nn.Sigmoid(), nn.Linear(8, 3)),
    "no linear layer": lambda: nn.Sequential(nn.Tanh(), nn.Conv1d(1, 1, 1)),
    "code of its own": lambda: type("Own", (nn.Sequential,), {})(nn.Linear(12, 8), nn.Linear(8, 3)),
}


def _twice() -> nn.Module:
    layer = nn.Linear(12, 12)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(12, 3))


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.Linear(12, 3))
    model[2].weight = model[0].weight
    return model


def _hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].register_forward_hook(lambda module, given, found: found + 1)
    return model


UNFIT |= {"a layer twice": _twice, "tied weights": _tied, "a hook": _hooked}


class Given(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = config["model"]()
        held = list(model.parameters())
        return model, torch.optim.SGD(held[2:] if config.get("part") else held, lr=0.1)


def opened(place: Place, make: Any, **more: Any) -> TorchSession:
    (session,) = several(place, Given(), [{"model": make, **more}])
    return session


@pytest.mark.parametrize("why", UNFIT)
def test_models_that_cannot_be_padded_have_no_family(why: str) -> None:
    assert not family(opened(Place("cpu"), UNFIT[why]))


def test_a_family_has_the_same_inputs_outputs_and_layers() -> None:
    def sequence(first: int, width: int, last: int) -> Any:
        return lambda: nn.Sequential(nn.Linear(first, width), nn.ReLU(), nn.Linear(width, last))

    place = Place("cpu")
    found = family(opened(place, sequence(12, 8, 3)))
    assert found
    assert family(opened(place, sequence(12, 5, 3))) == found
    assert family(opened(place, sequence(11, 8, 3))) != found
    assert family(opened(place, sequence(12, 8, 2))) != found
    assert not family(opened(place, sequence(12, 8, 3), part=True)), "the optimizer holds some weights only"
