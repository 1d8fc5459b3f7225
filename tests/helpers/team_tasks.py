"""Tasks that teams of devices train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache, Session
from hopfleet.frameworks.torch.parallel.team import TorchTeam

ROWS, SIZE = 100, 32
"""Rows of the data, which leave a short last batch."""


class Batches(list[dict[str, Any]]):
    rows = ROWS


def batches(rows: int = ROWS) -> Batches:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 8, generator=generator, dtype=torch.float64)
    y = x[:, 0] * 2 + x[:, 1] ** 2
    found = Batches({"x": x[i : i + SIZE].clone(), "y": y[i : i + SIZE].clone()} for i in range(0, rows, SIZE))
    found.rows = rows
    return found


class Net(hop.TorchTask):
    """A net in double precision whose layers are blocks."""

    def layers(self) -> list[torch.nn.Module]:
        return [
            torch.nn.Linear(8, 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 1),
        ]

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(*self.layers()).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])


def opened(
    task: hop.TorchTask,
    strategy: str,
    size: int = 1,
    team: TorchTeam | None = None,
    cache: EngineCache | None = None,
) -> Session:
    cache = cache or EngineCache()
    cache.team = team
    return task.framework.open({}, seed=1, placement=Placement(("cpu",) * size, strategy), threads=1, cache=cache)
