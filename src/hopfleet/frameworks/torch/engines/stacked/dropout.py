"""Dropout of stacked models, with a rate for each member: on CUDA one kernel in each direction, which keeps no mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.autograd.function import FunctionCtx

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.folding import Argument, Forgetful, VmapInfo, in_front
from hopfleet.frameworks.torch.engines.stacked.launching import launchable, or_none, whole
from hopfleet.frameworks.torch.engines.stacked.updates import Table

THREADS, BLOCKS = 256, 4096
"""Threads of a block, and blocks for all members together: enough to fill a device."""

SOURCE = """
// Philox 4x32-10: four random numbers for a place, the same in both directions.
__device__ __forceinline__ uint4 drawn(unsigned long long place, unsigned int member, unsigned long long seed)
{
    uint4 now = make_uint4((unsigned int)place, (unsigned int)(place >> 32), member, 0u);
    uint2 key = make_uint2((unsigned int)seed, (unsigned int)(seed >> 32));
    for (int round = 0; round < 10; ++round) {
        const unsigned int high0 = __umulhi(0xD2511F53u, now.x), low0 = 0xD2511F53u * now.x;
        const unsigned int high1 = __umulhi(0xCD9E8D57u, now.z), low1 = 0xCD9E8D57u * now.z;
        now = make_uint4(high1 ^ now.y ^ key.x, low1, high0 ^ now.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return now;
}

extern "C" __global__ void drop(
    const float* from, const float* rates, const long long* seed, float* to, int numbers, int apart)
{
    const unsigned int member = blockIdx.y;
    const float rate = rates[(long long)member * apart], scale = rate < 1.0f ? 1.0f / (1.0f - rate) : 0.0f;
    from += (long long)member * numbers;
    to += (long long)member * numbers;
    const int fours = (numbers + 3) / 4;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < fours; at += gridDim.x * blockDim.x) {
        const uint4 random = drawn(at, member, (unsigned long long)seed[0]);
        const float4 by = make_float4(
            (random.x >> 8) * 0x1p-24f < rate ? 0.0f : scale, (random.y >> 8) * 0x1p-24f < rate ? 0.0f : scale,
            (random.z >> 8) * 0x1p-24f < rate ? 0.0f : scale, (random.w >> 8) * 0x1p-24f < rate ? 0.0f : scale);
        if (numbers % 4 == 0) {
            const float4 some = ((const float4*)from)[at];
            ((float4*)to)[at] = make_float4(some.x * by.x, some.y * by.y, some.z * by.z, some.w * by.w);
            continue;
        }
        const float each[4] = {by.x, by.y, by.z, by.w};
        for (int number = 4 * at; number < numbers && number < 4 * at + 4; ++number)
            to[number] = from[number] * each[number - 4 * at];
    }
}
"""


class Kernel:
    """The kernel, ready to be launched on one device."""

    def __init__(self, device: torch.device) -> None:
        self._launch = _compat.compiled_kernel(SOURCE, "drop", device)

    def __call__(self, table: Table, rates: Table, seed: Table) -> Table:
        """Drop numbers of a table whose first dimension is that of the members, each with its rate; scale the others.

        It takes rates and seed from the device, so captured steps contain it.
        """
        table, out = whole(table), torch.empty_like(table, memory_format=torch.contiguous_format)
        members, numbers = len(table), table[0].numel()
        blocks = max(1, min(-(-BLOCKS // members), -(-numbers // (4 * THREADS))))
        arguments = [table, rates, seed, out, numbers, rates.stride(0)]
        self._launch((blocks, members, 1), (THREADS, 1, 1), arguments)
        return out


@or_none
def kernel(device: torch.device) -> Kernel:
    """Return the kernel for a device; None where it cannot be compiled."""
    return Kernel(device)


def dropped(x: Table, rate: Table) -> Table:
    """Drop numbers at a rate, and scale the others."""
    if x.numel() and launchable(x, rate) and kernel(x.device) is not None:
        found: Table = Drop.apply(x, rate)[0]  # type: ignore[no-untyped-call]
        return found
    # Half of single precision has too few numbers between 0 and 1 for a rate.
    kept = torch.rand_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) >= rate
    return x * kept / (1 - rate).clamp(min=1e-12)


def dropout(x: Table, p: float | Table = 0.5, training: bool = True, inplace: bool = False) -> Table:
    """Torch's function, at a rate that may be a tensor: that of each member."""
    if torch.is_tensor(p):
        return dropped(x, p) if training else x
    return torch.nn.functional.dropout(x, p, training, inplace)


class DropoutContext(FunctionCtx):
    """The context of dropout: the rate, and the seed that was drawn."""

    saved_tensors: tuple[Table, ...]


class Drop(torch.autograd.Function):
    """Dropout that returns its outcome and its seed."""

    @staticmethod
    def forward(x: Table, rate: Table) -> tuple[Table, Table]:
        found, seed = _drawn(x.unsqueeze(0), rate.unsqueeze(0))
        return found.squeeze(0), seed

    @staticmethod
    def setup_context(ctx: DropoutContext, inputs: tuple[Argument, ...], output: tuple[Table, Table]) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: DropoutContext, grad: Table, _: Table) -> tuple[Table, None]:
        return DropAgain.apply(grad, *ctx.saved_tensors), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: VmapInfo, dims: Sequence[int | None], *inputs: Argument
    ) -> tuple[tuple[Table, Table], tuple[int, None]]:
        x, rates = in_front(info, dims, inputs)
        return _drawn(x, rates), (0, None)


class DropAgain(Forgetful):
    """What dropout does to a gradient: the same as to its input."""

    @staticmethod
    def forward(grad: Table, rate: Table, seed: Table) -> Table:
        return _by_kernel(grad.unsqueeze(0), rate.unsqueeze(0), seed).squeeze(0)

    @staticmethod
    def vmap(info: VmapInfo, dims: Sequence[int | None], *inputs: Argument) -> tuple[Table, int]:
        grad, rate = in_front(info, dims, inputs[:2])
        return _by_kernel(grad, rate, inputs[2]), 0


def _drawn(x: Table, rates: Table) -> tuple[Table, Table]:
    seed = torch.randint(2**63 - 1, (1,), device=x.device)
    return _by_kernel(x, rates, seed), seed


def _by_kernel(table: Table, rates: Table, seed: Table) -> Table:
    found = kernel(table.device)
    assert found is not None
    return found(table, rates, seed)


# ------------------------------------------------------------------------------------------------------------- layers


class Dropout(torch.nn.Module):
    """Dropout with a rate for each member."""

    rate: Table

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(float(rates[0])))
        #: The rate, if all members have the same.
        self.common = rates[0] if len(set(rates)) == 1 else None

    @property
    def p(self) -> float | Table:
        """The rate, for models that read it, say to pass it to attention."""
        if not self.training:
            return 0.0
        return self.rate if self.common is None else self.common

    def forward(self, x: Table) -> Table:
        return dropped(x, self.rate) if self.training and self.common != 0 else x


def use_rates(model: torch.nn.Module, members: Sequence[torch.nn.Module]) -> None:
    """Replace torch's dropout in a copy of the members' models by one with a rate for each member."""
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Dropout:
                rates = [getattr(member.get_submodule(path), name).p for member in members]
                setattr(module, name, Dropout(rates))


@contextmanager
def without_dropout(*modules: torch.nn.Module) -> Iterator[None]:
    """Switch layers with dropout off. Models that read a rate read 0."""
    chance = [one for module in modules for one in module.modules() if "Dropout" in type(one).__name__]
    rates = [(vars(one), vars(one)["p"]) for one in chance if isinstance(vars(one).get("p"), int | float)]
    training = [(one, one.training) for module in chance for one in module.modules()]
    for one in chance:
        one.eval()
    for attributes, _ in rates:
        attributes["p"] = 0.0
    try:
        yield
    finally:
        for one, mode in training:
            one.training = mode
        for attributes, rate in rates:
            attributes["p"] = rate
