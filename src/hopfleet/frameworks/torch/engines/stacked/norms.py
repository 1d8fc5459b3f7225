"""Layer norm and RMS norm of stacked models: a few operations for all members.

Under vmap, torch takes both apart, and each part makes another table as large as that of the activations. But members
are merely more rows to a norm, as long as it has no weights; weights are applied afterwards. Frozen weights that
members share are left to the one operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked import norm_kernel
from hopfleet.frameworks.torch.engines.stacked.autocast import autocasts, single
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, in_front
from hopfleet.frameworks.torch.engines.stacked.updates import Table

Shape = Sequence[int]
"""The last dimensions, which are normalized together."""


def layer_norm(
    x: Table, normalized_shape: Shape, weight: Table | None = None, bias: Table | None = None, eps: float = 1e-5
) -> Table:
    """Return the layer norm, with weights applied by one more operation."""
    if (whole := single(x)) is not x:
        outcome = layer_norm(whole, normalized_shape, weight, bias, eps)
        return outcome if x.is_cuda else outcome.to(x.dtype)  # on the CPU, autocast leaves norms as they are
    if any(one is not None and one.dtype != x.dtype for one in (weight, bias)):
        return torch.nn.functional.layer_norm(x, list(normalized_shape), weight, bias, eps)
    found: Table = LayerNorm.apply(x, tuple(normalized_shape), eps)[0]  # type: ignore[no-untyped-call]
    if weight is None:
        return found if bias is None else found + bias
    return found * weight if bias is None else Affine.apply(found, weight, bias)  # type: ignore[no-untyped-call]


def layer_norm_by_kernel(x: Table, *args: Argument, **kwargs: Argument) -> Table:
    """Return the layer norm by a kernel of this package, if there is one for it."""
    found = norm_kernel.layer_norm(x, *args, **kwargs)
    return layer_norm(x, *args, **kwargs) if found is None else found[0]


def rms_norm(x: Table, normalized_shape: Shape, weight: Table | None = None, eps: float | None = None) -> Table:
    """Return the RMS norm, in one operation where torch has one; weights that learn are applied by one more."""
    if autocasts(x) or not _compat.fuses_rms_norm(x) or (weight is not None and weight.dtype != x.dtype):
        return torch.nn.functional.rms_norm(x, list(normalized_shape), weight, eps)
    learns = weight is not None and weight.requires_grad
    shape = tuple(normalized_shape)
    found: Table = RmsNorm.apply(x, None if learns else weight, shape, eps)[0]  # type: ignore[no-untyped-call]
    return found * weight if learns and weight is not None else found


class NormContext(FunctionCtx):
    """The context of a norm: the dimensions that are normalized."""

    shape: Shape
    saved_tensors: tuple[Table, ...]


class LayerNorm(torch.autograd.Function):
    """Layer norm without weights, and what its backward pass needs: means and inverse deviations."""

    @staticmethod
    def forward(x: Table, shape: Shape, eps: float) -> tuple[Table, ...]:
        return _compat.layer_norm(x, shape, eps)

    @staticmethod
    def setup_context(ctx: NormContext, inputs: tuple[Argument, ...], output: tuple[Table, ...]) -> None:
        x, ctx.shape, _ = inputs
        ctx.save_for_backward(x, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: NormContext, grad: Table, *_: None) -> tuple[Table | None, ...]:
        found: Table = LayerNormBackward.apply(grad, *ctx.saved_tensors, ctx.shape)  # type: ignore[no-untyped-call]
        return found, None, None

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        (x, *_), (shape, eps) = in_front(info, dims, inputs[:1]), inputs[1:]
        return LayerNorm.apply(x, shape, eps), (0, 0, 0)  # type: ignore[no-untyped-call]


class LayerNormBackward(Forgetful):
    """The gradient of what is normalized."""

    @staticmethod
    def forward(grad: Table, x: Table, means: Table, scales: Table, shape: Shape) -> Table:
        return _compat.layer_norm_backward(grad.contiguous(), x, means, scales, shape)

    @staticmethod
    def vmap(info: VmapInfo, dims: Sequence[int | None], *inputs: Argument) -> tuple[Table, int]:
        return LayerNormBackward.apply(*in_front(info, dims, inputs[:4]), inputs[4]), 0  # type: ignore[no-untyped-call]


class Affine(torch.autograd.Function):
    """A product with weights and a sum with biases in one operation. That of torch has a slower backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Table, weight: Table, bias: Table) -> Table:
        return torch.addcmul(bias, x, weight)

    @staticmethod
    def setup_context(ctx: NormContext, inputs: tuple[Argument, ...], output: Table) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: NormContext, grad: Table) -> tuple[Table, ...]:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum_to_size(weight.shape), grad.sum_to_size(weight.shape)


class RmsNorm(torch.autograd.Function):
    """RMS norm with frozen weights or none, and what its backward pass needs: inverse roots."""

    @staticmethod
    def forward(x: Table, weight: Table | None, shape: Shape, eps: float | None) -> tuple[Table, Table]:
        return _compat.rms_norm(x, shape, weight, eps)

    @staticmethod
    def setup_context(ctx: NormContext, inputs: tuple[Argument, ...], output: tuple[Table, Table]) -> None:
        x, weight, ctx.shape, _ = inputs
        ctx.save_for_backward(x, output[1], *(() if weight is None else (weight,)))
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: NormContext, grad: Table, _: None) -> tuple[Table | None, ...]:
        x, scales, *weight = ctx.saved_tensors
        inputs = grad, x, scales, weight[0] if weight else None, ctx.shape
        found: Table = RmsNormBackward.apply(*inputs)  # type: ignore[no-untyped-call]
        return found, None, None, None

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        x, weight, shape, eps = inputs
        (x,) = in_front(info, dims[:1], [x])
        if dims[1] is None:
            return RmsNorm.apply(x, weight, shape, eps), (0, 0)  # type: ignore[no-untyped-call]
        found, scales = RmsNorm.apply(x, None, shape, eps)  # type: ignore[no-untyped-call]
        return (found * _spread(weight, dims[1], x), scales), (0, 0)


class RmsNormBackward(Forgetful):
    """The gradient of what is divided."""

    @staticmethod
    def forward(grad: Table, x: Table, scales: Table, weight: Table | None, shape: Shape) -> Table:
        return _compat.rms_norm_backward(grad.contiguous(), x, scales, weight, shape)

    @staticmethod
    def vmap(info: VmapInfo, dims: Sequence[int | None], *inputs: Argument) -> tuple[Table, int]:
        grad, x, scales = in_front(info, dims[:3], inputs[:3])
        weight, shape = inputs[3:]
        if dims[3] is not None:
            grad, weight = grad * _spread(weight, dims[3], x), None
        return RmsNormBackward.apply(grad, x, scales, weight, shape), 0  # type: ignore[no-untyped-call]


def _spread(weight: Table, dim: int, x: Table) -> Table:
    """Return the weights of all members in a shape that fits the activations."""
    rows = weight.movedim(dim, 0)
    return rows.reshape(len(rows), *[1] * (x.ndim - rows.ndim), *rows.shape[1:])
