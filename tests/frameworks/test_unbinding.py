"""Slices of a tensor: their gradients come together as torch's own do, with fewer copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import grad, vmap

from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations
from hopfleet.frameworks.torch.engines.stacked.unbinding import joined

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


def attended(parts: torch.Tensor) -> torch.Tensor:
    query, key, value = parts.permute(2, 0, 3, 1, 4)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def unequal(parts: torch.Tensor) -> torch.Tensor:
    first, second, _ = torch.unbind(parts, 2)
    return first * second.exp()


def negative(parts: torch.Tensor) -> torch.Tensor:
    return sum(one * number for number, one in enumerate(parts.unbind(-1)))  # type: ignore[return-value]


@pytest.mark.parametrize("work", [attended, unequal, negative])
def test_gradients_are_those_of_torch(work: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(5, 16, 48, generator=generator).to(DEVICE)
    x = torch.randn(3, 7, 16, generator=generator).to(DEVICE)

    def loss(weight: torch.Tensor, rules: Any) -> torch.Tensor:
        with rules:
            return work((x @ weight).view(3, 7, 3, 2, 8)).pow(2).sum()

    found = vmap(lambda one: grad(loss)(one, StackedOperations(kernels=True)))(weights)
    expected = torch.stack([grad(loss)(one, torch.overrides.BaseTorchFunctionMode()) for one in weights])
    assert (found - expected).abs().max() < 1e-3 * expected.abs().max()


def test_slices_that_lie_side_by_side_are_not_copied() -> None:
    whole = torch.randn(4, 7, 3, 2, 8)
    slices = whole.permute(2, 0, 3, 1, 4).unbind(0)
    found = joined(0, [1, 3, 0, 2, 4], slices)
    assert torch.equal(found, torch.stack(slices))
    assert found.data_ptr() == whole.data_ptr()
    assert found.permute(1, 3, 0, 2, 4).is_contiguous()


@pytest.mark.parametrize("order", [[1, 3, 0, 2, 4], [0, 1, 2, 3, 4]])
def test_other_slices_are_put_together_in_the_order_of_memory(order: list[int]) -> None:
    slices = [torch.randn(4, 2, 7, 8) for _ in range(3)]
    found = joined(0, order, slices)
    assert torch.equal(found, torch.stack(slices))
    assert found.permute(order).is_contiguous()
    assert torch.equal(joined(0, order, [slices[0]] * 3), torch.stack([slices[0]] * 3)), "one slice several times"
    assert torch.equal(joined(0, order, slices[:1]), torch.stack(slices[:1]))
