"""A task with random batches, and data for its feed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from hopfleet.worker.feeding.feed import UnitBatches
from hopfleet.worker.feeding.shared_batch_cache import SharedBatchCache


class Noisy(hop.TorchTask):
    """Takes so long per batch that sharing batches pays off."""

    seconds = 0.004

    def build(self, config):
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model, batch):
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()

    def transform(self, batch, rng):
        time.sleep(self.seconds)
        if rng is None:
            return {**batch, "x": batch["x"] * 2}
        return {**batch, "x": batch["x"] + rng.normal(size=batch["x"].shape).astype("float32")}


def arrays(rows: int = 203) -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    return {"x": x, "y": x.sum(1)}


def expected(source: UnitBatches, task: hop.TorchTask) -> list[dict[str, Any]]:
    def transform(batch: Any, rng: Any) -> Any:
        return task.transform(batch, None if source.epoch is None else rng)

    how = {"batch_size": source.batch_size, "seed": source.seed, "epoch": source.epoch}
    return list(source.dataset.batches(source.partition, transform=transform, drop_last=source.drop_last, **how))


def same(ones: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    return len(ones) == len(others) and all(
        one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
        for one, other in zip(ones, others, strict=True)
    )


def sources(data: Any) -> list[UnitBatches]:
    return [UnitBatches(data, 1, 4, 7, 2), UnitBatches(data, 1, 4, 7, 1, drop_last=True), UnitBatches(data, 0, 4)]


class Closely(SharedBatchCache):
    """Counts what is put into it."""

    puts = 0

    def put(self, unit: str, number: int, batch: Any) -> int:
        self.puts += 1
        return super().put(unit, number, batch)


class Late(Noisy):
    """Each of its transforms is another one than before."""

    seconds = 0.0

    def __init__(self, column: str) -> None:
        self.column, self.calls = column, 0

    def transform(self, batch, rng):
        self.calls += 1
        texts = [["a", np.arange(2)], ["b"]]
        made = {**batch, "texts": texts, "objects": np.array(["a", None], object), "tensor": torch.zeros(2)}
        now = {
            "none": {},
            "evaluation": {} if rng is not None else {"x": batch["x"] + self.calls},
            "global": {"x": batch["x"] + np.random.random()},
            "type": {"x": batch["x"].astype("float32" if self.calls % 2 else "float64")},
            "list": {"texts": [["a", np.arange(2) + self.calls], ["b"]]},
            "length": {"texts": texts * self.calls},
            "object": {"objects": np.array(["a", self.calls], object)},
            "torch": {"tensor": torch.full((2,), float(self.calls))},
            "new": {f"new{self.calls}": batch["y"]},
        }[self.column]
        return {**made, **now}
