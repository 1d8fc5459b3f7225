"""Kernels of CUDA that give the same bits each time, in place of those of torch that do not.

Some kernels of torch add numbers in the order in which threads arrive. While a trial trains on CUDA, alone or together
with others, those that many models need are replaced: the loss of pictures whose pixels have classes, attention, and
the way back through ``interpolate``, padding and adaptive pooling. They compute what torch's kernels compute, in an
order that is always the same. ``repeatable`` finds out which others a model has.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence

import torch

from hopfleet.frameworks.torch import _operations
from hopfleet.frameworks.torch._operations import Operation, Value

_aten = torch.ops.aten

MEAN, SUM = 1, 2
"""Numbers of reductions of losses."""

# -------------------------------------------------------------------------------------------------- losses of pixels


def nll_loss2d(
    logs: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignored: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of pixels, or their mean or sum, and the sum of their weights."""
    counts = target != ignored
    classes = torch.where(counts, target, 0)
    weights = counts.to(logs.dtype) if weight is None else torch.where(counts, weight[classes], 0)
    losses = -logs.gather(1, classes.unsqueeze(1)).squeeze(1)
    losses = torch.where(counts, losses * weights, 0)  # an infinite loss of an ignored pixel counts nothing
    if reduction not in (MEAN, SUM):
        return losses, weights.new_zeros(())
    exact = torch.promote_types(logs.dtype, torch.float32)
    total, of_weights = losses.sum(dtype=exact), weights.sum(dtype=exact)
    found = total / of_weights if reduction == MEAN else total
    return found.to(logs.dtype), of_weights.to(logs.dtype)


# ------------------------------------------------------------------------------- operations along one dimension each

Along = tuple[Operation, tuple[Value, ...]]
"""A linear operation along the last dimension but one of a tensor of four, whose last has one number; and its options.

It is called with a tensor and the options, which are hashable.
"""


def back(grad: torch.Tensor, sizes: Sequence[int], along: Sequence[Along]) -> torch.Tensor:
    """Return the gradient of the input of an operation that works along its last dimensions one after another.

    ``sizes`` are those of the input in these dimensions, and ``along`` is what happens along each.
    """
    found = grad.to(torch.promote_types(grad.dtype, torch.float32))
    for place, (size, (operation, options)) in enumerate(zip(sizes, along, strict=True)):
        dim = place - len(sizes)
        taps, weights = _taps(size, found.dtype, found.device, operation, options)
        picked = found.index_select(dim, taps.flatten()).unflatten(dim, taps.shape)  # type: ignore[no-untyped-call]
        found = (picked * weights.reshape(*weights.shape, *[1] * (-1 - dim))).sum(dim)
    return found.to(grad.dtype)


@functools.lru_cache(maxsize=256)
def _taps(
    size: int, dtype: torch.dtype, device: torch.device, operation: Operation, options: tuple[Value, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of the output to which each number of the input contributes, and with which weights.

    Numbers that contribute to fewer places than others have one of their places again, with the weight 0.
    """
    each = torch.eye(size, dtype=torch.float64, device="cpu").reshape(size, 1, size, 1)
    table = operation(each, *options).reshape(size, -1)
    most = max(1, int((table != 0).sum(1).max()))
    order = (table == 0).to(torch.uint8).sort(stable=True, dim=1).indices[:, :most]
    weights = table.gather(1, order)
    order = torch.where(weights == 0, order[:, :1], order)
    return order.to(device), weights.to(device, dtype)


def _interpolated(operation: Operation) -> Operation:
    """Return the backward pass of an interpolation, given its operation on pictures."""

    def backward(
        grad: torch.Tensor, out: Sequence[int], sizes: Sequence[int], align: bool, *scales: float | None
    ) -> torch.Tensor:
        given = (*scales, *[None] * len(out))[: len(out)]
        along = [(_interpolate, (operation, length, align, scale)) for length, scale in zip(out, given, strict=True)]
        return back(grad, sizes[2:], along)

    return backward


def _interpolate(
    each: torch.Tensor, operation: Operation, length: int, align: bool, scale: float | None
) -> torch.Tensor:
    return operation(each, [length, 1], align, scale, None)  # type: ignore[no-any-return]


def _pooled(dims: int) -> Operation:
    """Return the backward pass of adaptive pooling by means."""

    def backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return back(grad, x.shape[-dims:], [(_pool, (length,)) for length in grad.shape[-dims:]])

    return backward


def _pool(each: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.adaptive_avg_pool2d(each, (length, 1))


def _padded(mode: str, dims: int) -> Operation:
    """Return the backward pass of padding by reflection or replication."""

    def backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
        # Paddings are given for the last dimension first.
        pairs = [tuple(padding[2 * place : 2 * place + 2]) for place in reversed(range(dims))]
        return back(grad, x.shape[-dims:], [(_pad, (mode, *pair)) for pair in pairs])

    return backward


def _pad(each: torch.Tensor, mode: str, before: int, after: int) -> torch.Tensor:
    return torch.nn.functional.pad(each, (0, 0, before, after), mode)


# ---------------------------------------------------------------------------------------------------------- attention


def _efficient(*inputs: Value, **options: Value) -> tuple[Value, ...]:
    """Return the gradients of attention, going through its keys in one part.

    In several parts, which is torch's choice for long sequences or few, the parts are summed in the order in which they
    come to an end.
    """
    return _operations.efficient_backward(*inputs, **options, parts=1)


def _flash(*inputs: Value, scale: float | None = None) -> tuple[torch.Tensor, ...]:
    """Return the gradients of attention in half precision, whose parts are summed in one order."""
    with _operations.only_deterministic():
        return _operations.flash_backward(*inputs, scale=scale)


# ------------------------------------------------------------------------------------------------------- all of them

KERNELS: dict[str, Operation] = {
    "_scaled_dot_product_efficient_attention_backward": _efficient,
    "_scaled_dot_product_flash_attention_backward": _flash,
    "nll_loss2d_forward": nll_loss2d,
    **{
        f"upsample_{name}_backward": _interpolated(operation)
        for name, operation in {
            "linear1d": _aten.upsample_bilinear2d,
            "bilinear2d": _aten.upsample_bilinear2d,
            "trilinear3d": _aten.upsample_bilinear2d,
            "bicubic2d": _aten.upsample_bicubic2d,
        }.items()
    },
    **{f"_adaptive_avg_pool{dims}d_backward": _pooled(dims) for dims in (2, 3)},
    **{f"reflection_pad{dims}d_backward": _padded("reflect", dims) for dims in (1, 2, 3)},
    **{f"replication_pad{dims}d_backward": _padded("replicate", dims) for dims in (1, 2, 3)},
}
"""Kernels by the names of the operations whose own kernels on CUDA they replace."""


class _Registered:
    library: torch.library.Library | None = None
    users = 0


@contextlib.contextmanager
def repeatable_kernels(*, lasting: bool = False) -> Iterator[None]:
    """Replace the kernels of CUDA; with ``lasting``, for the rest of the process."""
    if _Registered.library is None:
        _Registered.library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some operations of torch have other kernels now
            for name, kernel in KERNELS.items():
                _Registered.library.impl(name, kernel, "CUDA")  # type: ignore[no-untyped-call]
    _Registered.users += 1
    try:
        yield
    finally:
        _Registered.users -= 1
        if not _Registered.users and not lasting:
            _operations.remove(_Registered.library)
            _Registered.library = None
