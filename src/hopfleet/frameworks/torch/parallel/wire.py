"""Shares of batches on their way to another process: pickled, with tensors as numpy arrays."""

from __future__ import annotations

import io
import pickle
from multiprocessing.connection import Connection

import numpy as np
import torch

from hopfleet.frameworks.torch.trial import Part

Value = Part
"""A value that passes between processes, or between the code of a task and its model."""


def _rebuilt(array: np.ndarray[Value, Value], dtype: torch.dtype) -> torch.Tensor:
    # An array out of a pickle may be read-only, and a task may write into its batch.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Value) -> Value:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        host = value.detach().cpu().contiguous()
        plain = host.view(torch.int16) if host.dtype == torch.bfloat16 else host
        return _rebuilt, (plain.numpy(), host.dtype)


def send(link: Connection, value: object) -> None:
    """Send a value that may contain tensors; the other side calls ``receive``."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    link.send_bytes(buffer.getbuffer())


def receive(link: Connection) -> Value:
    """Return the next value. Raises EOFError if the other side is gone."""
    return pickle.loads(link.recv_bytes())


def moved(value: Value, device: torch.device) -> Value:
    """Return a value with all tensors in lists, tuples and dicts on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if isinstance(value, list):
        return [moved(part, device) for part in value]
    return value
