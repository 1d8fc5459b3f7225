"""Conditions on tensors, such as ``if mask.all():``, inside of a capture.

A capture cannot read what a condition gives, and code that asks whether it is being captured, as that of Hugging Face
does, may then take another way with other bits. So it is told that nothing is captured. Conditions are noted in an
eager step; a capture takes the same ways, and whenever it is replayed, it compares each condition with what was noted.
If one has changed, the unit is trained anew, in turn.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch

from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.torch._compat import TorchDispatchMode
from hopfleet.frameworks.torch._operations import READ, Operation, Value

CHANGED = "a condition on a tensor does not give the same for all batches"


class Refused(Exception):
    """The reason why a step is not captured."""


class ConditionsChanged(IsolationError):
    """A condition gives something else than in the step that was captured."""

    lasting = False

    def __init__(self) -> None:
        super().__init__(CHANGED)


class Conditions:
    """The conditions that a step reads, in their order, and on the device whether one has changed in a replay."""

    def __init__(self, device: torch.device, noted: tuple[bool, ...] = ()) -> None:
        self.noted = noted
        self.changed = torch.zeros((), dtype=torch.bool, device=device)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note the conditions of an eager step."""
        found: list[bool] = []

        def read(tensor: torch.Tensor, value: Callable[[], bool]) -> bool:
            found.append(value())
            return found[-1]

        with _Reading(self.changed.device, read):
            yield
        self.noted = tuple(found)

    @contextlib.contextmanager
    def assumed(self) -> Iterator[None]:
        """Let a step that is being captured have the conditions that were noted, and check them in each replay."""
        left = iter(self.noted)

        def read(tensor: torch.Tensor, value: Callable[[], bool]) -> bool:
            given = next(left, None)
            if given is None:
                raise Refused("a step reads other conditions than one before")
            self.changed.logical_or_(tensor.reshape(()) != given)  # in the capture
            return given

        with _Reading(self.changed.device, read), told_of_no_capture():
            yield


class _Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which a function returns the values of conditions."""

    def __init__(self, device: torch.device, read: Callable[[torch.Tensor, Callable[[], bool]], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._read = device, read

    def __torch_dispatch__(self, func: Operation, types: Value, args: Value = (), kwargs: Value = None) -> Value:
        if func is READ and self._concerns(args[0]):
            return self._read(args[0], lambda: bool(func(*args)))
        return func(*args, **(kwargs or {}))

    def _concerns(self, tensor: torch.Tensor) -> bool:
        return type(tensor) is torch.Tensor and tensor.dtype == torch.bool and tensor.device.type == self._device.type


@contextlib.contextmanager
def told_of_no_capture() -> Iterator[None]:
    """Tell code outside of torch that the current stream is not being captured."""
    truth = torch.cuda.is_current_stream_capturing

    def answer() -> bool:
        return sys._getframe(1).f_globals.get("__name__", "").startswith("torch.") and truth()

    torch.cuda.is_current_stream_capturing = answer
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = truth
