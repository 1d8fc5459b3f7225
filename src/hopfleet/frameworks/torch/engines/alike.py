"""What trials that are computed alike have in common; the loss of a task as a module that is passed all its inputs."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType

import torch

from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch.trial import Hooks

PLAIN = (bool, int, float, str, type(None), torch.dtype)
"""Types of attributes that a module may compute with, and that can be compared."""

FUNCTIONS = (FunctionType, BuiltinFunctionType)
"""Types of attributes, such as an activation, that can be compared by name."""


class Loss(torch.nn.Module):
    """The loss of a task as a module, so that everything it reads can be passed in."""

    def __init__(self, hooks: Hooks, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self._hooks = [hooks]  # in a list, since a task may itself be a module

    def forward(self, batch: Batch, config: Config) -> torch.Tensor:
        return self._hooks[0].with_config(config).loss(self.model, batch)


def traits(module: torch.nn.Module) -> tuple[object, ...]:
    """Return what a module may compute with beside its tensors. Dropout has a rate for each member."""
    if isinstance(module, torch.nn.Dropout):
        return ()
    values = [(name, value) for name, value in vars(module).items() if not name.startswith("_") and name != "training"]
    functions = [(name, value.__module__, value.__qualname__) for name, value in values if isinstance(value, FUNCTIONS)]
    return module.extra_repr(), [(name, value) for name, value in values if _is_plain(value)], functions


def _is_plain(value: object) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple | list) and all(map(_is_plain, value)))
