"""One backward pass and one update for many small trials: what is done for each of them, called once for all.

An optimizer on the CPU calls a handful of small operations for each of its tensors, and with small models calling them
takes longer than what they do. Here what all members' optimizers have gathered lies in one long row, and so do their
gradients, which go through the same operations in the same order, so every member has the bits that its own optimizer
gives it. That is not taken on trust: the first update of every make-up of members is made both ways and compared.

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
from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.torch.steps import is_small
from hopfleet.frameworks.torch.task import TorchSession

APART = "their gradients cannot be computed at once"

KINDS = (torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose updates can be made jointly. Those derived from them may do something else."""

SPECIAL = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
"""Settings with which an optimizer calls other operations."""

_PROVEN: dict[Hashable, set[tuple[int, ...]]] = {}
"""Kinds of members whose updates have come out the same both ways, and into which spans they were cut then."""


class Part(NamedTuple):
    """A group of weights of one optimizer, and where they are in the lists of all weights and in the long rows."""

    group: Mapping[str, Any]
    place: slice
    columns: slice
    before: float  #: steps made before this unit
    decoupled: bool


class Span(NamedTuple):
    """Parts that lie side by side and have their settings in common."""

    columns: slice
    beta1: float
    beta2: float
    eps: float
    step: float


def may_join(session: TorchSession) -> bool:
    """Whether a trial is of the kind whose updates are made together with others."""
    return len(session.optimizers) == 1 and type(session.optimizers[0]) in KINDS and is_small(session.model)


def admits(session: TorchSession) -> bool:
    """Whether the updates of a trial, which has made some already, can be made together with others."""
    if session.device.type != "cpu" or not session.options.plain or session.scaler is not None:
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
    tensors = [*group["params"], *(state[name] for state in states for name in ("exp_avg", "exp_avg_sq"))]
    return all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors)


def _settings(optimizer: Any, group: Mapping[str, Any]) -> tuple[float, ...]:
    """What spans have in common."""
    return (*group["betas"], group["eps"], float(optimizer.state[group["params"][0]]["step"]))


class Joint:
    """The optimizers of some trials as one, during one unit."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self.sessions = list(sessions)
        self._aboard = frozenset(map(id, self.sessions))
        self._parts: list[Part] = []
        self._weights: list[Any] = []
        self._states: list[dict[str, Any]] = []
        width = 0
        optimizers = [session.optimizers[0] for session in self.sessions]
        groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
        # Those with the same settings side by side.
        for optimizer, group in sorted(groups, key=lambda pair: _settings(*pair)):
            first, start = len(self._weights), width
            self._weights += group["params"]
            self._states += [optimizer.state[parameter] for parameter in group["params"]]
            width += sum(parameter.numel() for parameter in group["params"])
            decoupled = isinstance(optimizer, torch.optim.AdamW)
            place, columns = slice(first, len(self._weights)), slice(start, width)
            self._parts.append(Part(group, place, columns, float(self._states[first]["step"]), decoupled))
        self._counts = [state["step"] for state in self._states]
        self._first, self._firsts = self._laid_out("exp_avg")
        self._second, self._seconds = self._laid_out("exp_avg_sq")
        self._spread = torch.empty_like(self._second)
        self._spreads = self._views(self._spread)
        self._made = 0
        self._proven = _PROVEN.setdefault(tuple(map(self._kind, self._parts)), set())

    def __contains__(self, session: TorchSession) -> bool:
        return id(session) in self._aboard

    def _laid_out(self, name: str) -> tuple[Any, list[Any]]:
        """Put what optimizers have gathered into one row; returns it, and the part of each weight."""
        row = torch.cat([state[name].reshape(-1) for state in self._states])
        views = self._views(row)
        for state, view in zip(self._states, views, strict=True):
            state[name] = view
        return row, views

    def _views(self, row: Any) -> list[Any]:
        pieces = row.split([weight.numel() for weight in self._weights])
        return [piece.view(weight.shape) for piece, weight in zip(pieces, self._weights, strict=True)]

    def backward(self, losses: Sequence[Any]) -> None:
        """Compute the gradients of all members, who have computed their losses."""
        self.sessions[0].task.be_nobodys()
        try:
            torch.autograd.backward(losses)
        except Exception as error:
            raise IsolationError(f"{APART} ({describe(error)})") from error

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
        if whole and self._cuts in self._proven:
            self._update(grads)
            return True
        self.settle()
        if not whole:
            self._each()
            return False
        return self._prove(grads)

    @torch.no_grad()
    def _prove(self, grads: list[Any]) -> bool:
        """Make an update in both ways; returns whether they are the same. That of the optimizers holds."""
        cuts = self._cuts
        before = [[tensor.clone() for tensor in some] for some in self._tensors]
        self._update(grads)
        self._made, same = 0, True  # the optimizers count by themselves
        for session in self.sessions:
            mine = {id(parameter) for parameter in session.model.parameters()}
            places = [place for place, weight in enumerate(self._weights) if id(weight) in mine]
            tensors, old = ([some[place] for some in of for place in places] for of in (self._tensors, before))
            found = [tensor.clone() for tensor in tensors]
            torch._foreach_copy_(tensors, old)
            session.activate()
            session.optimizers[0].step()
            same = same and all(map(_same, tensors, found))
        self._parts = [part._replace(before=part.before + 1) for part in self._parts]
        if same:
            self._proven.add(cuts)
        return same

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
        sizes: list[float] = []
        for group, place, _, before, decoupled in self._parts:
            lr, decay = group["lr"], group["weight_decay"]
            if decay and decoupled:
                torch._foreach_mul_(self._weights[place], 1 - lr * decay)
            elif decay:
                grads[place] = torch._foreach_add(grads[place], self._weights[place], alpha=decay)
            sizes += [-(lr / (1 - group["betas"][0] ** (before + self._made)))] * (place.stop - place.start)
        row = torch._utils._flatten_dense_tensors(grads)  # type: ignore[no-untyped-call]
        for columns, beta1, beta2, eps, step in self._spans(self._made):
            first, second, grad, spread = (of[columns] for of in (self._first, self._second, row, self._spread))
            first.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            torch.sqrt(second, out=spread)
            spread.div_((1 - beta2**step) ** 0.5).add_(eps)
        torch._foreach_addcdiv_(self._weights, self._firsts, self._spreads, sizes)

    def _spans(self, made: int) -> list[Span]:
        """Parts with the same settings, as they are now, and when so many updates are made."""
        spans: list[Span] = []
        for group, _, columns, before, _ in self._parts:
            settings = (*group["betas"], group["eps"], before + made)
            if spans and spans[-1][1:] == settings:
                columns = slice(spans.pop().columns.start, columns.stop)
            spans.append(Span(columns, *settings))
        return spans

    @property
    def _cuts(self) -> tuple[int, ...]:
        return tuple(span.columns.stop for span in self._spans(0))

    def _kind(self, part: Part) -> Hashable:
        """What must be alike for an update to be made alike."""
        weights = self._weights[part.place]
        return (*((w.shape, w.dtype, w.stride()) for w in weights), bool(part.group["weight_decay"]), part.decoupled)

    def _each(self) -> None:
        for session in self.sessions:
            session.activate()
            session.optimizers[0].step()

    @property
    def _tensors(self) -> tuple[list[Any], list[Any], list[Any]]:
        """All that an update changes."""
        return [weight.data for weight in self._weights], self._firsts, self._seconds


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors have the same bits."""
    return bool(torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))
