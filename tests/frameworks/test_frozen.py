"""Stacks of models with frozen weights that their optimizer holds: right after hundreds of steps, too, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.frameworks.torch.engines.stacked.stack import Stack
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.captures import Batches, Place, several

pytestmark = pytest.mark.usefixtures("stacked_at_once")

CONFIGS = [{"lr": 0.003 * (number + 1), "dtype": "float32"} for number in range(4)]
UNITS = 4


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        layers = torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)
        model = torch.nn.Sequential(*layers, torch.nn.GELU(), torch.nn.Linear(32, 3))
        for frozen in (*model[0].parameters(), model[2].bias):
            frozen.requires_grad_(False)
        model = model.to(getattr(torch, config["dtype"]))
        return model, torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.1)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"].to(model[0].weight.dtype)), batch["y"])


def weights(one: TorchSession) -> torch.Tensor:
    return torch.cat([weight.detach().double().cpu().flatten() for weight in one.model.parameters()])


def test_many_steps_with_frozen_weights(place: Place) -> None:
    """A stack is as near to double precision as training alone, and leaves frozen weights as they were."""
    precise = [{**config, "dtype": "float64"} for config in CONFIGS]
    stacked, alone, exact = (several(place, Task(), configs) for configs in (CONFIGS, CONFIGS, precise))
    with torch.no_grad():
        for one, given in zip(exact, alone, strict=True):
            for mine, theirs in zip(one.model.parameters(), given.model.parameters(), strict=True):
                mine.copy_(theirs)
    frozen = [[w.clone() for w in one.model.parameters() if not w.requires_grad] for one in stacked]
    losses: dict[str, list[float]] = {"stacked": [], "exact": []}
    for unit in range(UNITS):
        batches = Batches(place.device, count=50 if place.on_cuda else 4, ragged=False, seed=unit)
        found = Task().framework.flotilla(stacked, fast=True).train(batches, last=[False] * len(stacked))
        losses["stacked"] += [float(sums["train_loss"].mean) for sums in found]
        for one in alone:
            one.train(batches, last=False)
        losses["exact"] += [float(one.train(batches, last=False)["train_loss"].mean) for one in exact]
    assert all(Stack in one.kept for one in stacked)
    assert losses["stacked"] == pytest.approx(losses["exact"], rel=1e-3)
    for one, near, true, before in zip(stacked, alone, exact, frozen, strict=True):
        ours, theirs = ((weights(each) - weights(true)).norm() for each in (one, near))
        assert ours <= 10 * theirs + 1e-6 * weights(true).norm()
        after = [w for w in one.model.parameters() if not w.requires_grad]
        assert all(map(torch.equal, before, after))
