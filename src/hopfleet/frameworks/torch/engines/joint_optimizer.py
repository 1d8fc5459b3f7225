"""One backward pass and one update for many small trials on the CPU: each operation is called once for all members.

An optimizer on the CPU calls a few small operations for each of its tensors, and for small models the calls take longer
than the arithmetic. Here the optimizer states of all members lie in one long row, as do their gradients, and go through
the same operations in the same order, so every member gets the bits that its own optimizer gives. That is proven
rather than assumed: the first update of each composition of members is made both ways and compared.

The gradients of several losses are computed by one backward pass. The members stay independent: the operations of each
member run in the order that they have alone. But the operations of different members interleave, so no member may draw
random numbers in the backward pass.

Large models gain nothing, and the gradients of all members would take memory at the same time: they step in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from hopfleet.errors import describe
from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import is_small
from hopfleet.frameworks.torch.trial import ParameterGroup

INSEPARABLE = "their gradients cannot be computed in one pass"

KINDS = (torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose updates can be made jointly. Classes derived from them may do something else."""

SPECIAL = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
"""Settings that make an optimizer call other operations."""


class Proofs:
    """Compositions of members whose joint updates had the bits of separate ones, with the spans of each update."""

    def __init__(self) -> None:
        self.spans: defaultdict[Hashable, set[tuple[int, ...]]] = defaultdict(set)


class Part(NamedTuple):
    """A group of weights of one optimizer, with its positions in the lists of all weights and in the long rows."""

    group: ParameterGroup
    place: slice
    columns: slice
    before: float  #: steps made before this unit
    decoupled: bool


class Span(NamedTuple):
    """Neighbouring parts with the same settings."""

    columns: slice
    beta1: float
    beta2: float
    eps: float
    step: float


def may_join(session: TorchSession) -> bool:
    """Whether a trial is of the kind whose updates are made jointly with others."""
    return len(session.optimizers) == 1 and type(session.optimizers[0]) in KINDS and is_small(session.model)


def admits(session: TorchSession) -> bool:
    """Whether the updates of a trial that has made some already can be made jointly with others."""
    if session.device.type != "cpu" or not session.options.plain or session.scaler is not None:
        return False
    if not may_join(session):
        return False
    optimizer = session.optimizers[0]
    if _compat.has_step_hooks(optimizer):
        return False
    return all(_plain(optimizer, group) for group in optimizer.param_groups)


def _plain(optimizer: Optimizer, group: ParameterGroup) -> bool:
    numbers = (group["lr"], group["eps"], group["weight_decay"], *group["betas"])
    if any(group.get(name) for name in SPECIAL) or not all(type(number) in (int, float) for number in numbers):
        return False
    states = [optimizer.state.get(parameter) for parameter in group["params"]]
    known = [state for state in states if state]
    if len(known) < len(states) or len({float(state["step"]) for state in known}) != 1:
        return False
    tensors = [*group["params"], *(state[name] for state in known for name in ("exp_avg", "exp_avg_sq"))]
    return all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors)


def _settings(optimizer: Optimizer, group: ParameterGroup) -> tuple[float, ...]:
    """Return the settings that the parts of a span share."""
    return (*group["betas"], group["eps"], float(optimizer.state[group["params"][0]]["step"]))


def _kind(optimizer: Optimizer, group: ParameterGroup) -> Hashable:
    """Return the properties of a group on which the arithmetic of its update depends."""
    weights = group["params"]
    return (*((w.shape, w.dtype, w.stride()) for w in weights), bool(group["weight_decay"]), _decoupled(optimizer))


def _decoupled(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.AdamW)


class JointOptimizer:
    """The optimizers of some trials as one, during one unit."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self.sessions = list(sessions)
        self._members = frozenset(map(id, self.sessions))
        self._parts: list[Part] = []
        self._weights: list[torch.Tensor] = []
        self._states: list[dict[str, torch.Tensor]] = []
        kinds: list[Hashable] = []
        width = 0
        optimizers = [session.optimizers[0] for session in self.sessions]
        for optimizer in optimizers:
            _compat.count_as_stepped(optimizer)  # maybe on another worker; a schedule expects a step before its own
        groups = [(one, group, _kind(one, group)) for one in optimizers for group in one.param_groups]
        # Groups with the same settings lie side by side; those alike, too, so that the order of members needs no proof.
        for optimizer, group, kind in sorted(groups, key=lambda one: (_settings(*one[:2]), str(one[2]))):
            first, start = len(self._weights), width
            self._weights += group["params"]
            self._states += [optimizer.state[parameter] for parameter in group["params"]]
            width += sum(parameter.numel() for parameter in group["params"])
            place, columns = slice(first, len(self._weights)), slice(start, width)
            self._parts.append(Part(group, place, columns, float(self._states[first]["step"]), _decoupled(optimizer)))
            kinds.append(kind)
        self._counts = [state["step"] for state in self._states]
        self._first, self._firsts = self._laid_out("exp_avg")
        self._second, self._seconds = self._laid_out("exp_avg_sq")
        self._spread = torch.empty_like(self._second)
        self._spreads = self._views(self._spread)
        self._made = 0
        self._proven = self.sessions[0].cache.part(Proofs).spans[tuple(kinds)]

    def __contains__(self, session: TorchSession) -> bool:
        return id(session) in self._members

    def _laid_out(self, name: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Move one entry of all optimizer states into one row; return the row and the view of each weight."""
        row = torch.cat([state[name].reshape(-1) for state in self._states])
        views = self._views(row)
        for state, view in zip(self._states, views, strict=True):
            state[name] = view
        return row, views

    def _views(self, row: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(row, [weight.numel() for weight in self._weights])
        return [piece.view(weight.shape) for piece, weight in zip(pieces, self._weights, strict=True)]

    def backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Compute the gradients of all members from their losses."""
        try:
            torch.autograd.backward(losses)
        except Exception as error:
            raise IsolationError(f"{INSEPARABLE} ({describe(error)})") from error

    def step(self) -> bool:
        """Make an update; return whether the next one can be made jointly, too.

        If a joint update would not have the bits of separate ones, each optimizer makes its own.
        """
        done = self._step()
        self.clear_gradients()
        return done

    def clear_gradients(self) -> None:
        """Clear the gradients of all members, as optimizers do before each step."""
        for weight in self._weights:
            weight.grad = None

    def _step(self) -> bool:
        grads = [grad for weight in self._weights if (grad := weight.grad) is not None and not grad.is_sparse]
        whole = len(grads) == len(self._weights)
        if whole and self._cuts in self._proven:
            self._update(grads)
            return True
        self.settle()
        if not whole:
            for session in self.sessions:
                session.optimizers[0].step()
            return False
        return self._prove(grads)

    @torch.no_grad()
    def _prove(self, grads: list[torch.Tensor]) -> bool:
        """Make an update both ways; keep that of the optimizers; return whether both have the same bits."""
        cuts = self._cuts
        before = [[tensor.clone() for tensor in some] for some in self._tensors]
        self._update(grads)
        self._made, same = 0, True  # the optimizers below count this step themselves
        for session in self.sessions:
            mine = {id(parameter) for parameter in session.model.parameters()}
            places = [place for place, weight in enumerate(self._weights) if id(weight) in mine]
            tensors, old = ([some[place] for some in of for place in places] for of in (self._tensors, before))
            found = [tensor.clone() for tensor in tensors]
            _compat.foreach_copy_(tensors, old)
            session.optimizers[0].step()
            same = same and all(map(_same, tensors, found))
        self._parts = [part._replace(before=part.before + 1) for part in self._parts]
        if same:
            self._proven.add(cuts)
        return same

    def settle(self) -> None:
        """Add the joint steps to the step counts of the optimizers."""
        if self._made:
            _compat.foreach_add_(self._counts, self._made)
        self._parts = [part._replace(before=part.before + self._made) for part in self._parts]
        self._made = 0

    @torch.no_grad()
    def _update(self, grads: list[torch.Tensor]) -> None:
        """Do for all weights at once what torch's own loop does for each weight, in the same order."""
        self._made += 1
        sizes: list[float] = []
        for group, place, _, before, decoupled in self._parts:
            lr, decay = group["lr"], group["weight_decay"]
            if decay and decoupled:
                _compat.foreach_mul_(self._weights[place], 1 - lr * decay)
            elif decay:
                grads[place] = _compat.foreach_add(grads[place], self._weights[place], alpha=decay)
            sizes += [-(lr / (1 - group["betas"][0] ** (before + self._made)))] * (place.stop - place.start)
        row = _compat.flatten_dense_tensors(grads)
        for columns, beta1, beta2, eps, step in self._spans(self._made):
            first, second, grad, spread = (of[columns] for of in (self._first, self._second, row, self._spread))
            first.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            torch.sqrt(second, out=spread)
            spread.div_((1 - beta2**step) ** 0.5).add_(eps)
        _compat.foreach_addcdiv_(self._weights, self._firsts, self._spreads, sizes)

    def _spans(self, made: int) -> list[Span]:
        """Join neighbouring parts whose settings are the same now, after ``made`` updates of this unit."""
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

    @property
    def _tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """The tensors that an update changes."""
        return [weight.data for weight in self._weights], self._firsts, self._seconds


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
