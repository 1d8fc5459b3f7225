"""The update of Adam for all members of a stack, as one CUDA kernel for each parameter.

Updates of single members are too small to fill a device, and operations on tables read and write them many times. The
kernel reads each number once. It takes all settings from the device, so captured steps contain it whatever a schedule
changes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.updates import Table

SETTINGS = ("lr", "beta1", "beta2", "weight_decay", "eps")

THREADS = 256
MOST_BLOCKS = 1024
"""Blocks for a row of a table, at most; each takes several turns if they are too few."""

SOURCE = """
extern "C" __global__ void adam(
    float* __restrict__ weights, const float* __restrict__ grads, float* __restrict__ first,
    float* __restrict__ second, float* __restrict__ largest,
    const float* lr, const float* beta1, const float* beta2, const float* decay, const float* eps, const float* steps,
    int width, int start, int count, int decoupled, int amsgrad)
{
    const int row = blockIdx.y;
    __shared__ float scale, root;
    if (threadIdx.x == 0) {
        scale = (float)(lr[row] / (1.0 - pow((double)beta1[row], (double)steps[row])));
        root = (float)sqrt(1.0 - pow((double)beta2[row], (double)steps[row]));
    }
    __syncthreads();
    const float rate = lr[row], keep1 = beta1[row], keep2 = beta2[row], shrink = decay[row], small = eps[row];
    const float add1 = 1.0f - keep1, add2 = 1.0f - keep2;
    const long long table = (long long)row * width + start, piece = (long long)row * count;
    for (int column = blockIdx.x * blockDim.x + threadIdx.x; column < count; column += gridDim.x * blockDim.x) {
        const long long at = table + column;
        float weight = weights[at], gradient = grads[piece + column], mean = first[at], square = second[at];
        if (decoupled) weight -= rate * shrink * weight;
        else gradient += shrink * weight;
        mean += add1 * (gradient - mean);
        square = keep2 * square + add2 * gradient * gradient;
        first[at] = mean;
        second[at] = square;
        float size = square;
        if (amsgrad) {
            size = fmaxf(largest[at], square);
            largest[at] = size;
        }
        weights[at] = weight - scale * mean / (sqrtf(size) / root + small);
    }
}
"""


class AdamKernel:
    """The kernel, ready to be launched on one device."""

    def __init__(self, device: torch.device) -> None:
        self._launch = _compat.compiled_kernel(SOURCE, "adam", device)

    def update(
        self,
        tables: Sequence[Table],
        pieces: Sequence[Table],
        columns: Sequence[slice],
        settings: Mapping[str, Table],
        steps: Table,
        *,
        decoupled: bool,
    ) -> None:
        """Update weights, given with their state as ``tables``, with gradients in ``pieces`` for some ``columns``."""
        weights, first, second, *largest = tables
        of_rows = [*(settings[name] for name in SETTINGS), steps]
        for piece, some in zip(pieces, columns, strict=True):
            count = some.stop - some.start
            grid = (min(MOST_BLOCKS, -(-count // THREADS)), len(weights), 1)
            pointers = [weights, piece.contiguous(), first, second, largest[0] if largest else second, *of_rows]
            numbers = [weights.stride(0), some.start, count, int(decoupled), len(largest)]
            self._launch(grid, (THREADS, 1, 1), [*pointers, *numbers])


@functools.cache
def adam_kernel(device: torch.device) -> AdamKernel | None:
    """Return the kernel for a device; None where it cannot be compiled."""
    if device.type != "cuda":
        return None
    try:
        return AdamKernel(device)
    except (AttributeError, OSError, RuntimeError):
        return None
