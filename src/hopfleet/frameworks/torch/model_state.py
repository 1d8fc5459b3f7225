"""The state of a model in versions: the state dict and the hidden buffers, with references to frozen tensors."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.torch import shared
from hopfleet.frameworks.torch.shared import SharedTensor, SharedTensors
from hopfleet.frameworks.torch.snapshot import identity
from hopfleet.frameworks.torch.trial import LiveTrial

Parts = dict[str, dict[str, Tree]]
"""The two parts of a model's state: ``state``, the state dict, and ``hidden``, the buffers that it leaves out."""


class Reference(NamedTuple):
    """A shared tensor, as the file of a version refers to it."""

    digest: str
    version: Path

    def read(self) -> torch.Tensor:
        """Return the tensor from its file."""
        return shared.read(self.version, self.digest)


def model_state(model: torch.nn.Module, frozen: Mapping[Hashable, SharedTensor]) -> Parts:
    """Return the state of a model. ``frozen`` has its shared tensors, which are not taken apart."""
    state = dict(model.state_dict())
    hidden = {name: buffer for name, buffer in model.named_buffers() if name not in state}

    def part(value: Tree) -> Tree:
        return frozen.get(identity(value), value) if frozen and torch.is_tensor(value) else value

    return {
        "state": {name: part(value) for name, value in state.items()},
        "hidden": {name: part(value) for name, value in hidden.items()},
    }


def load_model(trial: LiveTrial, saved: Parts) -> None:
    """Copy saved values into the tensors of a trial's model. Raises RuntimeError if they do not fit.

    Frozen tensors stay as they are if their content is the saved one. Others leave the shared tensors, and come back
    to them if the version refers to a shared tensor.
    """
    values, kept, references = _missing(trial, saved)
    state = {
        name: copy.deepcopy(value) if name.endswith("_extra_state") else value
        for name, value in values["state"].items()
    }
    found = trial.model.load_state_dict(state, strict=not kept)
    if missing := set(found.missing_keys) - kept | set(found.unexpected_keys):
        raise RuntimeError(f"their state dicts differ in {', '.join(sorted(missing))}")
    tensors = _tensors(trial.model)
    with torch.no_grad():
        for name, value in values["hidden"].items():
            tensors[name].copy_(value)
    for name in references:
        tensor = tensors.get(name)
        if tensor is not None and not tensor.requires_grad:
            trial.shared.append(trial.cache.part(SharedTensors).share(name, tensor, tensor.detach()))


def _missing(trial: LiveTrial, saved: Parts) -> tuple[Parts, set[str], list[str]]:
    """Return the values that the model does not have yet, the names of the others, and those that were references."""
    present = model_state(trial.model, {identity(one.tensor): one for one in trial.shared})
    kept: set[str] = set()
    references: list[str] = []
    values: Parts = {"state": {}, "hidden": {}}
    for kind, some in values.items():
        for name, value in saved[kind].items():
            mine = present[kind].get(name)
            if isinstance(mine, SharedTensor):
                if _has(mine, value):
                    kept.add(name)
                    continue
                _leave(trial, mine)
            if isinstance(value, Reference):
                references.append(name)
                value = value.read()
            some[name] = value
    return values, kept, references


def _has(mine: SharedTensor, value: torch.Tensor | Reference) -> bool:
    """Whether a shared tensor has a saved content."""
    if isinstance(value, Reference):
        return mine.digest == value.digest
    alike = (value.shape, value.dtype) == (mine.tensor.shape, mine.tensor.dtype)
    return alike and shared.same_bits(mine.tensor, value)


def _leave(trial: LiveTrial, mine: SharedTensor) -> None:
    """Give a trial a copy of its own of a shared tensor."""
    for tensor in _tensors(trial.model).values():
        if identity(tensor) == identity(mine.tensor):
            tensor.data = mine.tensor.clone()
    trial.shared = [one for one in trial.shared if one is not mine]


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a model; those with several names under each of them."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
