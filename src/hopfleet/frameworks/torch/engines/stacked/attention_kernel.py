"""Attention in TF32 for stacked models on CUDA: one kernel in each direction.

Torch's attention for numbers in single precision takes each product three times, to be as precise as these numbers,
also where the user lets other products round their factors to TF32. These kernels round there, too. A block holds a
tile of scores in registers; gradients are summed by one block in one order, so that the same bits come out each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked.attention_source import sources_for
from hopfleet.frameworks.torch.engines.stacked.launching import bits, launchable, or_none
from hopfleet.frameworks.torch.engines.stacked.updates import Table

THREADS, TILE = 128, 64
"""Threads of a block, and the queries whose outcome a block computes."""

WIDEST = 64
"""Width of a head up to which all that a block needs fits into the memory that its threads share."""

PAIRS, LONGEST = 32, 1024
"""Heads of a member's sequences together from which on a stack has enough blocks to fill a device, and the greatest
number of tokens: one block makes the gradients of a head."""

LOG2E = 1.4426950408889634
"""Powers are those of two, which the device computes at once."""


class Kernels:
    """The two kernels for heads of one width."""

    def __init__(self, device: torch.device, width: int) -> None:
        sources = sources_for(width)
        for source, name in sources:
            _compat.begin_kernel(source, name, device)  # both at the same time
        self._forward, self._backward = (_compat.compiled_kernel(source, name, device) for source, name in sources)

    def forward(self, query: Table, key: Table, value: Table, causal: bool, scale: float | None) -> tuple[Table, Table]:
        """Return the outcome and the logarithms of the sums of powers."""
        query, key, value = map(_readable, (query, key, value))
        sequences, heads, queries, width = query.shape
        out = query.new_empty(sequences, queries, heads, width)
        logs = query.new_empty(sequences, heads, queries)
        strides = [one.stride(dim) for one in (query, key, value) for dim in range(3)]
        numbers = [heads, queries, key.shape[2], *strides, int(causal), bits(_scale(scale, width) * LOG2E)]
        grid = sequences * heads, -(-queries // TILE), 1
        self._forward(grid, (THREADS, 1, 1), [query, key, value, out, logs, *numbers])
        return out.transpose(1, 2), logs

    def backward(
        self,
        grad: Table,
        query: Table,
        key: Table,
        value: Table,
        found: Sequence[Table],
        causal: bool,
        scale: float | None,
    ) -> tuple[Table, Table, Table]:
        """Return the gradients of query, key and value, given all that the forward pass has ``found``."""
        grads = _grads(query, key, value)
        grad, query, key, value = map(_readable, (grad, query, key, value))
        sequences, heads, queries, width = query.shape
        out, logs = found[0].transpose(1, 2).contiguous(), found[1].contiguous()
        strides = [one.stride(dim) for one in (grad, query, key, value, *grads[:2]) for dim in range(3)]
        tensors = [grad, query, key, value, out, logs, torch.empty_like(logs), *grads]
        factor = _scale(scale, width)
        numbers = [heads, queries, key.shape[2], *strides, int(causal), bits(factor), bits(factor * LOG2E)]
        self._backward((sequences * heads, 1, 1), (THREADS, 1, 1), [*tensors, *numbers])
        return grads


def _grads(query: Table, key: Table, value: Table) -> tuple[Table, Table, Table]:
    """Return tensors for the gradients, side by side if query, key and value are parts of one tensor."""
    sequences, heads, queries, width = query.shape
    one_tensor = _compat.memory_of(query) == _compat.memory_of(key) == _compat.memory_of(value)
    if one_tensor and query.shape == key.shape:
        of_query, of_key, of_value = query.new_empty(sequences, queries, 3, heads, width).unbind(2)
    else:
        of_query = query.new_empty(sequences, queries, heads, width)
        of_key, of_value = (key.new_empty(sequences, key.shape[2], heads, width) for _ in range(2))
    return of_query.transpose(1, 2), of_key.transpose(1, 2), of_value.transpose(1, 2)


def _scale(scale: float | None, width: int) -> float:
    """Return the factor of scores; by default, that of torch."""
    return width**-0.5 if scale is None else scale


def _readable(table: Table) -> Table:
    """Return a table whose heads can be read as vectors; there may be gaps between them."""
    *strides, last = table.stride()
    fits = last == 1 and table.data_ptr() % 16 == 0 and all(one % 4 == 0 and one < 1 << 31 for one in strides)
    return table if fits else table.contiguous()


@or_none
def kernels(device: torch.device, width: int) -> Kernels:
    """Return the kernels for a device and a width; None where they cannot be compiled."""
    return Kernels(device, width)


def takes(width: int) -> bool:
    """Whether there are kernels for heads of a width, and products may be rounded."""
    return width % 8 == 0 and 0 < width <= WIDEST and torch.get_float32_matmul_precision() != "highest"


def fits(query: Table, key: Table, value: Table) -> bool:
    """Whether there are kernels for attention without a mask and dropout, and products may be rounded."""
    if not launchable(query, key, value) or not query.ndim == key.ndim == value.ndim == 4:
        return False
    sequences, heads, queries, width = query.shape
    if key.shape != value.shape or (sequences, heads, width) != (*key.shape[:2], key.shape[3]) or not takes(width):
        return False
    if not 0 < min(queries, key.shape[2]) <= max(queries, key.shape[2]) <= LONGEST or sequences * heads < PAIRS:
        return False
    return kernels(query.device, width) is not None


def kernels_for(query: Table) -> Kernels:
    """Return the kernels for attention that fits."""
    found = kernels(query.device, query.shape[-1])
    assert found is not None
    return found
