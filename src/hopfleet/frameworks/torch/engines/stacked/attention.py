"""Attention for stacked models: forward and backward passes of all members by one operation each.

PyTorch's own attention has no rule for the backward pass of many members at once and would take one after another. To
attention, members are merely more sequences, so they are folded into the batch dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch import _operations
from hopfleet.frameworks.torch.engines.stacked import attention_kernel
from hopfleet.frameworks.torch.engines.stacked.autocast import lowered
from hopfleet.frameworks.torch.engines.stacked.dropout import dropout
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, folded, in_front, unfolded
from hopfleet.frameworks.torch.engines.stacked.updates import Table

ALIGNED = {torch.float32: 4, torch.bfloat16: 8, torch.float16: 8}
"""Types for which attention is folded, and the number that divides the width of a head then."""


MASK_ALIGNMENT = 8
"""Numbers by whose multiple rows of a mask must lie apart on CUDA."""


def attend(
    query: Table,
    key: Table,
    value: Table,
    attn_mask: Table | None = None,
    dropout_p: float | Table = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    kernels: bool = False,
) -> Table:
    """Return the outcome of attention, folded where that can be. The rate of dropout may be that of each member.

    With ``kernels``, those of this package are used where they fit.
    """
    query, key, value = lowered(query, key, value)
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(repeats, -3) for one in (key, value))
    if isinstance(dropout_p, torch.Tensor):
        return _step_by_step(query, key, value, attn_mask, dropout_p, is_causal, scale)
    inputs = query, key, value, attn_mask, dropout_p, is_causal, scale
    if _folds(query, key, value, attn_mask, bool(dropout_p)):
        mask = None if attn_mask is None else _of_four_dimensions(_added(attn_mask, query.dtype))
        plain = mask is None and not dropout_p and not enable_gqa
        by_kernel = kernels and plain and attention_kernel.fits(query, key, value)
        found: Table = Attention.apply(query, key, value, mask, *inputs[4:], by_kernel)[0]  # type: ignore[no-untyped-call]
        return found
    if query.is_cuda:  # torch has no rule for its backward pass
        return _step_by_step(*inputs)
    return torch.nn.functional.scaled_dot_product_attention(*inputs[:-1], scale=scale)


def _folds(query: Table, key: Table, value: Table, mask: Table | None, drops: bool) -> bool:
    """Whether members can be folded into the sequences of a batch."""
    width, aligned = query.shape[-1], ALIGNED.get(query.dtype, 0)
    fits = query.ndim == key.ndim == value.ndim == 4 and width == value.shape[-1] and aligned and width % aligned == 0
    if mask is None and not drops:
        return bool(fits)
    return bool(fits) and query.is_cuda and (mask is None or not mask.requires_grad)


def _added(mask: Table, dtype: torch.dtype) -> Table:
    """Return a mask that is added to scores."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def _of_four_dimensions(mask: Table) -> Table:
    return mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)


def _step_by_step(
    query: Table, key: Table, value: Table, mask: Table | None, rate: float | Table, causal: bool, scale: float | None
) -> Table:
    """Return the outcome of attention by operations that have rules for many members."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        before = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~before, -math.inf)
    if mask is None:
        return dropout(scores.softmax(-1), rate) @ value
    scores = scores + _added(mask, scores.dtype)
    # As in torch, a place that may attend to nothing gets zeros.
    nowhere = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(nowhere, 0.0).softmax(-1).masked_fill(nowhere, 0.0)
    return dropout(weights, rate) @ value


class AttentionContext(FunctionCtx):
    """The context of ``Attention``: the options of the forward pass."""

    options: tuple[float, bool, float | None, bool]
    saved_tensors: tuple[Table, ...]


class Attention(torch.autograd.Function):
    """Attention that returns its outcome, the logarithms that the backward pass needs, and what dropout drew."""

    @staticmethod
    def forward(
        query: Table,
        key: Table,
        value: Table,
        mask: Table | None,
        rate: float,
        causal: bool,
        scale: float | None,
        by_kernel: bool,
    ) -> tuple[Table, ...]:
        if by_kernel:
            return attention_kernel.kernels_for(query).forward(query, key, value, causal, scale)
        return _operations.attention(query, key, value, _expanded(mask, query, key), rate, causal, scale)

    @staticmethod
    def setup_context(ctx: AttentionContext, inputs: tuple[Argument, ...], output: tuple[Table, ...]) -> None:
        ctx.options = inputs[4:]
        ctx.save_for_backward(*inputs[:4], *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: AttentionContext, grad: Table, *_: Table) -> tuple[Table | None, ...]:
        found = Backward.apply(grad, *ctx.saved_tensors, *ctx.options)  # type: ignore[no-untyped-call]
        return *found, *(None for _ in (0, *ctx.options))

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int | None, ...]]:
        tensors, mask = folded(info, dims[:3], inputs[:3]), _folded_mask(info, dims[3], inputs[3], inputs[0], dims[0])
        found = Attention.apply(*tensors, mask, *inputs[4:])  # type: ignore[no-untyped-call]
        return (*unfolded(info, found[:2]), *found[2:]), (0, 0, *(None for _ in found[2:]))


class Backward(Forgetful):
    """The gradients of query, key and value."""

    @staticmethod
    def forward(grad: Table, *inputs: Argument) -> tuple[Table, ...]:
        query, key, value, mask, *found, rate, causal, scale, by_kernel = inputs
        if by_kernel:
            kernels = attention_kernel.kernels_for(query)
            return kernels.backward(grad, query, key, value, found, causal, scale)
        mask = _expanded(mask, query, key)
        return _operations.attention_backward(grad, query, key, value, mask, found, rate, causal, scale)

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        grad, query, key, value, mask, *rest = inputs
        of_mask, of_rest = dims[4], dims[5:]
        first = folded(info, dims[:4], (grad, query, key, value))
        outcome = folded(info, of_rest[:2], rest[:2])
        mask = _folded_mask(info, of_mask, mask, query, dims[1])
        found = Backward.apply(*first, mask, *outcome, *rest[2:])  # type: ignore[no-untyped-call]
        return unfolded(info, found), (0, 0, 0)


def _folded_mask(
    info: VmapInfo, dim: int | None, mask: Table | None, query: Table, of_query: int | None
) -> Table | None:
    """Fold the members into the first dimension of a mask, unless all sequences have the same."""
    if mask is None or (dim is None and len(mask) == 1):
        return mask
    sequences = query.shape[0] if of_query is None else query.movedim(of_query, 0).shape[1]
    (rows,) = in_front(info, (dim,), (mask,))
    return rows.expand(-1, sequences, *rows.shape[2:]).flatten(0, 1)


def _expanded(mask: Table | None, query: Table, key: Table) -> Table | None:
    """Return a mask with an entry for each pair of places, and rows that lie apart as the device needs it."""
    if mask is None:
        return None
    length = key.shape[2]
    mask = mask.expand(*mask.shape[:-1], length)
    *rows, last = mask.stride()
    if mask.is_cuda and (last != 1 or any(step % MASK_ALIGNMENT for step in (length, *rows))):
        mask = torch.nn.functional.pad(mask, (0, -length % MASK_ALIGNMENT)).contiguous()[..., :length]
    return mask.expand(len(query), query.shape[1], query.shape[2], length)
