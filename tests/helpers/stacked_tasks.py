"""Tasks whose trials are stacked, and sessions of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.recorded_capture import recorded_capture

#: On a GPU, these tests cover captured steps; on a CPU, those with ``captures`` do so by a stand-in for CUDA graphs.
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, c: torch.optim.SGD(p, lr=c["lr"], weight_decay=c["decay"]),
    "momentum": lambda p, c: torch.optim.SGD(p, lr=c["lr"], momentum=c["beta"], dampening=0.1, weight_decay=c["decay"]),
    "nesterov": lambda p, c: torch.optim.SGD(p, lr=c["lr"], momentum=c["beta"], nesterov=True, maximize=True),
    "adam": lambda p, c: torch.optim.Adam(p, lr=c["lr"], betas=(c["beta"], 0.99), weight_decay=c["decay"]),
    "amsgrad": lambda p, c: torch.optim.Adam(p, lr=c["lr"], amsgrad=True),
    "adamw": lambda p, c: torch.optim.AdamW(p, lr=c["lr"], betas=(c["beta"], 0.99), weight_decay=c["decay"]),
    "decoupled": lambda p, c: torch.optim.Adam(p, lr=c["lr"], weight_decay=c["decay"], decoupled_weight_decay=True),
    "rmsprop": lambda p, c: torch.optim.RMSprop(p, lr=c["lr"], alpha=c["beta"], weight_decay=c["decay"]),
    "centered": lambda p, c: torch.optim.RMSprop(p, lr=c["lr"], momentum=c["beta"], centered=True),
    "adagrad": lambda p, c: torch.optim.Adagrad(p, lr=c["lr"], lr_decay=0.1, weight_decay=c["decay"]),
}


class Batches:
    rows = 56

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for rows in (16, 16, 16, 8):
            x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
            yield {"x": x.to(DEVICE), "y": torch.randint(0, 3, (rows,), generator=generator).to(DEVICE)}


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(6, config.get("width", 8)),
            torch.nn.BatchNorm1d(config.get("width", 8)) if config.get("norm") else torch.nn.ReLU(),
            torch.nn.Dropout(config.get("dropout", 0.0)),
            torch.nn.Linear(config.get("width", 8), 3),
        ).double()
        model[0].bias.requires_grad_(False)  # and the optimizer is given it all the same, as many people do
        groups = [
            {"params": [model[0].bias, model[0].weight]},
            {"params": [*model[1].parameters(), *model[3].parameters()], "lr": 2 * config["lr"]},
        ]
        optimizer = OPTIMIZERS[config["optimizer"]](groups, config)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]) * self.config["weight"]


def configs(name: str, count: int = 4, **more: Any) -> list[dict[str, Any]]:
    return [
        {"optimizer": name, "lr": 0.01 * (n + 1), "beta": 0.8 + 0.05 * n, "decay": 0.1 * n, "weight": 1.0 + n, **more}
        for n in range(count)
    ]


def several(task: hop.TorchTask, configs: list[dict[str, Any]], captures: bool = False) -> list[TorchSession]:
    cache = EngineCache()
    if captures and DEVICE == "cpu":
        recorded_capture(cache)
    return [
        task.framework.open(config, seed=number, placement=Placement.on(DEVICE), threads=1, cache=cache)
        for number, config in enumerate(configs)
    ]


def values(one: TorchSession) -> list[Any]:
    state = one.optimizers[0].state
    gathered = [v for p in one.model.parameters() for _, v in sorted(state.get(p, {}).items()) if torch.is_tensor(v)]
    return [*one.model.state_dict().values(), *gathered]


def close(one: TorchSession, other: TorchSession) -> None:
    for mine, theirs in zip(values(one), values(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
