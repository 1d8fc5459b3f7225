"""Updates that a CUDA graph can hold, for optimizers as people write them.

A captured update must read its learning rate from the device and count its steps there. The optimizers of torch can do
both, though not with their default settings. On CUDA, Hopfleet changes the settings during each update and restores
them afterwards:

* Adam, AdamW and SGD are fused, so that one kernel updates many weights;
* the other optimizers that torch can capture are ``capturable``;
* the learning rate is a tensor on the device with the value that ``param_groups`` has on the host.

Between updates, ``param_groups`` and saved versions contain what the constructor and the schedules put there. The same
arithmetic applies to trials that train alone or together, in captured steps or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch.optim import Optimizer

from hopfleet.errors import TaskError
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.trial import ParameterGroup
from hopfleet.phrases import shown

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers whose update can be a few kernels for all weights. Classes derived from them may do something else."""

CAPTURABLE = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax),
    *(torch.optim.Adadelta, torch.optim.ASGD, torch.optim.Rprop, torch.optim.RMSprop),
)
"""Optimizers with a setting that makes their update fit for a CUDA graph."""

NARROW = (torch.float32, torch.bfloat16, torch.float16)
"""Types of weights for which a learning rate in 32 bits is precise enough."""

Kind = TypeVar("Kind", bound=Optimizer)


def capturable(optimizer: Kind) -> Kind:
    """Give an optimizer the arithmetic that it has in a trial on CUDA, and return it.

    For plain training loops that are compared with a trial to the bit. An optimizer that Hopfleet leaves as it is
    (on other devices, of another class, with tensors as learning rates) stays as it is.
    """
    if not isinstance(optimizer, Optimizer):
        raise TaskError(f"capturable({shown(optimizer)}): must be an optimizer of torch.optim")
    if (changes := _changes(optimizer)) is not None:
        CapturableUpdate(optimizer, changes)
    return optimizer


def capturable_updates(
    optimizers: Sequence[Optimizer], device: torch.device | None = None
) -> list[CapturableUpdate | None]:
    """Make the updates of optimizers fit for a CUDA graph; return None for each optimizer that stays as it is.

    ``device`` is where the updates happen, if not where the parameters are now.
    """
    found = [(optimizer, _changes(optimizer, device)) for optimizer in optimizers]
    return [None if changes is None else CapturableUpdate(optimizer, changes, device) for optimizer, changes in found]


def upload(updates: Iterable[CapturableUpdate]) -> None:
    """Bring the learning rates on the device up to date, with one transfer for all of them."""
    stale = [pair for update in updates for pair in update.stale()]
    if stale:
        values = sent([value for _, value in stale], torch.float32, stale[0][0].device)
        _compat.foreach_copy_([rate for rate, _ in stale], list(values.unbind()))


def sent(numbers: Sequence[object], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return numbers as a tensor on a device, without waiting for work that the device has yet to do."""
    values = torch.tensor(numbers, dtype=dtype)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


class CapturableUpdate:
    """The settings of one optimizer during its updates, put in place and removed by hooks around each update."""

    def __init__(self, optimizer: Optimizer, changes: Mapping[str, bool], device: torch.device | None = None) -> None:
        self._groups = optimizer.param_groups
        self._device = device
        self._changes = changes
        #: The learning rate of each group on the device, and its last value.
        self._rates: list[torch.Tensor] = []
        self._values: list[float] = []
        self._kept: list[ParameterGroup] = []
        self._checked = False
        if changes.get("fused"):
            _compat.supports_scaling(optimizer)
        self._hooks = (
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_post_hook(self._end),
        )
        self.active = True

    def stale(self) -> list[tuple[torch.Tensor, float]]:
        """Return the learning rates on the device that have other values on the host; count them as up to date."""
        for group in self._groups[len(self._rates) :]:
            self._rates.append(torch.zeros((), device=self._device or group["params"][0].device))
            self._values.append(0.0)
        found: list[tuple[torch.Tensor, float]] = []
        for index, group in enumerate(self._groups):
            value = group["lr"]
            if value != self._values[index] and not torch.is_tensor(value):
                self._values[index] = value
                found.append((self._rates[index], value))
        return found

    @property
    def fuses(self) -> bool:
        """Whether the update is a few kernels for all weights."""
        return self.active and self._changes.get("fused", False)

    def current(self) -> list[torch.Tensor | float]:
        """Return the learning rate of each group, up to date, as the update reads it."""
        for rate, value in self.stale():
            rate.fill_(value)
        given = zip(self._groups, self._rates, strict=True)
        return [group["lr"] if torch.is_tensor(group["lr"]) else rate for group, rate in given]

    def holds(self, group: ParameterGroup) -> bool:
        """Whether captures read the learning rate of a group from the device."""
        return self.active and not torch.is_tensor(group["lr"])

    def _begin(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if not self._checked:
            self._checked = True
            if any(p.grad is not None and p.grad.is_sparse for group in self._groups for p in group["params"]):
                self._withdraw()  # fused and capturable updates need dense gradients
                return
        move_counts(optimizer)
        rates = self.current()
        self._kept = [{name: group[name] for name in ("lr", *self._changes)} for group in self._groups]
        for group, rate in zip(self._groups, rates, strict=True):
            group.update(self._changes, lr=rate)

    def _end(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        for group, kept in zip(self._groups, self._kept, strict=False):
            group.update(kept)
        self._kept = []

    def _withdraw(self) -> None:
        self.active = False
        for hook in self._hooks:
            hook.remove()


def decoupled(optimizer: Optimizer, group: ParameterGroup) -> bool:
    """Whether an update of Adam shrinks weights by themselves, and not by way of their gradients."""
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW)))


def _changes(optimizer: Optimizer, device: torch.device | None = None) -> dict[str, bool] | None:
    """Return the settings that an optimizer needs during captured updates; None if the optimizer stays as it is."""
    kind, groups = type(optimizer), optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not parameters or not all((device or p.device).type == "cuda" and p.dtype in NARROW for p in parameters):
        return None
    if any(group.get("differentiable") for group in groups):
        return None
    given = [(group.get("foreach"), group.get("fused")) for group in groups]
    flags = {"capturable": True} if kind in CAPTURABLE else {}
    if kind in FUSED and all(fused or (fused is None and foreach is None) for foreach, fused in given):
        return {**flags, "fused": True}
    return flags or None


def move_counts(optimizer: Optimizer) -> None:
    """Move numbers that the optimizer counts on the host to the device, e.g. after a version of a CPU was loaded."""
    for parameter, state in optimizer.state.items():
        there = {name: value for name, value in state.items() if torch.is_tensor(value) and not value.ndim}
        if all(value.device == parameter.device for value in there.values()):
            return  # they are all in one place
        state.update({name: value.to(parameter.device) for name, value in there.items()})
