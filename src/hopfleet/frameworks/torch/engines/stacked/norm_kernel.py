"""Layer norm of stacked models on CUDA, with the weights and biases of all members: one kernel in each direction.

A row is read once in either direction: a warp holds it in registers. Sums over the rows of a member, the gradients of
its weights, are made on the way back. So is the sum with the gradient that comes from elsewhere: what is normalized is
often used beside its norm, as the residual of a layer, and is therefore returned as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, in_front
from hopfleet.frameworks.torch.engines.stacked.launching import aligned, bits, launchable, or_none, whole
from hopfleet.frameworks.torch.engines.stacked.updates import Table

LANES, WARPS = 32, 8
"""Threads of a warp, and warps of a block."""

BLOCKS = 2048
"""Blocks for all members together: enough to fill a device."""

WIDEST = 1024
"""Width of rows up to which a warp holds a row in registers."""

SOURCE = """
#define WIDTH @WIDTH@
#define QUARTERS (WIDTH / 4)
#define HELD ((QUARTERS + 31) / 32)
#define WARPS @WARPS@

__device__ __forceinline__ float over_warp(float sum)
{
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ float4 load(const float* from, int at)
{
    return at < QUARTERS ? ((const float4*)from)[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

extern "C" __global__ void forward(
    const float* x, const float* weights, const float* biases, float* out, float* means, float* scales, int rows,
    int weight_stride, int bias_stride, int eps_bits)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float4 weight[HELD], bias[HELD];
    for (int held = 0; held < HELD; ++held) {
        weight[held] = load(weights + (long long)blockIdx.y * weight_stride, lane + 32 * held);
        bias[held] = load(biases + (long long)blockIdx.y * bias_stride, lane + 32 * held);
    }
    for (int row = blockIdx.x * WARPS + warp; row < rows; row += gridDim.x * WARPS) {
        const long long place = (long long)blockIdx.y * rows + row;
        float4 some[HELD];
        float sum = 0.0f, square = 0.0f;
        for (int held = 0; held < HELD; ++held) {
            some[held] = load(x + place * WIDTH, lane + 32 * held);
            sum += some[held].x + some[held].y + some[held].z + some[held].w;
        }
        const float mean = over_warp(sum) / WIDTH;
        for (int held = 0; held < HELD; ++held) {
            if (lane + 32 * held >= QUARTERS) continue;
            float4& part = some[held];
            part.x -= mean; part.y -= mean; part.z -= mean; part.w -= mean;
            square += part.x * part.x + part.y * part.y + part.z * part.z + part.w * part.w;
        }
        const float scale = rsqrtf(over_warp(square) / WIDTH + __int_as_float(eps_bits));
        for (int held = 0; held < HELD; ++held) {
            if (lane + 32 * held >= QUARTERS) continue;
            const float4 part = some[held], by = weight[held], add = bias[held];
            ((float4*)(out + place * WIDTH))[lane + 32 * held] = make_float4(
                part.x * scale * by.x + add.x, part.y * scale * by.y + add.y,
                part.z * scale * by.z + add.z, part.w * scale * by.w + add.w);
        }
        if (lane == 0) { means[place] = mean; scales[place] = scale; }
    }
}

extern "C" __global__ void backward(
    const float* grads, const float* x, const float* weights, const float* means, const float* scales,
    const float* besides, float* out, float* weight_sums, float* bias_sums, int rows, int weight_stride, int summed)
{
    __shared__ float4 parts[WARPS][QUARTERS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float4 weight[HELD], weight_sum[HELD] = {}, bias_sum[HELD] = {};
    for (int held = 0; held < HELD; ++held)
        weight[held] = load(weights + (long long)blockIdx.y * weight_stride, lane + 32 * held);
    for (int row = blockIdx.x * WARPS + warp; row < rows; row += gridDim.x * WARPS) {
        const long long place = (long long)blockIdx.y * rows + row;
        const float mean = means[place], scale = scales[place];
        float4 normal[HELD], grad[HELD];
        float sum = 0.0f, product = 0.0f;
        for (int held = 0; held < HELD; ++held) {
            float4 part = load(x + place * WIDTH, lane + 32 * held);
            part.x = (part.x - mean) * scale; part.y = (part.y - mean) * scale;
            part.z = (part.z - mean) * scale; part.w = (part.w - mean) * scale;
            float4 back = load(grads + place * WIDTH, lane + 32 * held);
            float4 &of_weight = weight_sum[held], &of_bias = bias_sum[held];
            of_weight.x += back.x * part.x; of_weight.y += back.y * part.y;
            of_weight.z += back.z * part.z; of_weight.w += back.w * part.w;
            of_bias.x += back.x; of_bias.y += back.y; of_bias.z += back.z; of_bias.w += back.w;
            back.x *= weight[held].x; back.y *= weight[held].y; back.z *= weight[held].z; back.w *= weight[held].w;
            sum += back.x + back.y + back.z + back.w;
            product += back.x * part.x + back.y * part.y + back.z * part.z + back.w * part.w;
            normal[held] = part;
            grad[held] = back;
        }
        sum = over_warp(sum) / WIDTH;
        product = over_warp(product) / WIDTH;
        for (int held = 0; held < HELD; ++held) {
            if (lane + 32 * held >= QUARTERS) continue;
            const float4 part = normal[held], back = grad[held];
            float4 found = make_float4(
                scale * (back.x - sum - part.x * product), scale * (back.y - sum - part.y * product),
                scale * (back.z - sum - part.z * product), scale * (back.w - sum - part.w * product));
            if (summed) {
                const float4 other = ((const float4*)(besides + place * WIDTH))[lane + 32 * held];
                found.x += other.x; found.y += other.y; found.z += other.z; found.w += other.w;
            }
            ((float4*)(out + place * WIDTH))[lane + 32 * held] = found;
        }
    }
    for (int which = 0; which < 2; ++which) {
        for (int held = 0; held < HELD; ++held)
            if (lane + 32 * held < QUARTERS)
                parts[warp][lane + 32 * held] = which ? bias_sum[held] : weight_sum[held];
        __syncthreads();
        float4* sums = (float4*)(which ? bias_sums : weight_sums)
            + ((long long)blockIdx.y * gridDim.x + blockIdx.x) * QUARTERS;
        for (int at = threadIdx.x; at < QUARTERS; at += WARPS * 32) {
            float4 total = parts[0][at];
            for (int other = 1; other < WARPS; ++other) {
                const float4 part = parts[other][at];
                total.x += part.x; total.y += part.y; total.z += part.z; total.w += part.w;
            }
            sums[at] = total;
        }
        __syncthreads();
    }
}
"""


def source_for(width: int) -> str:
    """Return the source of the two kernels for rows of one width."""
    return SOURCE.replace("@WIDTH@", str(width)).replace("@WARPS@", str(WARPS))


class Kernels:
    """The two kernels for rows of one width."""

    def __init__(self, device: torch.device, width: int) -> None:
        source = source_for(width)
        self._width = width
        self._forward = _compat.compiled_kernel(source, "forward", device)
        self._backward = _compat.compiled_kernel(source, "backward", device)

    def forward(self, x: Table, weight: Table, bias: Table, eps: float) -> tuple[Table, Table, Table]:
        """Return the outcome, the means and the inverse deviations, given tables with a row for each member."""
        x, out = whole(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
        members, rows = len(x), x.numel() // (len(x) * self._width)
        means, scales = (x.new_empty(members, rows) for _ in range(2))
        numbers = [rows, weight.stride(0), bias.stride(0), bits(eps)]
        grid = self._grid(members, rows)
        self._forward(grid, (LANES * WARPS, 1, 1), [x, weight, bias, out, means, scales, *numbers])
        return out, means, scales

    def backward(
        self, grad: Table, x: Table, weight: Table, means: Table, scales: Table, beside: Table | None
    ) -> tuple[Table, Table, Table]:
        """Return the gradients of what was normalized, of the weights and of the biases.

        ``beside`` is the gradient of what was normalized that comes from elsewhere.
        """
        grad, x, other = whole(grad), whole(x), None if beside is None else whole(beside)
        members, rows = len(x), x.numel() // (len(x) * self._width)
        grid = self._grid(members, rows)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        sums = x.new_empty(2, members, grid[0], self._width)
        given = [grad, x, weight, means.contiguous(), scales.contiguous(), grad if other is None else other]
        numbers = [rows, weight.stride(0), int(other is not None)]
        self._backward(grid, (LANES * WARPS, 1, 1), [*given, out, *sums, *numbers])
        of_weight, of_bias = sums.sum(2)
        return out, of_weight, of_bias

    def _grid(self, members: int, rows: int) -> tuple[int, int, int]:
        return max(1, min(-(-rows // WARPS), BLOCKS // members)), members, 1


def _rows(table: Table) -> Table:
    """Return the weights of all members as rows that can be read as vectors."""
    return aligned(table.reshape(len(table), -1))


@or_none
def kernels(device: torch.device, width: int) -> Kernels:
    """Return the kernels for a device and a width; None where they cannot be compiled."""
    return Kernels(device, width)


def takes(width: int) -> bool:
    """Whether there are kernels for rows of a width."""
    return width % 4 == 0 and width <= WIDEST


def layer_norm(
    x: Table, normalized_shape: Sequence[int], weight: Table | None = None, bias: Table | None = None, eps: float = 1e-5
) -> tuple[Table, Table] | None:
    """Return the layer norm, and what stands for ``x`` from now on; None if there is no kernel for it."""
    if weight is None or bias is None:
        return None
    width = math.prod(normalized_shape)
    if not launchable(x, weight, bias) or not takes(width):
        return None
    if not x.numel() or kernels(x.device, width) is None:
        return None
    found, _, _, same = Norm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return found, same


class NormKernelContext(FunctionCtx):
    """The context of ``Norm``."""

    saved_tensors: tuple[Table, ...]


class Norm(torch.autograd.Function):
    """Layer norm, what its backward pass needs, means and inverse deviations, and what is normalized."""

    @staticmethod
    def forward(x: Table, weight: Table, bias: Table, eps: float) -> tuple[Table, ...]:
        found = _forward(*(one.unsqueeze(0) for one in (x, weight, bias)), eps=eps)
        return tuple(one.squeeze(0) for one in found)

    @staticmethod
    def setup_context(ctx: NormKernelContext, inputs: tuple[Argument, ...], output: tuple[Table, ...]) -> None:
        _, means, scales, _ = output
        ctx.save_for_backward(*inputs[:2], means, scales)
        ctx.mark_non_differentiable(means, scales)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: NormKernelContext, grad: Table | None, means: None, scales: None, beside: Table | None
    ) -> tuple[Table | None, ...]:
        if grad is None:
            return beside, None, None, None
        return *NormBackward.apply(grad, *ctx.saved_tensors, beside), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        return _forward(*in_front(info, dims, inputs[:3]), eps=inputs[3]), (0, 0, 0, 0)


class NormBackward(Forgetful):
    """The gradients of what is normalized, of the weights and of the biases."""

    @staticmethod
    def forward(
        grad: Table, x: Table, weight: Table, means: Table, scales: Table, beside: Table | None
    ) -> tuple[Table, ...]:
        tensors = [one for one in (grad, x, weight, means, scales, beside) if one is not None]
        return tuple(one.squeeze(0) for one in _backward(*(one.unsqueeze(0) for one in tensors)))

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, ...], tuple[int, ...]]:
        return _backward(*in_front(info, dims, [one for one in inputs if one is not None])), (0, 0, 0)


def _forward(x: Table, weight: Table, bias: Table, *, eps: float) -> tuple[Table, ...]:
    found = kernels(x.device, weight[0].numel())
    assert found is not None
    return *found.forward(x, _rows(weight), _rows(bias), eps), x.view_as(x)


def _backward(
    grad: Table, x: Table, weight: Table, means: Table, scales: Table, beside: Table | None = None
) -> tuple[Table, ...]:
    found = kernels(x.device, weight[0].numel())
    assert found is not None
    out, of_weight, of_bias = found.backward(grad, x, _rows(weight), means, scales, beside)
    return out, of_weight.view(weight.shape), of_bias.view(weight.shape)
