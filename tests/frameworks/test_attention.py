"""Attention of many members in one operation: the outcome that each member gets alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
MEMBERS = 5


def loss(weights: Any, x: Any, mask: Any = None, **options: Any) -> Any:
    query, key, value = (x @ weights).view(3, 7, 3, 2, 8).permute(2, 0, 3, 1, 4)
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **options)
    return (found * found).sum()


def folded(weights: Any, x: Any, mask: Any = None, **options: Any) -> Any:
    with StackedOperations():
        return loss(weights, x, mask, **options)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((MEMBERS, 16, 48), (3, 7, 16))
    return tuple(torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.1}])
def test_the_gradients_that_each_has_alone(options, dtype):
    weights, x = inputs(dtype)
    found = vmap(lambda one: grad(folded)(one, x, **options))(weights)
    for one, of_one in zip(weights, found, strict=True):
        alone = grad(loss)(one, x, **options)
        close = 1e-3 if dtype == torch.float32 else 3e-2
        assert (of_one - alone).abs().max() < close * alone.abs().max()


def attentions(work: Any, dtype: torch.dtype = torch.float32) -> int:
    nodes = make_fx(vmap(work))(inputs(dtype)[0]).graph.nodes
    return sum("attention" in str(node.target) for node in nodes)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_operation_forward_and_one_backward(dtype):
    x = inputs(dtype)[1]
    assert attentions(lambda one: grad(folded)(one, x), dtype) == 2
    assert attentions(lambda one: grad(loss)(one, x), dtype) > 2  # else torch has a rule of its own by now


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.skipif(DEVICE != "cpu", reason="on CUDA torch cannot do it for many members")
def test_with_a_mask_it_is_torchs_own():
    weights, x = inputs()
    mask = torch.ones(7, 7, dtype=torch.bool, device=DEVICE).tril()
    found = vmap(lambda one: grad(folded)(one, x, mask))(weights)
    torch.testing.assert_close(found, vmap(lambda one: grad(loss)(one, x, mask))(weights))
