"""What a model takes: parameters, operations and the longest path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import UsageError
from hopfleet.frameworks.estimate import ResourceEstimate

ROWS, WIDE = 8, 4


class Branches(torch.nn.Module):
    """Layers one after another, then branches whose sum is returned."""

    def __init__(self, depth: int, branches: int) -> None:
        super().__init__()
        self.trunk = torch.nn.ModuleList(torch.nn.Linear(WIDE, WIDE) for _ in range(depth))
        self.branches = torch.nn.ModuleList(torch.nn.Linear(WIDE, WIDE) for _ in range(branches))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.trunk:
            x = layer(x).relu()
        return sum((branch(x) for branch in self.branches), x)


class Branching(hop.TorchTask):
    def build(self, config: Any) -> Any:
        model = Branches(config["depth"], config["branches"])
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch["x"]).square().mean()


class Batches(list[Any]):
    rows = 2 * ROWS


def estimated(task: hop.TorchTask, config: dict[str, int]) -> ResourceEstimate:
    session = task.framework.open(config, seed=0, placement=CPU, threads=1)
    batch = {"x": torch.from_numpy(np.ones((ROWS, WIDE), np.float32))}
    return task.framework.estimate(session, Batches([batch, batch]))


@pytest.mark.parametrize(
    ("depth", "branches", "longest"), [(1, 0, 1.0), (3, 0, 1.0), (1, 1, 1.0), (1, 2, 2 / 3), (2, 4, 0.5), (0, 2, 0.5)]
)
def test_the_longest_path(depth: int, branches: int, longest: float) -> None:
    found = estimated(Branching(), {"depth": depth, "branches": branches})
    layers = depth + branches
    assert found.parameters == 4 * layers * (WIDE * WIDE + WIDE)
    assert found.longest == pytest.approx(longest)
    # Forward, and the gradients of weights and inputs; the rows themselves need no gradient.
    first = 1 if depth else branches
    assert found.flops == 2 * WIDE * WIDE * (3 * layers - first)


def test_a_convolution_is_counted_by_pytorch_s_formula() -> None:
    class Convolution(hop.TorchTask):
        def build(self, config: Any) -> Any:
            model = torch.nn.Conv2d(1, 3, 3, bias=False)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(self, model: Any, batch: Any) -> Any:
            return model(batch["x"].reshape(-1, 1, 2, 2).repeat(1, 1, 2, 2)).sum()

    found = estimated(Convolution(), {})
    assert found.parameters == 4 * 27 and found.flops == 2 * (2 * 27 * 4) and found.longest == 1.0


def test_sparse_gradients_are_refused_with_a_remedy() -> None:
    class Recommender(hop.TorchTask):
        def build(self, config: Any) -> Any:
            model = torch.nn.Sequential(torch.nn.Embedding(8, 4, sparse=True), torch.nn.Linear(4, 1))
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(self, model: Any, batch: Any) -> Any:
            return model(batch["x"].long().abs() % 8).mean()

    with pytest.raises(UsageError, match=r"0: Embedding\(sparse=True\): members of a team .* use sparse=False"):
        estimated(Recommender(), {})


def test_a_model_without_products_goes_by_the_numbers_that_it_makes() -> None:
    class Scale(hop.TorchTask):
        def build(self, config: Any) -> Any:
            model = torch.nn.LayerNorm(WIDE)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(self, model: Any, batch: Any) -> Any:
            return model(batch["x"]).sum()

    found = estimated(Scale(), {})
    assert found.flops >= WIDE and found.longest == 1.0
