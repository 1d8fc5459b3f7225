"""Autocast in rules for stacked models: it casts what operations of torch get, but knows no others.

What a rule computes on its way back would then get other types than on its way forward, and kernels would read numbers
of two bytes as numbers of four. So rules cast what they get as autocast does for the operation that they stand for, or
leave the operation to torch.
"""

from __future__ import annotations

import torch

from hopfleet.frameworks.torch.engines.stacked.updates import Table


def autocasts(x: Table) -> bool:
    """Whether autocast is on for the device of a tensor."""
    return torch.is_autocast_enabled(x.device.type)


def lowered(*tensors: Table) -> tuple[Table, ...]:
    """Return tensors as autocast passes them to products: in its type, unless they are in double precision."""
    if not autocasts(tensors[0]):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(one.to(dtype) if one.is_floating_point() and one.dtype != torch.float64 else one for one in tensors)


def single(x: Table) -> Table:
    """Return a tensor as autocast passes it to sums and norms: in single precision at least."""
    return x.float() if autocasts(x) and x.dtype in (torch.float16, torch.bfloat16) else x
