"""The update of Adam for all members of a stack, as one CUDA kernel for each parameter.

Updates of single members are too small to fill a device, and operations on tables read and write them many times. The
kernel reads each number once. It takes all settings from the device, so captured steps contain it whatever a schedule
changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.capture_backend import OnLane
from hopfleet.frameworks.torch.engines.stacked.launching import or_none
from hopfleet.frameworks.torch.engines.stacked.updates import Table

SETTINGS = ("lr", "beta1", "beta2", "weight_decay", "eps")

THREADS, BLOCKS = 256, 4096
"""Threads of a block, and blocks for all rows of a table together: enough to fill a device."""

ABREAST = 4
"""Columns that a thread updates at once, if their number allows it."""

SOURCE = """
struct Settings { float rate, keep1, keep2, shrink, small, scale, root; bool decoupled; };

__device__ __forceinline__ void step(
    const Settings& of, float& weight, float gradient, float& mean, float& square, float* largest)
{
    if (of.decoupled) weight -= of.rate * of.shrink * weight;
    else gradient += of.shrink * weight;
    mean += (1.0f - of.keep1) * (gradient - mean);
    square = of.keep2 * square + (1.0f - of.keep2) * gradient * gradient;
    float size = square;
    if (largest) *largest = size = fmaxf(*largest, square);
    weight -= of.scale * mean / (sqrtf(size) / of.root + of.small);
}

extern "C" __global__ void adam(
    float* __restrict__ weights, const float* __restrict__ grads, float* __restrict__ first,
    float* __restrict__ second, float* __restrict__ largest,
    const float* lr, const float* beta1, const float* beta2, const float* decay, const float* eps, const float* steps,
    int width, int start, int count, int decoupled, int amsgrad)
{
    const int row = blockIdx.y;
    __shared__ Settings of;
    if (threadIdx.x == 0) {
        const double gone1 = pow((double)beta1[row], (double)steps[row]);
        const double gone2 = pow((double)beta2[row], (double)steps[row]);
        of = {lr[row], beta1[row], beta2[row], decay[row], eps[row],
              (float)(lr[row] / (1.0 - gone1)), (float)sqrt(1.0 - gone2), decoupled != 0};
    }
    __syncthreads();
    weights += (long long)row * width + start;
    first += (long long)row * width + start;
    second += (long long)row * width + start;
    largest += (long long)row * width + start;
    grads += (long long)row * count;
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    if (count % 4 || amsgrad) {
        for (int at = thread; at < count; at += threads)
            step(of, weights[at], grads[at], first[at], second[at], amsgrad ? largest + at : nullptr);
        return;
    }
    float4 *weights4 = (float4*)weights, *first4 = (float4*)first, *second4 = (float4*)second;
    const float4* grads4 = (const float4*)grads;
    for (int at = thread; at < count / 4; at += threads) {
        float4 weight = weights4[at], mean = first4[at], square = second4[at];
        const float4 gradient = grads4[at];
        step(of, weight.x, gradient.x, mean.x, square.x, nullptr);
        step(of, weight.y, gradient.y, mean.y, square.y, nullptr);
        step(of, weight.z, gradient.z, mean.z, square.z, nullptr);
        step(of, weight.w, gradient.w, mean.w, square.w, nullptr);
        weights4[at] = weight;
        first4[at] = mean;
        second4[at] = square;
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
        on_lane: OnLane,
        *,
        decoupled: bool,
    ) -> None:
        """Update weights, given with their state as ``tables``, with gradients in ``pieces`` for some ``columns``."""
        weights, first, second, *largest = tables
        of_rows = [*(settings[name] for name in SETTINGS), steps]
        for number, (piece, some) in enumerate(zip(pieces, columns, strict=True)):
            count = some.stop - some.start
            blocks = min(-(-BLOCKS // len(weights)), -(-count // (THREADS * ABREAST)))
            numbers = [weights.stride(0), some.start, count, int(decoupled), len(largest)]
            with on_lane(number):
                pointers = [weights, piece.contiguous(), first, second, largest[0] if largest else second, *of_rows]
                self._launch((blocks, len(weights), 1), (THREADS, 1, 1), [*pointers, *numbers])


@or_none
def adam_kernel(device: torch.device) -> AdamKernel | None:
    """Return the kernel for a device; None where it cannot be compiled."""
    return AdamKernel(device) if device.type == "cuda" else None
