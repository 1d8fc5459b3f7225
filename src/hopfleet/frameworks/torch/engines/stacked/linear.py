"""Linear layers of stacked models on CUDA: one kernel does for all members what follows their products.

It adds a bias, applies an activation, and adds the result to another tensor. Under vmap, torch adds biases by an
operation that broadcasts slowly, and sums their gradients by one more that reads all gradients again. Here a product is
read once on its way forward, and the gradient once on its way back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.autocast import autocasts
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, in_front
from hopfleet.frameworks.torch.engines.stacked.launching import aligned, launchable, or_none, whole
from hopfleet.frameworks.torch.engines.stacked.products import product
from hopfleet.frameworks.torch.engines.stacked.updates import Table

ACTIVATIONS = ("", "relu", "gelu", "tanh-gelu")
"""Functions that a kernel can apply after the bias; the first one is none."""

COMPOSED = ("transformers.activations.NewGELUActivation", "transformers.activations.FastGELUActivation")
"""Classes that compute ``gelu`` with the approximation by a tangent in eight operations."""

LANES, ABREAST = 32, 8
"""Threads of a block along a row, and the rows that a block reads at once."""

BLOCKS = 4096
"""Blocks for all members together: enough to fill a device."""

SOURCE = """
#define VECTOR @VECTOR@
#define ACTIVATION @ACTIVATION@
#define LANES @LANES@
#define ABREAST @ABREAST@

struct __align__(4 * VECTOR) Some { float at[VECTOR]; };

__device__ __forceinline__ float value(float x)
{
#if ACTIVATION == 1
    return x < 0.0f ? 0.0f : x;
#elif ACTIVATION == 2
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
#elif ACTIVATION == 3
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
#else
    return x;
#endif
}

__device__ __forceinline__ float slope(float x)
{
#if ACTIVATION == 1
    return x <= 0.0f ? 0.0f : 1.0f;
#elif ACTIVATION == 2
    return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
#elif ACTIVATION == 3
    const float bent = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + bent) + 0.5f * x * (1.0f - bent * bent) * 0.79788456f * (1.0f + 0.134145f * x * x);
#else
    return 1.0f;
#endif
}

extern "C" __global__ void forward(
    const float* product, const float* bias, const float* beside, float* out, int rows, int width, int stride,
    int summed)
{
    const int column = (blockIdx.x * LANES + threadIdx.x) * VECTOR;
    if (column >= width) return;
    const Some add = *(const Some*)(bias + (long long)blockIdx.z * stride + column);
    const long long first = (long long)blockIdx.z * rows * width + column;
    for (int row = blockIdx.y * ABREAST + threadIdx.y; row < rows; row += gridDim.y * ABREAST) {
        Some some = *(const Some*)(product + first + (long long)row * width);
        for (int at = 0; at < VECTOR; ++at) some.at[at] = value(some.at[at] + add.at[at]);
        if (summed) {
            const Some other = *(const Some*)(beside + first + (long long)row * width);
            for (int at = 0; at < VECTOR; ++at) some.at[at] += other.at[at];
        }
        *(Some*)(out + first + (long long)row * width) = some;
    }
}

extern "C" __global__ void backward(
    const float* grad, const float* product, const float* bias, float* out, float* sums, int rows, int width,
    int stride)
{
    __shared__ Some parts[ABREAST][LANES];
    const int column = (blockIdx.x * LANES + threadIdx.x) * VECTOR;
    Some total = {};
    if (column < width) {
        const Some add = *(const Some*)(bias + (long long)blockIdx.z * stride + column);
        const long long first = (long long)blockIdx.z * rows * width + column;
        for (int row = blockIdx.y * ABREAST + threadIdx.y; row < rows; row += gridDim.y * ABREAST) {
            Some some = *(const Some*)(grad + first + (long long)row * width);
#if ACTIVATION
            const Some before = *(const Some*)(product + first + (long long)row * width);
            for (int at = 0; at < VECTOR; ++at) some.at[at] *= slope(before.at[at] + add.at[at]);
            *(Some*)(out + first + (long long)row * width) = some;
#endif
            for (int at = 0; at < VECTOR; ++at) total.at[at] += some.at[at];
        }
    }
    parts[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y || column >= width) return;
    for (int other = 1; other < ABREAST; ++other)
        for (int at = 0; at < VECTOR; ++at) total.at[at] += parts[other][threadIdx.x].at[at];
    *(Some*)(sums + ((long long)blockIdx.z * gridDim.y + blockIdx.y) * width + column) = total;
}
"""


def source_for(vector: int, activation: int) -> str:
    """Return the source of the two kernels for rows of one alignment and one activation."""
    names = {"VECTOR": vector, "ACTIVATION": activation, "LANES": LANES, "ABREAST": ABREAST}
    return functools.reduce(lambda text, name: text.replace(f"@{name}@", str(names[name])), names, SOURCE)


class Kernels:
    """The two kernels for rows of one alignment and one activation."""

    def __init__(self, device: torch.device, vector: int, activation: int) -> None:
        source = source_for(vector, activation)
        self._vector = vector
        self._forward = _compat.compiled_kernel(source, "forward", device)
        self._backward = _compat.compiled_kernel(source, "backward", device)

    def forward(self, product: Table, bias: Table, beside: Table | None) -> Table:
        """Return the outcome, given products, biases and addends with a first dimension for the members."""
        out = torch.empty_like(product)
        members, width = len(product), product.shape[-1]
        rows = product.numel() // (members * width)
        grid = self._grid(members, rows, width)
        tensors = [product, bias, product if beside is None else beside, out]
        self._forward(grid, (LANES, ABREAST, 1), [*tensors, rows, width, bias.stride(0), int(beside is not None)])
        return out

    def backward(self, grad: Table, product: Table | None, bias: Table) -> tuple[Table, Table]:
        """Return the gradients of products and biases. Without an activation, no products are needed."""
        out = grad if product is None else torch.empty_like(grad)
        members, width = len(grad), grad.shape[-1]
        rows = grad.numel() // (members * width)
        grid = self._grid(members, rows, width)
        sums = grad.new_empty(members, grid[1], width)
        tensors = [grad, grad if product is None else product, bias, out, sums]
        self._backward(grid, (LANES, ABREAST, 1), [*tensors, rows, width, bias.stride(0)])
        return out, sums.sum(1)

    def _grid(self, members: int, rows: int, width: int) -> tuple[int, int, int]:
        across = -(-width // (LANES * self._vector))
        return across, max(1, min(-(-rows // ABREAST), BLOCKS // (across * members))), members


@or_none
def kernels(device: torch.device, vector: int, activation: int) -> Kernels:
    """Return the kernels for a device; None where they cannot be compiled."""
    return Kernels(device, vector, activation)


def vector_of(width: int) -> int:
    """Return how many numbers of rows of a width can be read at once."""
    return 4 if width % 4 == 0 else 1


def _chosen(x: Table, activation: int) -> Kernels:
    found = kernels(x.device, vector_of(x.shape[-1]), activation)
    assert found is not None
    return found


def linear(x: Table, weight: Table, bias: Table | None = None) -> Table:
    """Return the product with weights, with the bias added."""
    if bias is None:
        return product(x, weight)
    return epilogue(product(x, weight), bias) if suits(x, weight, bias) else functional.linear(x, weight, bias)


def addmm(bias: Table, x: Table, weight: Table, **options: Argument) -> Table:
    """Return a product with a sum, which some libraries write for a linear layer."""
    if not options and is_layer(bias, x, weight) and suits(x, weight, bias):
        return epilogue(x @ weight, bias)
    return torch.addmm(bias, x, weight, **options)


def is_layer(bias: Table, x: Table, weight: Table) -> bool:
    """Whether a product with a sum is that of a linear layer."""
    return bias.ndim == 1 and x.ndim == 2 and len(bias) == weight.shape[1]


def suits(x: Table, weight: Table, bias: Table) -> bool:
    """Whether a layer learns, on a device and in a type that there are kernels for."""
    if autocasts(x):
        return False
    learns = weight.requires_grad and bias.requires_grad and x.numel() > 0 and launchable(x, weight, bias)
    return learns and kernels(x.device, vector_of(len(bias)), 0) is not None


def epilogue(product: Table, bias: Table, activation: int = 0, beside: Table | None = None) -> Table:
    """Add a bias to a product, apply an activation, and add something else."""
    found: Table = Epilogue.apply(product, bias, beside, activation)  # type: ignore[no-untyped-call]
    return found


class LinearContext(FunctionCtx):
    """The context of an epilogue: its activation."""

    activation: int
    summed: bool
    saved_tensors: tuple[Table, ...]


class Epilogue(torch.autograd.Function):
    """What follows the product of a linear layer."""

    @staticmethod
    def forward(product: Table, bias: Table, beside: Table | None, activation: int) -> Table:
        other = None if beside is None else beside.unsqueeze(0)
        return _forward(product.unsqueeze(0), bias.unsqueeze(0), other, activation).squeeze(0)

    @staticmethod
    def setup_context(ctx: LinearContext, inputs: tuple[Argument, ...], output: Table) -> None:
        product, bias, beside, ctx.activation = inputs
        ctx.summed = beside is not None
        ctx.save_for_backward(bias, *([product] if ctx.activation else []))

    @staticmethod
    def backward(ctx: LinearContext, grad: Table) -> tuple[Table | None, ...]:
        bias, *product = ctx.saved_tensors
        inputs = grad, bias, product[0] if product else None, ctx.activation
        found = EpilogueBackward.apply(*inputs)  # type: ignore[no-untyped-call]
        return *found, grad if ctx.summed else None, None

    @staticmethod
    def vmap(info: VmapInfo, dims: Sequence[int | None], *inputs: Argument) -> tuple[Table, int]:
        *tensors, activation = inputs
        product, bias, *beside = in_front(info, dims, [one for one in tensors if one is not None])
        return _forward(product, bias, beside[0] if beside else None, activation), 0


class EpilogueBackward(Forgetful):
    """The gradients of the product and of the bias."""

    @staticmethod
    def forward(grad: Table, bias: Table, product: Table | None, activation: int) -> tuple[Table, Table]:
        before = None if product is None else product.unsqueeze(0)
        out, sums = _backward(grad.unsqueeze(0), bias.unsqueeze(0), before, activation)
        return out.squeeze(0), sums.squeeze(0)

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, Table], tuple[int, int]]:
        *tensors, activation = inputs
        grad, bias, *product = in_front(info, dims, [one for one in tensors if one is not None])
        return _backward(grad, bias, product[0] if product else None, activation), (0, 0)


def _forward(product: Table, bias: Table, beside: Table | None, activation: int) -> Table:
    other = None if beside is None else whole(beside)
    return _chosen(product, activation).forward(whole(product), aligned(bias), other)


def _backward(grad: Table, bias: Table, product: Table | None, activation: int) -> tuple[Table, Table]:
    before = None if product is None else whole(product)
    return _chosen(grad, activation).backward(whole(grad), before, aligned(bias))


# -------------------------------------------------------------------------------------------------------- activations


def replace_composed(model: torch.nn.Module) -> None:
    """Let activations that a library composes of many operations be one."""
    for module in list(model.modules()):
        for name, child in _compat.children(module):
            if f"{type(child).__module__}.{type(child).__qualname__}" in COMPOSED and not _compat.has_hooks(child):
                setattr(module, name, torch.nn.GELU(approximate="tanh"))


def activation_of(module: torch.nn.Module) -> str:
    """Return the activation that a module is; empty if it is none that a kernel can apply."""
    if type(module) is torch.nn.ReLU:
        return "relu"
    if type(module) is torch.nn.GELU:
        return {"none": "gelu", "tanh": "tanh-gelu"}.get(module.approximate, "")
    return ""
