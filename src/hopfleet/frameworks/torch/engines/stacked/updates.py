"""The updates of optimizers for all members of a stack at once: tables have a row for each member.

Each update computes what torch's optimizer of that name computes, with settings that may differ between members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from hopfleet.frameworks.torch.trial import ParameterGroup

Table = torch.Tensor
"""A tensor with a row for each member."""


class Flags(NamedTuple):
    """Settings that are the same for all members, because they change which operations are computed."""

    nesterov: bool
    decoupled: bool


Update = Callable[[Table, Table, dict[str, Table], Mapping[str, Table], Table, Flags], None]
"""Makes one step, given weights, gradients, state and settings of a group, and the number of the step."""


def _sgd(
    weights: Table, grads: Table, state: dict[str, Table], of: Mapping[str, Table], steps: Table, flags: Flags
) -> None:
    grads = grads + of["weight_decay"] * weights
    if "momentum_buffer" in state:
        momentum = state["momentum_buffer"]
        # The first gradient enters undampened.
        kept = torch.where(steps > 1, 1 - of["dampening"], torch.ones_like(steps))
        momentum.mul_(of["momentum"]).add_(kept * grads)
        grads = grads + of["momentum"] * momentum if flags.nesterov else momentum
    weights.sub_(of["lr"] * grads)


def _adam(
    weights: Table, grads: Table, state: dict[str, Table], of: Mapping[str, Table], steps: Table, flags: Flags
) -> None:
    if flags.decoupled:
        weights.mul_(1 - of["lr"] * of["weight_decay"])
    else:
        grads = grads + of["weight_decay"] * weights
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.lerp_(grads, (1 - of["beta1"]).expand_as(grads))
    second.mul_(of["beta2"]).add_((1 - of["beta2"]) * grads * grads)
    size = second
    if "max_exp_avg_sq" in state:
        size = torch.maximum(state["max_exp_avg_sq"], second, out=state["max_exp_avg_sq"])
    scale = of["lr"] / (1 - of["beta1"] ** steps)
    root = (1 - of["beta2"] ** steps) ** 0.5
    weights.sub_(scale * first / (size.sqrt() / root + of["eps"]))


def _rmsprop(
    weights: Table, grads: Table, state: dict[str, Table], of: Mapping[str, Table], steps: Table, flags: Flags
) -> None:
    grads = grads + of["weight_decay"] * weights
    square = state["square_avg"]
    square.mul_(of["alpha"]).add_((1 - of["alpha"]) * grads * grads)
    spread = square
    if "grad_avg" in state:
        state["grad_avg"].lerp_(grads, (1 - of["alpha"]).expand_as(grads))
        spread = square - state["grad_avg"] ** 2
    step = grads / (spread.sqrt() + of["eps"])
    if "momentum_buffer" in state:
        step = state["momentum_buffer"].mul_(of["momentum"]).add_(step)
    weights.sub_(of["lr"] * step)


def _adagrad(
    weights: Table, grads: Table, state: dict[str, Table], of: Mapping[str, Table], steps: Table, flags: Flags
) -> None:
    grads = grads + of["weight_decay"] * weights
    state["sum"].add_(grads * grads)
    weights.sub_(of["lr"] / (1 + (steps - 1) * of["lr_decay"]) * grads / (state["sum"].sqrt() + of["eps"]))


UPDATES: Mapping[type[Optimizer], Update] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
}

ALIKE = ("nesterov", "amsgrad", "centered", "maximize", "decoupled_weight_decay")
"""Settings that members of one kind share."""


def state_names(optimizer: Optimizer, group: ParameterGroup) -> list[str]:
    """Return the names of the state that an optimizer keeps for each weight."""
    match optimizer:
        case torch.optim.SGD():
            return ["momentum_buffer"] if group["momentum"] else []
        case torch.optim.Adam():
            return ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        case torch.optim.RMSprop():
            names = ["square_avg", *(["momentum_buffer"] if group["momentum"] else [])]
            return [*names, *(["grad_avg"] if group["centered"] else [])]
        case _:
            return ["sum"]


def settings_of(optimizer: Optimizer) -> list[dict[str, float]]:
    """Return the numbers among the settings of each group, without those that a schedule keeps beside them."""
    return [
        _settings({name: group[name] for name in optimizer.defaults if name in group})
        for group in optimizer.param_groups
    ]


def _settings(group: ParameterGroup) -> dict[str, float]:
    numbers = {name: float(value) for name, value in group.items() if _is_number(value)}
    if "betas" in group:
        numbers["beta1"], numbers["beta2"] = map(float, group["betas"])
    return numbers


def _is_number(value: object) -> bool:
    return (isinstance(value, torch.Tensor) and not value.ndim) or type(value) in (int, float)
