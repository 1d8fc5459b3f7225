"""Whether rounding explains how far the gradients of a stack are from those of a member alone.

A stack sums in another order, so its last bits differ. How much that amounts to depends on the model and on its types,
so it is not guessed: unless the deviation is next to nothing, gradients alone are computed once more in double
precision, with the same random numbers. Those of the stack may be a few times as far from these as those alone are.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch._compat import TorchDispatchMode
from hopfleet.frameworks.torch._operations import Operation, Value
from hopfleet.frameworks.torch.engines.stacked.updates import Table
from hopfleet.frameworks.torch.session import TorchSession

STRICT = 64
"""Deviation that needs no explanation, as a multiple of single precision."""

TIMES = 4
"""How many times as far from double precision as alone gradients of a stack may be."""

TIMES_OF_ONE = 16
"""The same for one parameter: in few bits, a ReLU may let a row pass in the stack that it stops alone."""

MEMBERS = 3
"""Members whose gradients are compared if rounding does not explain those of the first: it differs, errors do not."""

UNEXPLAINED = 0.01
"""Deviation up to which gradients count as the same at most, where there are none in double precision."""

ROUNDING = 3
"""The same as a multiple of the square root of the type's precision."""


class Deviation(NamedTuple):
    """How far the gradients of a stack are from those of a member alone."""

    off: float  #: as a part of the largest gradient
    rounding: float  #: how far those alone are from double precision, as a part of their norm; 0 if that is not known
    explained: bool  #: whether rounding explains it


NOT_MEASURED = Deviation(math.inf, 0.0, False)


def compared(
    stacked: Sequence[Table], alone: Sequence[Table], exact: Callable[[], Sequence[Table] | None]
) -> Deviation:
    """Compare gradients, a tensor for each parameter; ``exact`` returns them in double precision, if it can."""
    pairs = [(one, other) for one, other in zip(stacked, alone, strict=True) if other.numel()]
    largest = torch.stack([other.abs().max() for _, other in pairs]).max().clamp(min=1e-30)
    off = float(torch.stack([(one - other).abs().max() for one, other in pairs]).max() / largest)
    precision = max(torch.finfo(one.dtype).eps for one in alone)
    if off <= STRICT * min(precision, torch.finfo(torch.float32).eps):
        return Deviation(off, 0.0, True)
    reference = None if precision <= torch.finfo(torch.float64).eps else exact()
    if reference is None:
        return Deviation(off, 0.0, off <= min(ROUNDING * math.sqrt(precision), UNEXPLAINED))
    ours, theirs = _distances(stacked, reference), _distances(alone, reference)
    size = float(torch.stack([one.norm() for one in reference]).norm())
    # Of a few numbers, the deviation may be small by chance: that of the others tells what is usual.
    usual = torch.full_like(theirs, float(theirs.norm()) / math.sqrt(len(theirs)))
    explained = bool(ours.norm() <= TIMES * theirs.norm() and (ours <= TIMES_OF_ONE * theirs.maximum(usual)).all())
    return Deviation(off, float(theirs.norm()) / max(size, 1e-30), explained)


def _distances(some: Sequence[Table], others: Sequence[Table]) -> Table:
    return torch.stack([(one.double() - other).norm() for one, other in zip(some, others, strict=True)])


def gradients_in_double(
    session: TorchSession, batch: Batch, weights: Sequence[str], draws: Sequence[Table]
) -> list[Table] | None:
    """Return the gradients of some weights of a member alone in double precision, with given random numbers.

    None where that is impossible, say because the task insists on a type.
    """
    try:
        model = copy.deepcopy(session.model).double()
        parameters = dict(model.named_parameters())
        with InDouble(), Drawn(draws) if draws else contextlib.nullcontext() as drawn:
            loss = session.hooks.loss(model, {name: _doubled(value) for name, value in batch.items()})
            grads = torch.autograd.grad(loss, [parameters[name] for name in weights])
        return list(grads) if drawn is None or drawn.complete else None
    except Exception:
        return None


def _doubled(value: object) -> object:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
"""Conversions to types of fewer bits."""


class InDouble(TorchFunctionMode):
    """A context in which code computes in double precision, also where it asks for another type."""

    def __torch_function__(
        self, func: Operation, types: Sequence[type], args: tuple[Value, ...] = (), kwargs: Value = None
    ) -> Value:
        if func in CASTS:
            return args[0].double()
        found = func(*map(_as_double, args), **{name: _as_double(value) for name, value in (kwargs or {}).items()})
        return _doubled(found) if type(found) is torch.Tensor and not types else found


def _as_double(value: Value) -> Value:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that notes the random numbers that operations draw."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[Table] = []

    def __torch_dispatch__(self, func: Operation, types: object, args: Value = (), kwargs: Value = None) -> object:
        found = func(*args, **(kwargs or {}))
        # Operations that return more, say attention, draw for dropout, which is off.
        if torch.Tag.nondeterministic_seeded in func.tags and torch.is_tensor(found):
            self.values.append(found.detach().clone())
        return found


class Drawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which operations draw given random numbers, in any type."""

    def __init__(self, values: Sequence[Table]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values = list(values)
        self._fits = True

    @property
    def complete(self) -> bool:
        """Whether exactly the given numbers were drawn."""
        return self._fits and not self._values

    def __torch_dispatch__(self, func: Operation, types: object, args: Value = (), kwargs: Value = None) -> object:
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and torch.is_tensor(found):
            value = self._values.pop(0) if self._values else None
            if value is not None and value.shape == found.shape:
                found.copy_(value)
            else:
                self._fits = False
        return found
