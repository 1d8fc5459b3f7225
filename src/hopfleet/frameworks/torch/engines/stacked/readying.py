"""Compiles the kernels that a stack will need while its other members are being built."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator

import torch

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.stacked import attention_kernel, dropout, kernels, linear, norm_kernel, products
from hopfleet.frameworks.torch.engines.stacked.attention_source import sources_for
from hopfleet.frameworks.torch.session import TorchSession


class Readiness:
    """Whether a worker has begun to compile kernels."""

    begun = False


def begin(session: TorchSession) -> bool:
    """Begin to compile kernels for models like the first one of a worker; return whether that was not done before.

    It returns at once.
    """
    readiness = session.cache.part(Readiness)
    if readiness.begun:
        return False
    readiness.begun = True
    # A stack does without a kernel that cannot be compiled.
    with contextlib.suppress(Exception):
        for source, name in dict.fromkeys(needed(session)):
            _compat.begin_kernel(source, name, session.device)
    return True


def needed(session: TorchSession) -> Iterator[tuple[str, str]]:
    """Yield the sources and the names of kernels that a stack of such models is likely to launch."""
    if any(isinstance(optimizer, _compat.FUSED) for optimizer in session.optimizers):
        yield kernels.SOURCE, "adam"
    if any(
        type(module) is torch.nn.Linear and products.pays(products.ROWS, module.weight.numel())
        for module in session.model.modules()
    ):
        yield products.SOURCE, "turn"
    if any(type(module) is torch.nn.Dropout for module in session.model.modules()):
        yield dropout.SOURCE, "drop"
    width = next(filter(attention_kernel.takes, _head_widths(session.model)), None)
    if width is not None:
        yield from sources_for(width)
    for source in _sources(session.model):
        yield from itertools.product([source], ("forward", "backward"))


def _head_widths(model: torch.nn.Module) -> Iterator[int]:
    """Yield likely widths of heads: modules that attend tell their number of heads, or a width, under some name."""
    for module in model.modules():
        numbers = {name: value for name, value in vars(module).items() if "head" in name and type(value) is int}
        yield from (value for name, value in numbers.items() if name.endswith(("dim", "size")))
        layers = [layer for layer in module.children() if type(layer) is torch.nn.Linear]
        yield from (layer.in_features // value for value in numbers.values() if value > 0 for layer in layers)


def _sources(model: torch.nn.Module) -> Iterator[str]:
    followers = {
        id(layer): linear.activation_of(then)
        for sequence in model.modules()
        if type(sequence) is torch.nn.Sequential
        for (_, layer), (_, then) in itertools.pairwise(_compat.children(sequence))
    }
    for module in model.modules():
        if type(module) is torch.nn.Linear and module.bias is not None:
            activation = linear.ACTIVATIONS.index(followers.get(id(module), ""))
            yield linear.source_for(linear.vector_of(module.out_features), activation)
        elif type(module) is torch.nn.LayerNorm and norm_kernel.takes(width := math.prod(module.normalized_shape)):
            yield norm_kernel.source_for(width)
