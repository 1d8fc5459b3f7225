"""Specs of the Cerebro platform, as in Figure 3.2 of the thesis: they train, hop and end with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from hopfleet.support.files import digest


class MySubEpochSpec(hop.SubEpochSpec):
    def __init__(self) -> None:
        self.initialized = 0

    def initialize_worker(self) -> None:
        self.initialized += 1

    def create_models(self) -> list[Any]:
        return [torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        first, second = models
        optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=hyperparams["lr"])
        if checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])
        for batch in dataloader:
            loss = self.loss(models, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint["optimizer"] = optimizer.state_dict()
        return {"loss": float(loss.detach()), "note": "not a number"}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        (loss,) = [self.loss(models, batch) for batch in dataloader]
        return {"loss": float(loss)}

    def loss(self, models: Any, batch: Any) -> torch.Tensor:
        first, second = models
        return torch.nn.functional.mse_loss(second(torch.relu(first(batch["x"]))).squeeze(1), batch["y"])


def rows(count: int) -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1)}


@pytest.mark.slow
def test_a_spec_trains_as_it_stands() -> None:
    spec = MySubEpochSpec()
    results = hop.Experiment(
        spec.task(), train=rows(128), valid=rows(32), space={"lr": hop.grid_search([0.001, 0.05])},
        search=hop.Grid(max_epochs=4), partitions=2, batch_size=16, name="spec", backend="inline",
    ).fit(quiet=True)  # fmt: skip
    assert results.best.config == {"lr": 0.05} and results.best.metrics["loss"] < 1
    assert spec.initialized == 1
    assert results.verify().ok


def test_what_the_checkpoint_holds_hops(tmp_path: Path) -> None:
    framework = MySubEpochSpec().task().framework
    data = hop.partition(rows(64), tmp_path / "set", partitions=2)

    def opened() -> Any:
        return framework.open({"lr": 0.01}, seed=3, placement=CPU, threads=1)

    class Loader:
        rows = 32

        def __init__(self, partition: int) -> None:
            self.partition = partition

        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Any:
            for batch in data.batches(self.partition, batch_size=8):
                yield {name: torch.as_tensor(value) for name, value in batch.items()}

    stays, leaves, arrives = opened(), opened(), opened()
    for session in (stays, leaves):
        session.train(Loader(0), last=False)
    leaves.save(tmp_path / "version")
    arrives.load(tmp_path / "version")
    for session, name in ((stays, "stays"), (arrives, "arrives")):
        session.train(Loader(1), last=True)
        session.save(tmp_path / name)
    assert digest(tmp_path / "stays") == digest(tmp_path / "arrives")


def test_mistakes_are_named() -> None:
    class Wrong(MySubEpochSpec):
        def create_models(self) -> Any:
            return torch.nn.Linear(1, 1)

    with pytest.raises(TaskError, match=r"create_models\(\) returned .*: must be a list"):
        Wrong().task().build({})
    with pytest.raises(TaskError, match="override create_models"):
        hop.SubEpochSpec().task().build({})
