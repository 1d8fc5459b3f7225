"""Cross entropy of many members in a few operations: the outcome that each member gets alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
MEMBERS, ROWS, CLASSES = 5, 7, 3


def loss(weights: Any, x: Any, y: Any, **options: Any) -> Any:
    return torch.nn.functional.cross_entropy(x @ weights, y, **options)


def folded(weights: Any, x: Any, y: Any, **options: Any) -> Any:
    with StackedOperations():
        return loss(weights, x, y, **options)


def inputs() -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(MEMBERS, 4, CLASSES, generator=generator, dtype=torch.float64)
    x = torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    return weights.to(DEVICE), x.to(DEVICE), y.to(DEVICE)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ignored": {"ignore_index": 1},
    "sum": {"reduction": "sum"},
    "smooth": {"label_smoothing": 0.1},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("own_targets", [False, True])
def test_losses_and_gradients_that_each_has_alone(name, own_targets):
    weights, x, y = inputs()
    targets = (y + torch.arange(MEMBERS, device=DEVICE)[:, None]) % CLASSES if own_targets else y.expand(MEMBERS, -1)

    def work(one: Any, target: Any) -> Any:
        return grad_and_value(folded)(one, x, target, **OPTIONS[name])

    found = vmap(work)(weights, targets) if own_targets else vmap(work, in_dims=(0, None))(weights, y)
    for number in range(MEMBERS):
        alone = grad_and_value(loss)(weights[number], x, targets[number], **OPTIONS[name])
        for mine, theirs in zip((found[0][number], found[1][number]), alone, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_probabilities_as_targets_are_left_to_torch():
    weights, x, y = inputs()
    target = torch.nn.functional.one_hot(y, CLASSES).double()
    found = vmap(lambda one: folded(one, x, target))(weights)
    assert torch.allclose(found, torch.stack([loss(one, x, y) for one in weights]))


def test_nothing_is_taken_apart():
    weights, x, y = inputs()

    def operations(work: Any) -> set[str]:
        traced = make_fx(vmap(grad_and_value(lambda one: work(one, x, y))))(weights)
        return {str(node.target) for node in traced.graph.nodes}

    parts = {"aten.gather.default", "aten.scatter.value", "aten.where.self"}
    assert not operations(folded) & parts
    assert operations(loss) & parts  # else torch has a rule of its own by now
