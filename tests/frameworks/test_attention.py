"""Attention of many members in one operation: the outcome that each member gets alone."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.func import grad, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from hopfleet.frameworks.torch.engines.stacked.operations import CertainOperations, StackedOperations

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


def test_torchs_layer_for_many_heads_takes_one_operation_forward_and_one_backward():
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).to(DEVICE)
    x = inputs()[1]

    def work(one: Any, context: Any) -> Any:
        with context:
            weights = {"in_proj_weight": one.T}
            return torch.func.functional_call(layer, weights, (x, x, x), {"need_weights": False})[0].square().sum()

    weights = inputs()[0]
    folds = vmap(lambda one: grad(work)(one, StackedOperations()))
    nodes = make_fx(folds)(weights).graph.nodes
    assert sum("attention" in str(node.target) for node in nodes) == 2
    for one, of_one in zip(weights, folds(weights), strict=True):
        alone = grad(work)(one, contextlib.nullcontext())
        assert (of_one - alone).abs().max() < 1e-3 * alone.abs().max()


@pytest.mark.parametrize("context", [CertainOperations, lambda: StackedOperations(certain=True)])
def test_nothing_is_dropped_where_outcomes_are_compared(context):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, dropout=0.5, batch_first=True).to(DEVICE)
    heads = torch.nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=True).to(DEVICE)
    x = inputs()[1]
    there = torch.zeros(3, 7, dtype=torch.bool, device=DEVICE)
    for model in (
        lambda: layer(x, src_key_padding_mask=there),
        lambda: heads(x, x, x)[0],
        lambda: torch.nn.functional.alpha_dropout(torch.nn.functional.dropout1d(x)),
    ):
        assert not torch.equal(model(), model())
        with context():
            torch.testing.assert_close(model(), model(), rtol=0, atol=0)


MASKS: dict[str, Any] = {
    "causal": torch.ones(7, 7, dtype=torch.bool).tril(),
    "numbers": torch.randn(7, 7, generator=torch.Generator().manual_seed(1)),
    "of sequences": (torch.arange(7) < torch.tensor([[7], [4], [1]]))[:, None, None],
    "a part of a larger one": torch.randn(11, 11, generator=torch.Generator().manual_seed(5)).to(DEVICE)[1:8, 2:9],
    "of heads": torch.randn(2, 7, 7, generator=torch.Generator().manual_seed(2)),
    "of all": torch.randn(3, 2, 7, 7, generator=torch.Generator().manual_seed(3)) > -1,
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", MASKS)
def test_with_a_mask(kind):
    (weights, x), mask = inputs(), MASKS[kind].to(DEVICE)
    found = vmap(lambda one: grad(folded)(one, x, mask))(weights)
    for one, of_one in zip(weights, found, strict=True):
        alone = grad(loss)(one, x, mask.contiguous())
        assert (of_one - alone).abs().max() < 1e-3 * alone.abs().max()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_masks_of_members_and_masks_that_learn():
    weights, x = inputs()
    masks = torch.randn(MEMBERS, 3, 1, 7, 7, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    found = vmap(lambda one, mask: grad(folded)(one, x, mask))(weights, masks)
    learnt = vmap(lambda one, mask: grad(folded, argnums=2)(one, x, mask))(weights, masks)
    for row, one in enumerate(weights):
        for argument, of_one in ((0, found[row]), (2, learnt[row])):
            # On CUDA, torch cannot compute the gradients of some masks.
            alone = grad(loss, argnums=argument)(one.cpu(), x.cpu(), masks[row].cpu())
            assert (of_one.cpu() - alone).abs().max() < 1e-3 * alone.abs().max()


def test_heads_that_share_keys_and_values():
    query, key = torch.randn(3, 6, 5, 8, device=DEVICE), torch.randn(3, 2, 5, 8, device=DEVICE)
    attention = torch.nn.functional.scaled_dot_product_attention
    with StackedOperations():
        found = attention(query, key, key, enable_gqa=True)
    torch.testing.assert_close(found, attention(query, key, key, enable_gqa=True), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_is_the_same_both_ways_and_differs_among_members(options, masked):
    weights, x = inputs()
    weights = weights[:1].expand_as(weights)
    mask = MASKS["of sequences"].to(DEVICE) if masked and not options else None
    torch.manual_seed(0)

    def work(one: Any) -> Any:
        query, key, value = (x @ one).view(3, 7, 3, 2, 8).permute(2, 0, 3, 1, 4)

        def outcome(value: Any) -> Any:
            with StackedOperations():
                attention = torch.nn.functional.scaled_dot_product_attention
                found = attention(query, key, value, mask, dropout_p=0.5, **options)
            return found.sum(), found

        grads, (_, found) = grad_and_value(outcome, has_aux=True)(value)
        return (grads * value).sum(), found.sum()

    again, found = vmap(work, randomness="different")(weights)
    torch.testing.assert_close(again, found, rtol=1e-3, atol=1e-3)  # the outcome is linear in the values
    assert len(set(found.tolist())) == MEMBERS


@pytest.mark.parametrize("mask", [None, *MASKS])
def test_rates_of_members(mask):
    weights, x = inputs()
    weights = weights[:1].expand_as(weights)
    rates = torch.tensor([0.0, 0.0, 0.3, 0.3, 1.0], device=DEVICE)
    options = {} if mask is None else {"mask": MASKS[mask].to(DEVICE)}
    torch.manual_seed(0)
    found = vmap(lambda one, rate: grad(folded)(one, x, dropout_p=rate, **options), randomness="different")(
        weights, rates
    )
    alone = grad(loss)(weights[0], x, **options)
    for row in (0, 1):
        assert (found[row] - alone).abs().max() < 1e-3 * alone.abs().max()
    assert not torch.equal(found[2], found[3]) and not found[4].any()


def test_places_that_may_attend_to_nothing_get_zeros():
    query = torch.randn(2, 3, 4, 8, device=DEVICE)
    mask = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool, device=DEVICE)
    with StackedOperations():
        attention = torch.nn.functional.scaled_dot_product_attention
        found = attention(query, query, query, mask, dropout_p=torch.tensor(0.0, device=DEVICE))
    assert not found[:, :, 1].any() and found.isfinite().all()
