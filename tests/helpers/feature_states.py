"""Tasks as people write them whose steps change more than weights: buffers, counters and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tests.helpers.feature_runs import CLASSES, WIDTH
from tests.helpers.feature_tasks import Featured


class Counting(nn.Module):
    """Standardizes by means made by hand, in a buffer that is changed in place, and counts batches."""

    mean: torch.Tensor
    batches: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0).to(self.mean.dtype), 0.1)
                self.batches += 1
        return (x - self.mean) / (1 + 1 / (1 + self.batches))


class Counted(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Counting(), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


class Replacing(Counting):
    """Assigns new tensors to its buffers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.batches = self.batches + 1
        return (x - self.mean) / (1 + 1 / (1 + self.batches))


class Replaced(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Replacing(), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


class InLoss(Featured):
    """A mean of losses in a buffer, which the loss itself changes."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        model = super().model(config)
        model.register_buffer("level", torch.ones(()))
        return model

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        with torch.no_grad():
            model.level.mul_(0.9).add_(0.1 * loss.to(model.level.dtype))
        return loss / model.level


class Warming(nn.Module):
    """Counts its batches on the host, and does something else after some."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += self.training
        return x * min(1.0, self.seen / 30)


class Warmed(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Warming(), nn.Linear(WIDTH, CLASSES))


class OfTask(Featured):
    """Counts batches in an attribute of the task."""

    seen = 0

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.seen += 1
        return super().loss(model, batch) * (1.0 if self.seen < 10 else 0.5)


class Momentary(nn.Module):
    """Keeps a mean in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Any = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class Remembered(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Momentary(), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


class OfRate(Featured):
    """A loss that reads the learning rate of its trial."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        rate = self.optimizer.param_groups[0]["lr"]
        return super().loss(model, batch) + 0.001 * rate * model[0].weight.square().sum()
