"""Tensors that a step makes on the host and moves to the device, such as weights of classes: inside of a capture.

A capture may copy from the host only where the memory is locked, and it cannot lock memory. So memory is locked before,
the values are put there, and each replay copies them again. As with numbers of Python, their values are those of the
capture: a step that changes something on the host is not captured, and replays are compared with eager steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.overrides import TorchFunctionMode

from hopfleet.frameworks.torch._operations import Operation, Value

ROOM = 1 << 16
"""Bytes of such tensors in one capture."""

ALIGNED = 64

MADE = (torch.tensor, torch.as_tensor)
"""Functions that make a tensor of values of Python, on a device."""

MOVED = (torch.Tensor.to, torch.Tensor.cuda)


class HostTensors(TorchFunctionMode):
    """A context for a capture. The captured graph reads ``memory`` whenever it is replayed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        captures = device.type == "cuda"
        self.memory = torch.empty(ROOM if captures else 0, dtype=torch.uint8, pin_memory=captures)
        self._taken = 0

    def __torch_function__(
        self, func: Operation, types: Sequence[type], args: tuple[Value, ...] = (), kwargs: Value = None
    ) -> Value:
        given: dict[str, Value] = dict(kwargs or {})
        if func in MADE and _is_cuda(given.get("device")) and not torch.is_tensor(args[0] if args else None):
            target, grad = given.pop("device"), given.pop("requires_grad", False)
            made = func(*args, **given, device="cpu")
            locked = self._locked(made)
            return (made if locked is None else locked).to(target, non_blocking=True).requires_grad_(grad)
        if func in MOVED and args[0].device.type == "cpu" and (locked := self._locked(args[0])) is not None:
            return func(locked, *args[1:], **{**given, "non_blocking": True})
        return func(*args, **given)

    def _locked(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a copy of a tensor in locked memory; None if there is no room, or the tensor needs a gradient."""
        start, size = self._taken, tensor.numel() * tensor.element_size()
        if tensor.requires_grad or not size or start + size > len(self.memory):
            return None
        self._taken = -(-(start + size) // ALIGNED) * ALIGNED
        room = self.memory[start : start + size].view(tensor.dtype).view(tensor.shape)
        return room.copy_(tensor)


def _is_cuda(device: Value) -> bool:
    return device is not None and torch.device(device).type == "cuda"
