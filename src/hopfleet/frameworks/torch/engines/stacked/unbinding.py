"""Tensors taken apart along a dimension: on the way back, gradients are put together in the order of memory.

Query, key and value are often taken out of one tensor whose dimensions were permuted. Torch puts their gradients
together in the order of the permuted dimensions, and then copies them into that of memory. Where attention has written
them side by side, nothing needs to be copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, in_front
from hopfleet.frameworks.torch.engines.stacked.updates import Table


def unbind(x: Table, dim: int = 0) -> tuple[Table, ...]:
    """Return the slices along a dimension."""
    if not x.requires_grad or not x.ndim:
        return torch.unbind(x, dim)
    found: tuple[Table, ...] = Unbind.apply(x, dim % x.ndim)  # type: ignore[no-untyped-call]
    return found


class UnbindingContext(FunctionCtx):
    """The context of ``Unbind``: the dimension, and all dimensions in the order of memory."""

    dim: int
    order: Sequence[int]


class Unbind(torch.autograd.Function):
    """The slices along a dimension."""

    @staticmethod
    def forward(x: Table, dim: int) -> tuple[Table, ...]:
        return x.unbind(dim)

    @staticmethod
    def setup_context(ctx: UnbindingContext, inputs: tuple[Argument, ...], output: tuple[Table, ...]) -> None:
        x, ctx.dim = inputs
        ctx.order = sorted(range(x.ndim), key=lambda number: -x.stride(number))

    @staticmethod
    def backward(ctx: UnbindingContext, *grads: Table) -> tuple[Table, None]:
        found: Table = Joined.apply(ctx.dim, ctx.order, *grads)  # type: ignore[no-untyped-call]
        return found, None

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], x: Table, dim: int
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        (rows,) = in_front(info, dims, [x])
        found = rows.unbind(dim + 1)
        return found, (0,) * len(found)


class Joined(Forgetful):
    """Slices put together along a new dimension, in memory in a given order of dimensions."""

    @staticmethod
    def forward(dim: int, order: Sequence[int], *slices: Table) -> Table:
        return joined(dim, order, slices)

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], dim: int, order: Sequence[int], *slices: Table
    ) -> tuple[Table, int]:
        rows = in_front(info, dims[2:], slices)
        return joined(dim + 1, [0, *(number + 1 for number in order)], rows), 0


def joined(dim: int, order: Sequence[int], slices: Sequence[Table]) -> Table:
    """Put slices together, without a copy if they lie side by side."""
    first, shape = slices[0], list(slices[0].shape)
    shape.insert(dim, len(slices))
    if step := _step(slices):
        strides = list(first.stride())
        strides.insert(dim, step)
        return first.as_strided(shape, strides)
    places = sorted(range(len(order)), key=lambda number: order[number])
    found = first.new_empty([shape[number] for number in order]).permute(places)
    for part, value in zip(found.unbind(dim), slices, strict=True):
        part.copy_(value)
    return found


def _step(slices: Sequence[Table]) -> int:
    """Return the distance between slices of one piece of memory that follow each other; 0 if they do not."""
    first = slices[0]
    step = slices[-1].storage_offset() - first.storage_offset()
    step = step // (len(slices) - 1) if len(slices) > 1 else 0
    side_by_side = all(
        _compat.memory_of(one) == _compat.memory_of(first)
        and one.stride() == first.stride()
        and one.storage_offset() == first.storage_offset() + number * step
        for number, one in enumerate(slices)
    )
    return step if side_by_side and step > 0 else 0
