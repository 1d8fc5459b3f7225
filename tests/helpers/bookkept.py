"""Tasks and sessions for captures that are recorded on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.session import TorchSession
from tests.helpers.recorded_capture import RecordedCapture, recorded_capture

SEVERAL = [{"lr": 0.1}, {"lr": 0.05, "dropout": 0.3}, {"lr": 0.01}]


class Batches:
    """Batches of given numbers of rows."""

    def __init__(self, *sizes: int, extra: Mapping[str, Any] | None = None) -> None:
        self.sizes, self.extra = sizes, dict(extra or {})
        self.rows = sum(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(len(self.sizes))
        for rows in self.sizes:
            x = torch.randn(rows, 4, generator=generator)
            yield {"x": x, "y": torch.randn(rows, generator=generator), **self.extra}


class Task(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(4, config.get("width", 5)),
            torch.nn.Dropout(config.get("dropout", 0.0)),
            torch.nn.Linear(config.get("width", 5), 1),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()


def several(task: hop.TorchTask, configs: list[dict[str, Any]] = SEVERAL) -> tuple[list[TorchSession], RecordedCapture]:
    cache = EngineCache()
    backend = recorded_capture(cache)
    sessions = [
        task.framework.open(config, seed=number, placement=CPU, threads=1, cache=cache)
        for number, config in enumerate(configs)
    ]
    return sessions, backend


def bits(one: TorchSession, folder: Path) -> bytes:
    one.save(folder / "bits")
    return (folder / "bits").read_bytes()


def unit(
    sessions: list[TorchSession], alone: list[TorchSession], batches: Batches, folder: Path, last: bool = False
) -> None:
    """Train a unit together and alone, and compare sums and bits."""
    found = CudaGraphs(sessions).train(batches, last=[last] * len(sessions))
    assert found == [one.train(batches, last=last) for one in alone]
    assert [bits(one, folder) for one in sessions] == [bits(one, folder) for one in alone]
