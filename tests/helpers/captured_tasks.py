"""Tasks whose steps are captured, in whole or in part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import hopfleet as hop
from tests.helpers.captures import Place

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


#: On the CPU, torch has no capturable optimizers, and only fused ones count their steps without reading values.
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, lr, cuda: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr, cuda: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "fused sgd": lambda p, lr, cuda: torch.optim.SGD(p, lr=lr, momentum=0.9, fused=True),
    "adam": lambda p, lr, cuda: torch.optim.Adam(p, lr=lr, **{"capturable" if cuda else "fused": True}),
    "fused adam": lambda p, lr, cuda: torch.optim.Adam(p, lr=lr, fused=True),
    "adamw": lambda p, lr, cuda: torch.optim.AdamW(p, lr=torch.tensor(lr), fused=True),
    "rmsprop": lambda p, lr, cuda: torch.optim.RMSprop(p, lr=lr, capturable=cuda),
}


SOME_SLOW = [
    name if name in ("momentum", "adam", "adamw") else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS
]
"""All optimizers; make test runs three of them."""


class Task(hop.TorchTask):
    def __init__(self, place: Place) -> None:
        self.cuda = place.on_cuda

    def build(self, config: Mapping[str, Any]) -> Any:
        width = config.get("width", 32)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(config.get("dropout", 0.0)),
            torch.nn.Linear(width, 3),
        )
        optimizer = OPTIMIZERS[config["optimizer"]](model.parameters(), config["lr"], self.cuda)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class Peeking(Task):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss * 2 if loss.item() > 1e9 else loss
