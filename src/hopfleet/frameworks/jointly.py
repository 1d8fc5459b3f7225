"""One backward pass and one update for many small trials: what is done for each of them, called once for all.

An optimizer on the CPU calls a handful of small operations for each of its tensors, and with small models calling them
takes longer than what they do. Here lists of tensors, those of all members, go through the same operations in the same
order, so every member has the bits that its own optimizer gives it. That is not taken on trust: the first update of
every kind of member is made both ways and compared.

Gradients of several losses can be asked for at once, too. Nothing ties the members together there either: what belongs
to one of them is done in the order that it has alone. But nobody can say whose turn it is, so a member must neither
draw random numbers meanwhile nor look at the task's attributes.

Large models gain nothing, and their gradients would take memory all at once. They step one after another.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as optim

from hopfleet.errors import describe
from hopfleet.frameworks.base import Entangled
from hopfleet.frameworks.steps import is_small
from hopfleet.frameworks.torch import TorchSession

APART = "their gradients cannot be computed at once"

KINDS = (torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose updates can be made jointly. Those derived from them may do something else."""

SPECIAL = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
"""Settings with which an optimizer calls other operations."""

_PROVEN: set[Hashable] = set()
"""Kinds of members whose updates have come out the same both ways."""


class Part(NamedTuple):
    """A group of weights of one optimizer, and where they are in the lists of all weights."""

    group: Mapping[str, Any]
    place: slice
    before: float  #: steps made before this unit
    decoupled: bool


def may_join(session: TorchSession) -> bool:
    """Whether a trial is of the kind whose updates are made together with others."""
    return len(session.optimizers) == 1 and type(session.optimizers[0]) in KINDS and is_small(session.model)


def admits(session: TorchSession) -> bool:
    """Whether the updates of a trial, which has made some already, can be made together with others."""
    if session.device.type != "cpu" or not session.habits.plain or session.scaler is not None:
        return False
    if not may_join(session):
        return False
    optimizer = session.optimizers[0]
    watched = (
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
        *(optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks),
    )
    if any(watched) or not getattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched", "step" not in vars(optimizer)):
        return False
    return all(_plain(optimizer, group) for group in optimizer.param_groups)


def _plain(optimizer: Any, group: Mapping[str, Any]) -> bool:
    numbers = (group["lr"], group["eps"], group["weight_decay"], *group["betas"])
    if any(group.get(name) for name in SPECIAL) or not all(type(number) in (int, float) for number in numbers):
        return False
    states = [optimizer.state.get(parameter) for parameter in group["params"]]
    if not all(states) or len({float(state["step"]) for state in states}) != 1:
        return False
    return not any(parameter.is_complex() for parameter in group["params"])


class Joint:
    """The optimizers of some trials as one, during one unit."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self.sessions = list(sessions)
        self._parts: list[Part] = []
        self._weights: list[Any] = []
        self._counts: list[Any] = []
        self._first: list[Any] = []
        self._second: list[Any] = []
        for session in self.sessions:
            (optimizer,) = session.optimizers
            for group in optimizer.param_groups:
                start = len(self._weights)
                states = [optimizer.state[parameter] for parameter in group["params"]]
                self._weights += group["params"]
                self._counts += [state["step"] for state in states]
                self._first += [state["exp_avg"] for state in states]
                self._second += [state["exp_avg_sq"] for state in states]
                decoupled = isinstance(optimizer, torch.optim.AdamW)
                before = float(states[0]["step"])
                self._parts.append(Part(group, slice(start, len(self._weights)), before, decoupled))
        self._made = 0
        self._proven = all(self._kind(part) in _PROVEN for part in self._parts)

    def backward(self, losses: Sequence[Any]) -> None:
        """Compute the gradients of all members, who have computed their losses."""
        self.sessions[0].task.be_nobodys()
        try:
            torch.autograd.backward(losses)
        except Exception as error:
            raise Entangled(f"{APART} ({describe(error)})") from error

    def step(self) -> bool:
        """Make an update. If that cannot be done with the bits of each alone, let each do its own; then it is False."""
        done = self._step()
        self.forget_gradients()
        return done

    def forget_gradients(self) -> None:
        """What optimizers do before each step."""
        for weight in self._weights:
            weight.grad = None

    def _step(self) -> bool:
        grads = [weight.grad for weight in self._weights]
        whole = all(grad is not None and not grad.is_sparse for grad in grads)
        if whole and self._proven:
            self._update(grads)
            return True
        self.settle()
        if not whole:
            self._each()
            return False
        # Each by itself, so that the copies are those of one.
        same = [type(self)([session])._prove() for session in self.sessions]
        self._parts = [part._replace(before=part.before + 1) for part in self._parts]
        self._proven = all(same)
        return self._proven

    def _prove(self) -> bool:
        """Make an update in both ways; returns whether they are the same. That of the optimizers holds."""
        grads = [weight.grad for weight in self._weights]
        before = self._copies()
        self._each()
        expected = self._copies()
        self._become(before)
        self._update(grads)
        if all(map(_same, self._tensors(), expected)):
            _PROVEN.update(map(self._kind, self._parts))
            return True
        self._become(expected)
        return False

    def settle(self) -> None:
        """Let the optimizers know how many steps they have made."""
        if self._made:
            torch._foreach_add_(self._counts, self._made)
        self._parts = [part._replace(before=part.before + self._made) for part in self._parts]
        self._made = 0

    @torch.no_grad()
    def _update(self, grads: list[Any]) -> None:
        """What torch's own loop does for each weight, in its order."""
        self._made += 1
        roots: list[float] = []
        sizes: list[float] = []
        kept: list[float] = []
        news: list[float] = []
        squares: list[float] = []
        floors: list[float] = []
        for group, place, before, decoupled in self._parts:
            count, (beta1, beta2) = place.stop - place.start, group["betas"]
            lr, decay, step = group["lr"], group["weight_decay"], before + self._made
            if decay and decoupled:
                torch._foreach_mul_(self._weights[place], 1 - lr * decay)
            elif decay:
                grads[place] = torch._foreach_add(grads[place], self._weights[place], alpha=decay)
            news += [1 - beta1] * count
            kept += [beta2] * count
            squares += [1 - beta2] * count
            roots += [(1 - beta2**step) ** 0.5] * count
            sizes += [-(lr / (1 - beta1**step))] * count
            floors += [group["eps"]] * count
        torch._foreach_lerp_(self._first, grads, news)
        torch._foreach_mul_(self._second, kept)
        torch._foreach_addcmul_(self._second, grads, grads, squares)
        spread = torch._foreach_sqrt(self._second)
        torch._foreach_div_(spread, roots)
        torch._foreach_add_(spread, floors)
        torch._foreach_addcdiv_(self._weights, self._first, spread, sizes)

    def _kind(self, part: Part) -> Hashable:
        """What must be alike for an update to be made alike."""
        weights = self._weights[part.place]
        return (*((w.shape, w.dtype, w.stride()) for w in weights), bool(part.group["weight_decay"]), part.decoupled)

    def _each(self) -> None:
        for session in self.sessions:
            session.take_over()
            session.optimizers[0].step()

    def _tensors(self) -> list[Any]:
        return [*(weight.data for weight in self._weights), *self._first, *self._second]

    def _copies(self) -> list[Any]:
        return [tensor.clone() for tensor in self._tensors()]

    def _become(self, values: Sequence[Any]) -> None:
        torch._foreach_copy_(self._tensors(), list(values))


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors have the same bits."""
    return bool(torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))
