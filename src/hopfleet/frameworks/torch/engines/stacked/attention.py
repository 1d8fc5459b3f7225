"""Attention for stacked models: that of all members in one go, backward as well.

PyTorch's own attention has no rule for the backward pass of many members at once; it would take one after another. To
attention, members are only more sequences, so they are folded into the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Table = Any


class Attending(TorchFunctionMode):
    """Within this context, attention without mask and dropout is ours."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attend(
    query: Table,
    key: Table,
    value: Table,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Table:
    heads = query.ndim == key.ndim == value.ndim == 4 and query.dtype == torch.float32
    width = query.shape[-1]
    if attn_mask is None and not dropout_p and not enable_gqa and heads and width == value.shape[-1] and width % 4 == 0:
        return Attention.apply(query, key, value, is_causal, scale)[0]  # type: ignore[no-untyped-call]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _folded(info: Any, dims: Any, tensors: Any) -> list[Table]:
    """Tensors with members folded into their first dimension."""
    found = []
    for tensor, dim in zip(tensors, dims, strict=True):
        rows = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        found.append(rows.flatten(0, 1))
    return found


def _unfolded(info: Any, tensors: Any) -> tuple[Table, ...]:
    return tuple(tensor.unflatten(0, (info.batch_size, -1)) for tensor in tensors)


class Attention(torch.autograd.Function):
    """What is attended to, and the logarithms that the backward pass needs."""

    @staticmethod
    def forward(query: Table, key: Table, value: Table, causal: bool, scale: float | None) -> tuple[Table, Table]:
        aten = torch.ops.aten
        if query.is_cuda:
            found = aten._scaled_dot_product_efficient_attention(
                query, key, value, None, True, 0.0, causal, scale=scale
            )
        else:
            found = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
        return found[0], found[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.causal, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Table, _: Table) -> Any:
        found = Backward.apply(grad, *ctx.saved_tensors, ctx.causal, ctx.scale)  # type: ignore[no-untyped-call]
        return *found, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        *tensors, causal, scale = inputs
        found = Attention.apply(*_folded(info, dims[:3], tensors), causal, scale)  # type: ignore[no-untyped-call]
        return _unfolded(info, found), (0, 0)


class Backward(torch.autograd.Function):
    """The gradients of query, key and value."""

    @staticmethod
    def forward(grad: Table, query: Table, key: Table, value: Table, out: Table, logs: Table, *options: Any) -> Any:
        causal, scale = options
        aten, tensors = torch.ops.aten, (grad, query, key, value)
        if grad.is_cuda:
            nothing = torch.zeros((), dtype=torch.int64, device=grad.device)  # no chance in it
            wanted = [True, True, True, False]
            found = aten._scaled_dot_product_efficient_attention_backward(
                *tensors, None, out, logs, nothing, nothing, 0.0, wanted, causal, scale=scale
            )
        else:
            found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *tensors, out, logs, 0.0, causal, scale=scale
            )
        return tuple(found[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        *tensors, causal, scale = inputs
        found = Backward.apply(*_folded(info, dims[:6], tensors), causal, scale)  # type: ignore[no-untyped-call]
        return _unfolded(info, found), (0, 0, 0)
