"""The blocks of a model: the parts that strategies place, shard or offload one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from hopfleet.errors import TaskError


class Block(NamedTuple):
    """A part of a model, with its name in the model."""

    name: str
    module: nn.Module


def find(model: nn.Module, named: Callable[[nn.Module], Sequence[nn.Module] | None] | None = None) -> list[Block]:
    """Return the blocks that ``named`` names, or else those found in the model, in the order of the model.

    A model that is a ``Sequential`` has its children as blocks; any other model those of its largest list of modules,
    e.g. the layers of a transformer; a model without a list its own children.
    """
    names = {id(module): name for name, module in model.named_modules()}
    if named is not None and (given := named(model)) is not None:
        for module in given:
            if id(module) not in names:
                raise TaskError(f"blocks() returned a {type(module).__name__} that is not a part of the model")
        return [Block(names[id(module)], module) for module in given]
    container = model if isinstance(model, nn.Sequential) else _largest(model)
    found = [Block(names[id(child)], child) for child in container.children()]
    return found or [Block("", model)]


def weight(module: nn.Module) -> int:
    """Return the number of bytes of a module's parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _largest(model: nn.Module) -> nn.Module:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    return max(lists, key=lambda module: (weight(module), len(list(module.children()))), default=model)
