"""PyTorch sessions with everything that has a state, for tests that compare bits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.torch.session import TorchSession


class Batches:
    """Three batches of eight rows."""

    rows = 24

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            yield {"x": torch.randn(8, 4, generator=generator), "y": torch.randn(8, generator=generator)}


class Net(torch.nn.Module):
    """Tied weights, a buffer outside the state dict, dropout, and noise from all three generators."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(4, 1)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.dropout(torch.relu(self.second(torch.relu(self.first(x)))))
        return self.last(x).squeeze(1) + random.random() * 1e-3 + float(np.random.rand()) * 1e-3


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        net = Net()
        optimizer = OPTIMIZERS[config["optimizer"]](net.parameters())
        schedule = SCHEDULES[config["schedule"]](optimizer)
        scaler = torch.amp.GradScaler("cpu") if config["scaler"] else None
        return net, optimizer, schedule, scaler

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "rprop": lambda p: torch.optim.Rprop(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
}


LR = torch.optim.lr_scheduler


SCHEDULES: dict[str, Any] = {
    "none": lambda o: None,
    "multistep": lambda o: LR.MultiStepLR(o, [1, 2]),
    "onecycle": lambda o: LR.OneCycleLR(o, max_lr=0.1, total_steps=10),
    "lambda": lambda o: LR.LambdaLR(o, lambda epoch: 0.9**epoch),
    "restarts": lambda o: LR.CosineAnnealingWarmRestarts(o, 2),
    "sequential": lambda o: LR.SequentialLR(o, [LR.ConstantLR(o, 0.5, 2), LR.ExponentialLR(o, 0.9)], [2]),
}


def session(optimizer: str = "adam", schedule: str = "none", *, scaler: bool = False, seed: int = 3) -> TorchSession:
    config = {"optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    return Task().framework.open(config, seed=seed, placement=CPU, threads=1)


def trained(one: TorchSession, units: int) -> TorchSession:
    for _ in range(units):
        one.train(Batches(), last=True)
    return one
