"""Rules for operations of stacked models that torch takes apart or makes one member after another under vmap.

To such an operation, members are merely more rows, so they are folded into the first dimension of each tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch.engines.stacked.updates import Table

Argument = Any
"""An argument of an operation: a tensor, a flag or a number."""


class VmapInfo(Protocol):
    """The information that torch passes to a rule for vmap."""

    batch_size: int


class Forgetful(torch.autograd.Function):
    """An operation that keeps nothing for a backward pass, because it is one itself, or because that needs nothing."""

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[object, ...], output: object) -> None:
        pass


def in_front(info: VmapInfo, dims: Sequence[int | None], tensors: Sequence[Table]) -> list[Table]:
    """Return tensors whose first dimension is that of the members; ``dims`` may have more entries than needed."""
    return [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=False)
    ]


def folded(info: VmapInfo, dims: Sequence[int | None], tensors: Sequence[Table]) -> list[Table]:
    """Fold the members into the first dimension of each tensor."""
    return [rows.flatten(0, 1) for rows in in_front(info, dims, tensors)]


def unfolded(info: VmapInfo, tensors: Sequence[Table]) -> tuple[Table, ...]:
    """Return tensors with a first dimension for the members."""
    return tuple(torch.unflatten(tensor, 0, (info.batch_size, -1)) for tensor in tensors)
