"""Embeddings of stacked models, with the rows of each member side by side.

Under vmap, torch looks up one row for all members at once, so that their activations alternate in memory. Whatever
follows would be slow on that: norms copy their input, and sums with other activations take twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo
from hopfleet.frameworks.torch.engines.stacked.updates import Table


def embedding(indices: Table, weight: Table, *args: Argument, **kwargs: Argument) -> Table:
    """Return the embeddings, with the first dimension for members if each has weights of its own."""
    found = torch.nn.functional.embedding(indices, weight, *args, **kwargs)
    if not weight.requires_grad:
        return found
    first: Table = MembersFirst.apply(found)  # type: ignore[no-untyped-call]
    return first


class MembersFirst(Forgetful):
    """A copy in which the activations of each member lie side by side."""

    @staticmethod
    def forward(x: Table) -> Table:
        return x.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Table) -> Table:
        return grad

    @staticmethod
    def vmap(info: VmapInfo, dims: Sequence[int | None], x: Table) -> tuple[Table, int]:
        return x.movedim(dims[0] or 0, 0).clone(memory_format=torch.contiguous_format), 0
