"""The outcome of a task's ``build``: sorted into model, optimizers, schedules and scaler, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.tracked_config import TrackedConfig


class Built(NamedTuple):
    """The parts that ``build`` returned."""

    model: torch.nn.Module
    optimizers: list[Optimizer]
    schedulers: list[LRScheduler]
    scaler: torch.amp.GradScaler | None
    #: Whether ``build`` returned an optimizer rather than a list of optimizers.
    single: bool


def sorted_out(built: object) -> Built:
    """Sort the parts that ``build`` returned. Raises TaskError for a part that has no place."""
    parts = list(built) if isinstance(built, (tuple, list)) else [built]
    if not parts or not isinstance(parts[0], torch.nn.Module):
        raise TaskError(
            f"build() returned {_named(built)}: return model, optimizer[, lr_scheduler[, scaler]], "
            "the model being a torch.nn.Module"
        )
    optimizers: list[Optimizer] = []
    schedulers: list[LRScheduler] = []
    scaler: torch.amp.GradScaler | None = None
    for part in parts[1:]:
        for piece in part if isinstance(part, (tuple, list)) else [part]:
            if isinstance(piece, Optimizer):
                optimizers.append(piece)
            elif isinstance(piece, LRScheduler):
                schedulers.append(piece)
            elif isinstance(piece, torch.amp.GradScaler):
                scaler = piece
            elif piece is not None:
                raise TaskError(
                    f"build() returned {_named(piece)} after the model: expected an optimizer, "
                    "an lr_scheduler or a GradScaler"
                )
    for scheduler in schedulers:
        if all(scheduler.optimizer is not optimizer for optimizer in optimizers):
            raise TaskError(
                f"build() returned a {type(scheduler).__name__} of another optimizer: make the schedule for an "
                "optimizer that build() returns too"
            )
    listed = any(isinstance(part, (tuple, list)) and any(piece in part for piece in optimizers) for part in parts[1:])
    return Built(parts[0], optimizers, schedulers, scaler, single=len(optimizers) < 2 and not listed)


def _named(part: object) -> str:
    """Return a part that ``build`` returned, for a message."""
    if isinstance(part, type):
        return f"the class {part.__name__}, not an object made by {part.__name__}(...)"
    if isinstance(part, (tuple, list)):
        return f"({', '.join(type(piece).__name__ for piece in part)})"
    return "None" if part is None else f"a value of type {type(part).__name__}"


def check_config(given: TrackedConfig, config: Config) -> None:
    """Raise TaskError if ``build`` changed a value of its configuration: tables would show a value not trained with."""
    if found := given.changed(config):
        key, before, after = found
        raise TaskError(
            f"build() changed config[{key!r}] from {before!r} to {after!r}, but tables show {before!r}: compute the "
            f"value in a variable of its own, or in the space with hop.sample_from"
        )


def move_state(optimizers: Sequence[Optimizer]) -> None:
    """Move state that an optimizer prepared for each parameter in ``build`` to the device of the parameter."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if torch.is_tensor(value) and name != "step" and value.shape == parameter.shape:
                    state[name] = value.to(parameter.device)


def check_parameters(model: torch.nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise TaskError if an optimizer holds parameters that are not the model's own, after its move to a device."""
    known = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(id(parameter) not in known for parameter in group["params"]):
                raise TaskError("build() returned an optimizer with parameters that are not the model's own")
