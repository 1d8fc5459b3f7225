"""Stand-ins for the kernels of stacked models that work on the CPU, so that what surrounds kernels is tested anywhere.

A stand-in gets the source and the arguments of a kernel, and sees no more of them than the kernel does: the constants
in the source, a grid and a block, numbers, and memory from where each tensor begins. It reads tables row after row and
weights at the strides given, only where vectors are aligned. Each block leaves its own sums; columns beyond the grid
are NaN. The arithmetic of the kernels themselves needs a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked import attention_kernel, dropout, linear, norm_kernel, products

aten = torch.ops.aten

VALUES: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    lambda x: x,
    torch.relu,
    torch.nn.functional.gelu,
    lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
)
SLOPES: Sequence[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = (
    lambda grad, x: grad,
    lambda grad, x: aten.threshold_backward(grad, x, 0),
    lambda grad, x: aten.gelu_backward(grad, x),
    lambda grad, x: aten.gelu_backward(grad, x, approximate="tanh"),
)

Constants = Mapping[str, int]
Triple = tuple[int, int, int]
Arguments = Sequence[Any]


def memory(tensor: torch.Tensor, *shape: int, vector: int = 1, apart: int | None = None) -> torch.Tensor:
    """View the memory of a tensor from its beginning in some shape, with rows ``apart`` if they have gaps."""
    strides = [math.prod(shape[number + 1 :]) for number in range(len(shape))]
    strides[0] = strides[0] if apart is None else apart
    assert tensor.dtype == torch.float32
    assert tensor.data_ptr() % (4 * vector) == 0 and strides[0] % vector == 0, "vectors are aligned"
    return tensor.as_strided(shape, strides)


def number_of(bits: int) -> float:
    """Return the number in single precision that has these bits."""
    found: float = struct.unpack("f", struct.pack("i", bits))[0]
    return found


def by_block(blocks: int, abreast: int, values: torch.Tensor) -> torch.Tensor:
    """Sum the rows of each member that each block reads."""
    members, rows, width = values.shape
    return values.new_zeros(members, blocks, width).index_add_(1, torch.arange(rows) // abreast % blocks, values)


def epilogue(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    product, bias, beside, out, rows, width, stride, summed = arguments
    (across, _, members), vector = grid, of["VECTOR"]
    assert block == (of["LANES"], of["ABREAST"], 1)
    add = memory(bias, members, width, vector=vector, apart=stride).unsqueeze(1)
    found = VALUES[of["ACTIVATION"]](memory(product, members, rows, width, vector=vector) + add)
    found = found + memory(beside, members, rows, width, vector=vector) if summed else found
    covered = across * of["LANES"] * vector
    memory(out, members, rows, width, vector=vector).fill_(math.nan)[..., :covered] = found[..., :covered]


def epilogue_backward(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    grad, product, bias, out, sums, rows, width, stride = arguments
    (across, blocks, members), vector = grid, of["VECTOR"]
    assert block == (of["LANES"], of["ABREAST"], 1)
    add = memory(bias, members, width, vector=vector, apart=stride).unsqueeze(1)
    found = memory(grad, members, rows, width, vector=vector)
    covered = across * of["LANES"] * vector
    if of["ACTIVATION"]:
        found = SLOPES[of["ACTIVATION"]](found, memory(product, members, rows, width, vector=vector) + add)
        memory(out, members, rows, width, vector=vector).fill_(math.nan)[..., :covered] = found[..., :covered]
    totals = by_block(blocks, of["ABREAST"], found)
    memory(sums, members, blocks, width, vector=vector).fill_(math.nan)[..., :covered] = totals[..., :covered]


def norm(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    x, weights, biases, out, means, scales, rows, weight_stride, bias_stride, eps_bits = arguments
    (_, members, _), width = grid, of["WIDTH"]
    assert block == (32 * of["WARPS"], 1, 1)
    weight = memory(weights, members, width, vector=4, apart=weight_stride).unsqueeze(1)
    bias = memory(biases, members, width, vector=4, apart=bias_stride).unsqueeze(1)
    some = memory(x, members, rows, width, vector=4)
    mean, square = some.mean(-1, keepdim=True), some.var(-1, correction=0, keepdim=True)
    scale = (square + number_of(eps_bits)).rsqrt()
    memory(out, members, rows, width, vector=4).copy_((some - mean) * scale * weight + bias)
    memory(means, members, rows, 1).copy_(mean)
    memory(scales, members, rows, 1).copy_(scale)


def norm_backward(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    grads, x, weights, means, scales, besides, out, weight_sums, bias_sums, rows, weight_stride, summed = arguments
    (blocks, members, _), width = grid, of["WIDTH"]
    assert block == (32 * of["WARPS"], 1, 1)
    weight = memory(weights, members, width, vector=4, apart=weight_stride).unsqueeze(1)
    mean, scale = (memory(one, members, rows, 1) for one in (means, scales))
    grad = memory(grads, members, rows, width, vector=4)
    normal = (memory(x, members, rows, width, vector=4) - mean) * scale
    memory(weight_sums, members, blocks, width, vector=4).copy_(by_block(blocks, of["WARPS"], grad * normal))
    memory(bias_sums, members, blocks, width, vector=4).copy_(by_block(blocks, of["WARPS"], grad))
    back = grad * weight
    along = (back * normal).mean(-1, keepdim=True)
    found = scale * (back - back.mean(-1, keepdim=True) - normal * along)
    found = found + memory(besides, members, rows, width, vector=4) if summed else found
    memory(out, members, rows, width, vector=4).copy_(found)


def turn(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    weight, turned, rows, columns, apart = arguments
    (across, down, members), tile = grid, of["TILE"]
    assert block == (tile, of["ABREAST"], 1)
    found = memory(weight, members, rows * columns, apart=apart).unflatten(1, (rows, columns)).transpose(1, 2)
    covered = slice(None, across * tile), slice(None, down * tile)
    memory(turned, members, columns, rows).fill_(math.nan)[:, *covered] = found[:, *covered]


def drop(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    """Drop numbers at random; the same ones for the same seed."""
    table, rates, seed, out, numbers, apart = arguments
    members = grid[1]
    assert block[1:] == (1, 1) and table.data_ptr() % 16 == 0
    chance = torch.rand(members, numbers, generator=torch.Generator().manual_seed(seed.item()))
    rate = memory(rates, members, apart=apart).unsqueeze(1)
    scale = torch.where(rate < 1, 1 / (1 - rate), 0)
    memory(out, members, numbers).copy_(memory(table, members, numbers) * torch.where(chance < rate, 0, scale))


def heads_of(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """View the memory of a tensor from its beginning as sequences, heads, tokens and numbers."""
    assert tensor.dtype == torch.float32 and tensor.data_ptr() % 16 == 0 and not any(one % 4 for one in strides)
    return tensor.as_strided(shape, (*strides, 1))


def weights_of(query: torch.Tensor, key: torch.Tensor, causal: int, factor_bits: int) -> Any:
    """Return the weights of attention, and the logarithms of the sums of powers."""
    scores = query @ key.transpose(-1, -2) * number_of(factor_bits)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    logs = scores.mul(math.log(2)).logsumexp(-1) / math.log(2)
    return (scores - logs.unsqueeze(-1)).exp2(), logs


def attend(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    query, key, value, out, logs, heads, queries, keys, *strides, causal, factor_bits = arguments
    (pairs, tiles, _), width = grid, of["WIDTH"]
    assert block == (of["THREADS"], 1, 1)
    lengths = queries, keys, keys
    query, key, value = (
        heads_of(one, (pairs // heads, heads, length, width), strides[3 * at : 3 * at + 3])
        for at, (one, length) in enumerate(zip((query, key, value), lengths, strict=True))
    )
    weights, found = weights_of(query, key, causal, factor_bits)
    covered = slice(None, tiles * of["TILE"])
    places = memory(out, pairs // heads, queries, heads, width, vector=4).fill_(math.nan)
    places[:, covered] = (weights @ value).transpose(1, 2)[:, covered]
    memory(logs, pairs // heads, heads, queries).fill_(math.nan)[..., covered] = found[..., covered]


def attend_back(of: Constants, grid: Triple, block: Triple, arguments: Arguments) -> None:
    tensors, (heads, queries, keys, *strides, causal, scale_bits, factor_bits) = arguments[:10], arguments[10:]
    grad, query, key, value, out, logs, products, *grads = tensors
    pairs, width = grid[0], of["WIDTH"]
    assert block == (of["THREADS"], 1, 1) and grid[1:] == (1, 1)
    shapes = [(pairs // heads, heads, length, width) for length in (queries, queries, keys, keys, queries, keys, keys)]
    found = [
        heads_of(one, shape, strides[3 * min(at, 5) : 3 * min(at, 5) + 3])
        for at, (one, shape) in enumerate(zip((grad, query, key, value, *grads), shapes, strict=True))
    ]
    grad, query, key, value, *grads = found
    weights, expected = weights_of(query, key, causal, factor_bits)
    torch.testing.assert_close(memory(logs, pairs // heads, heads, queries), expected)
    rows = memory(out, pairs // heads, queries, heads, width, vector=4).transpose(1, 2)
    memory(products, pairs // heads, heads, queries).copy_((grad * rows).sum(-1))
    slopes = weights * (grad @ value.transpose(-1, -2) - (grad * rows).sum(-1, keepdim=True))
    slopes = slopes * number_of(scale_bits)
    back = slopes @ key, slopes.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ grad
    for to, one in zip(grads, back, strict=True):
        to.copy_(one)


KERNELS: Mapping[str, Callable[[Constants, Triple, Triple, Arguments], None]] = {
    "linear forward": epilogue,
    "linear backward": epilogue_backward,
    "norm forward": norm,
    "norm backward": norm_backward,
    "turn": turn,
    "drop": drop,
    "attend": attend,
    "attend_back": attend_back,
}


class StandIns:
    """Stand-ins for kernels, with a note of each compilation and of each launch."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.launched: list[str] = []

    def compile(self, source: str, name: str, device: torch.device) -> Callable[..., None]:
        constants = {key: int(value) for key, value in re.findall(r"^#define (\w+) (\d+)$", source, re.MULTILINE)}
        kind = name if name in KERNELS else f"{'norm' if 'WIDTH' in constants else 'linear'} {name}"
        self.compiled.append(kind)
        return functools.partial(self._launch, kind, constants)

    def _launch(self, kind: str, constants: Constants, *arguments: Any) -> None:
        self.launched.append(kind)
        KERNELS[kind](constants, *arguments)


def kernels_or_stand_ins(monkeypatch: pytest.MonkeyPatch) -> contextlib.AbstractContextManager[StandIns | None]:
    """Leave tables to kernels where there is a GPU, and to stand-ins elsewhere."""
    return contextlib.nullcontext() if torch.cuda.is_available() else in_place_of_kernels(monkeypatch)


@contextlib.contextmanager
def in_place_of_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """Let tables on the CPU be left to stand-ins, where those on CUDA are left to kernels."""
    found = StandIns()
    monkeypatch.setattr(_compat, "compiled_kernel", found.compile)
    monkeypatch.setattr(_compat, "begin_kernel", lambda source, name, device: None)
    caches = (linear.kernels, norm_kernel.kernels, products.turn, dropout.kernel, attention_kernel.kernels)
    for module in (linear, norm_kernel, products, dropout, attention_kernel):
        monkeypatch.setattr(module, "launchable", lambda *tables: {one.dtype for one in tables} == {torch.float32})
    for cache in caches:
        cache.cache_clear()
    try:
        yield found
    finally:
        for cache in caches:
            cache.cache_clear()
