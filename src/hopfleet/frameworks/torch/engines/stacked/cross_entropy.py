"""Cross entropy of stacked models: a few operations for all members.

Under vmap, torch takes its own cross entropy apart into some thirty operations. Most of them are tiny and as slow to
launch as large ones, and some make further tables as large as that of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.autocast import single
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, folded, unfolded
from hopfleet.frameworks.torch.engines.stacked.updates import Table


def cross_entropy(
    logits: Table,
    target: Table,
    weight: Table | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Table:
    """Return the mean cross entropy, folded if the target are classes of rows and all options but one are defaults."""
    plain = weight is None and size_average is None and reduce is None and reduction == "mean" and not label_smoothing
    if plain and logits.ndim == 2 and target.ndim == 1 and target.dtype == torch.int64:
        losses: Table = CrossEntropy.apply(single(logits), target, ignore_index)[0]  # type: ignore[no-untyped-call]
        return losses.sum() / (target != ignore_index).sum()
    return torch.nn.functional.cross_entropy(
        logits, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )


class CrossEntropyContext(FunctionCtx):
    """The context of ``CrossEntropy``: the option of the forward pass."""

    ignore_index: int
    saved_tensors: tuple[Table, ...]


class CrossEntropy(torch.autograd.Function):
    """The cross entropy of each row, and the logarithms of the probabilities."""

    @staticmethod
    def forward(logits: Table, target: Table, ignore_index: int) -> tuple[Table, Table]:
        logs = torch.log_softmax(logits, 1)
        return torch.nn.functional.nll_loss(logs, target, ignore_index=ignore_index, reduction="none"), logs

    @staticmethod
    def setup_context(ctx: CrossEntropyContext, inputs: tuple[Argument, ...], output: tuple[Table, Table]) -> None:
        _, target, ctx.ignore_index = inputs
        ctx.save_for_backward(output[1], target)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no table of zeros for the logarithms

    @staticmethod
    def backward(ctx: CrossEntropyContext, grad: Table, _: None) -> tuple[Table | None, ...]:
        found: Table = Backward.apply(grad, *ctx.saved_tensors, ctx.ignore_index)  # type: ignore[no-untyped-call]
        return found, None, None

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        *tensors, ignore_index = inputs
        found = CrossEntropy.apply(*folded(info, dims[:2], tensors), ignore_index)  # type: ignore[no-untyped-call]
        return unfolded(info, found), (0, 0)


class Backward(Forgetful):
    """The gradient of the logits."""

    @staticmethod
    def forward(grad: Table, logs: Table, target: Table, ignore_index: int) -> Table:
        return _compat.cross_entropy_backward(grad, logs, target, ignore_index)

    @staticmethod
    def vmap(info: VmapInfo, dims: Sequence[int | None], *inputs: Argument) -> tuple[Table, int]:
        *tensors, ignore_index = inputs
        found: Table = Backward.apply(*folded(info, dims[:3], tensors), ignore_index)  # type: ignore[no-untyped-call]
        return unfolded(info, [found])[0], 0
