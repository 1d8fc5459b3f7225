"""Spilling: one device that is smaller than the model. Blocks lie in the memory of the host and visit the device.

A block comes to the device for its forward pass, again for its backward pass, which repeats the forward pass instead
of keeping activations, and for its update, with its part of the optimizer's state. All arithmetic happens on the
device, so a trial ends with the bits that it has where everything fits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from hopfleet.errors import TaskError
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.capturable import capturable_updates
from hopfleet.frameworks.torch.parallel.strategy import SpreadTrial, Strategy, TeamSteps
from hopfleet.frameworks.torch.parallel.wire import Value

Parameters = list[torch.nn.Parameter]


class _SpillSteps(TeamSteps):
    def __init__(self, trial: SpreadTrial, groups: list[Parameters], counts_there: list[bool]) -> None:
        super().__init__(trial)
        self._groups = groups
        self._counts_there = counts_there

    def result(self) -> Value:
        return super(TeamSteps, self).result()

    @torch.no_grad()
    def _limit_norm(self, most: float) -> torch.Tensor:
        gradients = [p.grad for p in self._trial.model.parameters() if p.grad is not None]
        device = self._trial.device
        total: torch.Tensor = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(g.to(device)) for g in gradients])
        )
        factor = torch.clamp(most / (total + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device))
        return total

    def _step(self) -> None:
        """Update the parameters group by group, each on the device."""
        trial = self._trial
        places = {id(p): number for number, p in enumerate(trial.model.parameters())}
        for parameters in self._groups:
            copies = {id(p): _visitor(p, trial.device) for p in parameters}
            for optimizer, counts_there in zip(trial.optimizers, self._counts_there, strict=True):
                _step_some(optimizer, copies, trial.device, counts_there=counts_there)
            if trial.options.ema is not None:
                averages = [trial.average[places[id(p)]] for p in parameters]
                moved = [average.to(trial.device) for average in averages]
                with torch.no_grad():
                    _compat.foreach_lerp_(moved, list(copies.values()), 1 - trial.options.ema)
                    for average, new in zip(averages, moved, strict=True):
                        average.copy_(new)
            with torch.no_grad():
                for parameter in parameters:
                    if (visitor := copies[id(parameter)]) is not parameter:
                        parameter.copy_(visitor)


class Spill(Strategy):
    """Parameters and optimizer state in the memory of the host, block by block on the device."""

    fewest, most = 1, 1

    def __init__(self) -> None:
        self._groups: list[Parameters] = []
        #: For each optimizer, whether it counts its steps on the device.
        self._counts_there: list[bool] = []

    def check(self, trial: SpreadTrial) -> None:
        super().check(trial)
        seen: dict[int, str] = {}
        for block in self.blocks(trial):
            for name, parameter in block.module.named_parameters():
                if id(parameter) in seen:
                    raise TaskError(
                        f"block {block.name!r} shares its parameter {name!r} with block {seen[id(parameter)]!r}: name "
                        "blocks that share nothing in blocks(self, model)"
                    )
                seen[id(parameter)] = block.name

    def spread(self, trial: SpreadTrial) -> None:
        blocks = [block.module for block in self.blocks(trial) if next(block.module.parameters(), None) is not None]
        spilled = {id(p) for module in blocks for p in module.parameters()}
        rest = [p for p in trial.model.parameters() if id(p) not in spilled]
        self._groups = [*(list(module.parameters()) for module in blocks), *([rest] if rest else [])]
        for parameter in rest:
            parameter.data = parameter.data.to(trial.device)
        for module in trial.model.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, buffer.to(trial.device))
        if trial.options.capture:  # the arithmetic of trials that fit the device
            updates = capturable_updates(trial.optimizers, trial.device)
            self._counts_there = [update is not None for update in updates]
        else:
            self._counts_there = [False] * len(trial.optimizers)
        for module in blocks:
            module.forward = _visiting(module, module.forward, trial.device)

    def steps(self, trial: SpreadTrial) -> TeamSteps:
        return _SpillSteps(trial, self._groups, self._counts_there)


def _visiting(module: torch.nn.Module, forward: Callable[..., Value], device: torch.device) -> Callable[..., Value]:
    """Return the forward pass of a block with copies of its parameters on the device."""

    def visit(
        arguments: tuple[Value, ...], keywords: dict[str, Value], buffers: dict[str, torch.Tensor] | None
    ) -> Value:
        kept = _owned(module)
        theirs = dict(module.named_buffers()) if buffers is not None else {}
        try:
            for owner, name, parameter in kept:
                owner._parameters[name] = parameter.to(device, non_blocking=True)  # type: ignore[assignment]
            for name, buffer in (buffers or {}).items():
                _put_buffer(module, name, buffer)
            return forward(*arguments, **keywords)
        finally:
            for owner, name, parameter in kept:
                owner._parameters[name] = parameter
            for name, buffer in theirs.items():
                _put_buffer(module, name, buffer)

    def visited(*arguments: Value, **keywords: Value) -> Value:
        if not torch.is_grad_enabled():
            return visit(arguments, keywords, None)
        # The forward pass is repeated in the backward pass, from the buffers as they were before, and without a trace.
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        again = False

        def once(*given: Value) -> Value:
            nonlocal again
            buffers, again = ({name: b.clone() for name, b in before.items()} if again else None), True
            return visit(given, keywords, buffers)

        return checkpoint(once, *arguments, use_reentrant=False, preserve_rng_state=True)

    return visited


def _owned(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.nn.Parameter]]:
    return [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]


def _put_buffer(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    module.get_submodule(path)._buffers[last] = value


def _visitor(parameter: torch.nn.Parameter, device: torch.device) -> torch.nn.Parameter:
    """Return a parameter with its gradient on the device: the parameter itself if it is there."""
    if parameter.device == device:
        return parameter
    copy = torch.nn.Parameter(parameter.detach().to(device), requires_grad=parameter.requires_grad)
    copy.grad = None if parameter.grad is None else parameter.grad.to(device)
    return copy


def _step_some(
    optimizer: Optimizer, copies: dict[int, torch.nn.Parameter], device: torch.device, *, counts_there: bool
) -> None:
    """Take a step with some of the parameters, given by their copies on the device, and with their state."""
    whole = [group["params"] for group in optimizer.param_groups]
    mine = [parameter for group in whole for parameter in group if id(parameter) in copies]
    if not mine:
        return
    for parameter in mine:
        if (state := optimizer.state.pop(parameter, None)) is not None:
            optimizer.state[copies[id(parameter)]] = {
                key: value.to(device)
                if torch.is_tensor(value) and (value.shape == parameter.shape if value.ndim else counts_there)
                else value
                for key, value in state.items()
            }
    try:
        for group in optimizer.param_groups:
            group["params"] = [copies[id(p)] for p in group["params"] if id(p) in copies]
        optimizer.step()
    finally:
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters
    for parameter in mine:
        copy = copies[id(parameter)]
        if copy is not parameter and copy in optimizer.state:
            state = optimizer.state.pop(copy)
            optimizer.state[parameter] = {
                key: value.to(parameter.device) if torch.is_tensor(value) and (value.ndim or counts_there) else value
                for key, value in state.items()
            }
