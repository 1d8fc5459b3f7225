"""Attention for stacked models: forward and backward passes of all members by one operation each.

PyTorch's own attention has no rule for the backward pass of many members at once and would take one after another. To
attention, members are merely more sequences, so they are folded into the batch dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, folded, unfolded
from hopfleet.frameworks.torch.engines.stacked.updates import Table

ALIGNED = {torch.float32: 4, torch.bfloat16: 8, torch.float16: 8}
"""Types for which attention is folded, and the number that divides the width of a head then."""


def attend(
    query: Table,
    key: Table,
    value: Table,
    attn_mask: Table | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Table:
    """Return the outcome of attention, folded unless it has a mask or dropout."""
    width, aligned = query.shape[-1], ALIGNED.get(query.dtype, 0)
    heads = query.ndim == key.ndim == value.ndim == 4 and width == value.shape[-1] and aligned and width % aligned == 0
    if attn_mask is None and not dropout_p and not enable_gqa and heads:
        found: Table = Attention.apply(query, key, value, is_causal, scale)[0]  # type: ignore[no-untyped-call]
        return found
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


class Context(FunctionCtx):
    """The context of ``Attention``: the options of the forward pass."""

    causal: bool
    scale: float | None
    saved_tensors: tuple[Table, ...]


class Attention(torch.autograd.Function):
    """Attention that returns its outcome and the logarithms that the backward pass needs."""

    @staticmethod
    def forward(query: Table, key: Table, value: Table, causal: bool, scale: float | None) -> tuple[Table, Table]:
        return _compat.attention(query, key, value, causal, scale)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Argument, ...], output: tuple[Table, Table]) -> None:
        *tensors, ctx.causal, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Context, grad: Table, _: Table) -> tuple[Table | None, ...]:
        found = Backward.apply(grad, *ctx.saved_tensors, ctx.causal, ctx.scale)  # type: ignore[no-untyped-call]
        return *found, None, None

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        *tensors, causal, scale = inputs
        found = Attention.apply(*folded(info, dims[:3], tensors), causal, scale)  # type: ignore[no-untyped-call]
        return unfolded(info, found), (0, 0)


class Backward(Forgetful):
    """The gradients of query, key and value."""

    @staticmethod
    def forward(grad: Table, *inputs: Argument) -> tuple[Table, ...]:
        *saved, causal, scale = inputs
        return _compat.attention_backward(grad, *saved, causal=causal, scale=scale)

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        *tensors, causal, scale = inputs
        found = Backward.apply(*folded(info, dims[:6], tensors), causal, scale)  # type: ignore[no-untyped-call]
        return unfolded(info, found), (0, 0, 0)
