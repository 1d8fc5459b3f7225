"""Updates without the Python of optimizers, for captured gradients where settings change with each batch.

An optimizer of torch looks through all its weights before it calls the one or two operations that update them, which
takes several times as long as these. Here the weights are looked up once in a unit, and the operations are those that
the optimizer calls, with the settings that its groups have at the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.capturable import decoupled, move_counts
from hopfleet.frameworks.torch.engines.capture import copies, kind_of, restore
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.comparison import same_bits
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.trial import ParameterGroup

STATES = {
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.SGD: ("momentum_buffer",),
}
"""What optimizers keep for each weight. Classes derived from them may do something else."""


class Group(NamedTuple):
    """A group of an optimizer: the weights that have gradients, those that have none, and what is kept for the former.

    There is a list for each name in ``STATES``.
    """

    settings: ParameterGroup
    weights: list[torch.Tensor]
    others: list[torch.Tensor]
    states: list[list[torch.Tensor]]


class DirectUpdates:
    """The updates of a trial in one unit, once its gradients are captured and its optimizers have made an update.

    Call it in place of an optimizer's step. It returns whether it has made the update; otherwise, the optimizer must.
    The first update of each kind of trial is made both ways and compared.
    """

    def __init__(self, session: TorchSession) -> None:
        self._session = session
        self._verdicts = session.cache.part(GraphCache).verdicts
        self._kind = kind_of(session)
        self._known: dict[int, list[Group] | None] = {}

    def __call__(self, optimizer: Optimizer) -> bool:
        session = self._session
        number = session.optimizers.index(optimizer)
        update, kind = session.updates[number], (DirectUpdates, self._kind, number)
        if self._verdicts.get(kind) or _compat.has_step_hooks(optimizer, update):
            return False
        if id(optimizer) not in self._known:
            if update is not None and update.active:
                move_counts(optimizer)
            self._known[id(optimizer)] = _groups(optimizer, fused=update is not None and update.fuses)
        groups = self._known[id(optimizer)]
        gradients = None if groups is None else _gradients(groups)
        if groups is None or gradients is None:
            return False
        rates = [group.settings["lr"] for group in groups] if update is None else update.current()
        if kind not in self._verdicts:
            before = copies(session)
            _update(optimizer, groups, gradients, rates)
            found = copies(session)
            restore(session, before)
            optimizer.step()
            alike = all(map(same_bits, found, copies(session)))
            self._verdicts[kind] = "" if alike else "updates differ from those of the optimizer"
        else:
            _update(optimizer, groups, gradients, rates)
        return True


def _groups(optimizer: Optimizer, *, fused: bool) -> list[Group] | None:
    """Return the groups of an optimizer; None if its updates are not those of a known fused optimizer."""
    found: list[Group] = []
    for settings in optimizer.param_groups:
        names = STATES.get(type(optimizer), ())
        weights = [weight for weight in settings["params"] if weight.grad is not None]
        others = [weight for weight in settings["params"] if weight.grad is None]
        kept = [optimizer.state.get(weight, {}) for weight in weights]
        other = settings.get("amsgrad") or settings.get("differentiable")
        if not names or other or not (fused or settings.get("fused")):
            return None
        states = [[state.get(name) for state in kept] for name in names]
        tensors = [*weights, *(value for some in states for value in some)]
        if not all(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in tensors):
            return None
        if len({value.device for value in tensors}) > 1:
            return None
        found.append(Group(settings, weights, others, states))
    return found


def _gradients(groups: Sequence[Group]) -> list[list[torch.Tensor]] | None:
    """Return the gradients of each group; None if other weights have some now, or a setting became a tensor."""
    found = [[weight.grad for weight in group.weights] for group in groups]
    if any(gradient is None or gradient.layout is not torch.strided for some in found for gradient in some):
        return None
    if any(weight.grad is not None for group in groups for weight in group.others):
        return None
    given = [group.settings for group in groups]
    numbers = [value for settings in given for value in (*settings.get("betas", ()), settings.get("momentum"))]
    if any(isinstance(value, torch.Tensor) for value in numbers):
        return None
    return found  # type: ignore[return-value]


def _update(
    optimizer: Optimizer, groups: Sequence[Group], gradients: Sequence[list[torch.Tensor]], rates: Sequence[object]
) -> None:
    """Make the update of each group, with its learning rate."""
    with torch.no_grad():
        for group, some, rate in zip(groups, gradients, rates, strict=True):
            if some:
                fused_step(optimizer, group, some, rate)
    _compat.count_as_stepped(optimizer)


def fused_step(optimizer: Optimizer, group: Group, gradients: list[torch.Tensor], rate: object) -> None:
    """Update the weights of a group with the operations that a fused optimizer calls."""
    of = group.settings
    common = {"lr": rate, "weight_decay": of["weight_decay"], "maximize": of["maximize"]}
    if isinstance(optimizer, torch.optim.SGD):
        more = {name: of[name] for name in ("momentum", "dampening", "nesterov")}
        _compat.fused_momentum()(group.weights, gradients, *group.states, is_first_step=False, **common, **more)
        return
    counts, first, second = group.states
    beta1, beta2 = of["betas"]
    _compat.foreach_add_(counts, 1)
    update = _compat.fused_update(decoupled=decoupled(optimizer, of))
    means, settings = (first, second, list[torch.Tensor]()), {"beta1": beta1, "beta2": beta2, "eps": of["eps"]}
    update(group.weights, gradients, *means, counts, amsgrad=False, **common, **settings)
