"""Trials that look alike and compute something else: each trains with its own numbers, stacked or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines.stacked.flotilla import Stacked
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
SCALES = (1.0, 1.0, 2.0, 2.0, 1.01)


class Batches:
    rows = 32

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
            yield {"x": x.to(DEVICE), "y": y.to(DEVICE)}


class Scaled(torch.nn.Module):
    """A model that computes with a number of its configuration, which is an attribute or hidden in an object."""

    def __init__(self, scale: float, hidden: bool) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.0)
        self.scale = SimpleNamespace(value=scale) if hidden else scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: float = self.scale.value if isinstance(self.scale, SimpleNamespace) else self.scale
        found: torch.Tensor = self.drop(self.norm(self.layer(x))) * scale
        return found


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Scaled(config["scale"], config["hidden"])
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def several(hidden: bool) -> list[TorchSession]:
    cache, task = EngineCache(), Task()
    return [
        task.framework.open(
            {"scale": scale, "hidden": hidden}, seed=seed, placement=Placement.on(DEVICE), threads=1, cache=cache
        )
        for seed, scale in enumerate(SCALES)
    ]


@pytest.mark.parametrize(("hidden", "stacks"), [(False, [0, 0, 1, 1, None]), (True, [0, 0, None, None, None])])
def test_trials_that_differ_inside_their_models_are_not_stacked(hidden, stacks, capfd):
    together, alone = several(hidden), several(hidden)
    for last in (False, True):
        found = Stacked(together).train(Batches(), last=[last] * 5)
        for mine, one in zip(found, alone, strict=True):
            theirs = one.train(Batches(), last=last)
            assert isinstance(mine, dict)
            assert float(mine["train_loss"].mean) == pytest.approx(float(theirs["train_loss"].mean), rel=1e-4)
    made = [one.kept.get(Stack) for one in together]
    numbers = list(dict.fromkeys(stack for stack in made if stack is not None))
    assert [None if stack is None else numbers.index(stack) for stack in made] == stacks
    assert ("3 trials train beside the stack" in capfd.readouterr().err) == hidden
    for mine, theirs in zip(together, alone, strict=True):
        for one, other in zip(mine.model.buffers(), theirs.model.buffers(), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5), "the comparison leaves no trace"


class Noisy(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        noisy = {**batch, "x": batch["x"] + torch.randn_like(batch["x"])}
        return super().loss(model, noisy)


def test_losses_with_random_numbers_are_not_compared():
    cache, task = EngineCache(), Noisy()
    members = [
        task.framework.open(
            {"scale": 1.0, "hidden": True}, seed=seed, placement=Placement.on(DEVICE), threads=1, cache=cache
        )
        for seed in range(3)
    ]
    Stacked(members).train(Batches(), last=[False] * 3)
    assert all(Stack in one.kept for one in members)
