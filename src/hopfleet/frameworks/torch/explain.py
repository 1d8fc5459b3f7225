"""Explanations of exceptions that the code of a task raised: what it was given, and what it may have meant.

An explanation is a note of the exception, so that its type, its message and its traceback stay those of the user's
code. Everything is read from the frames of the traceback: training pays nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import FrameType

import numpy as np
import torch

from hopfleet.errors import HopfleetError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.tracked_config import TrackedConfig
from hopfleet.phrases import did_you_mean, listed, shown

CALLS = {
    "_loss": "loss(self, model, batch)",
    "make": "transform(self, batch, rng)",
    "measure": "metrics(self, model, batch)",
    "parts": "build(self, config)",
    "train": "train(self, model, batches, config)",
}
"""Functions of the adapter that call hooks, and how they call them."""

_NAMES = "iterating over a batch, as in x, y = batch, yields the names of its columns; write {columns}"
_CONVERT = "convert columns to the types that the model and the loss expect, e.g. batch['x'].float(), batch['y'].long()"
_DEVICE = "leave the device to Hopfleet, which moves the model and each batch; make new tensors with device=x.device"
_CALL = "make the loss module once and call it then, as in torch.nn.CrossEntropyLoss()(outputs, labels)"
_LAST = (
    "the last batch of a partition, or a member's share of it on a team, has one row; leave that batch out with "
    "WorkerOptions(drop_last=True)"
)
_FLOAT = "convert to floats first, as in (predicted == y).float().mean()"
_NO_RNG = "the rng of transform() is None in evaluation; return the batch without augmentation then"
_BACKWARD = (
    "loss() only returns the loss: Hopfleet calls backward() and the optimizer; a tensor that is kept from an earlier "
    "batch needs .detach()"
)

_ENDED = (
    "the schedule ends before the training: give it self.total_steps, the steps until the search's maximum of epochs; "
    "a trial that is extended beyond keeps that number, so it needs a schedule without an end"
)

HINTS = (
    (r"'str' object has no attribute|must be Tensor, not str|'str' object is not callable", _NAMES),
    (r"must be Tensor, not dict|'dict' object has no attribute 'to'", "the batch is a dict; pass columns: {columns}"),
    (r"must be Tensor, not list", "a column of text, or of rows of different shapes, is a list; make a tensor of it"),
    (r"same dtype|target dtype to be|expected scalar type|not implemented for '(Int|Long|Byte|Short|Char)'", _CONVERT),
    (r"not compiled with CUDA|no NVIDIA driver|on the same device", _DEVICE),
    (r"Boolean value of Tensor with more than one value", _CALL),
    (r"more than 1 value per channel", _LAST),
    (r"could not infer output dtype|only supports floating", _FLOAT),
    (r"'NoneType' object has no attribute '(normal|random|integers|uniform|choice|permutation|shuffle)'", _NO_RNG),
    (r"object is not subscriptable|'dict' object is not callable", "hooks get the model first and the batch second"),
    (r"backward through the graph a second time", _BACKWARD),
    (r"Tried to step \d+ times", _ENDED),
    (r"Target -?\d+ is out of bounds", "labels must be 0 or more and less than the number of outputs of the model"),
)
"""What messages of PyTorch and Python mean where Hopfleet calls the code."""


def explain(error: BaseException) -> None:
    """Add notes to an exception that the code of a task raised, before the notes that it has."""
    if isinstance(error, HopfleetError):
        return
    frames = list(_frames(error))
    batch = next((found for frame in frames if _is_batch(found := frame.f_locals.get("batch"))), None)
    values = (value for frame in frames for value in frame.f_locals.values())
    config = next((value for value in values if isinstance(value, TrackedConfig)), None)
    hints = list(_hints(error, batch))
    given = "" if isinstance(error, KeyError) and hints else _given(batch, config)
    notes = [_called(error, frames), *hints, given]
    error.__notes__ = [*filter(None, notes), *getattr(error, "__notes__", ())]


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of a traceback, the innermost first."""
    found, trace = list[FrameType](), error.__traceback__
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return reversed(found)


def _is_batch(value: object) -> bool:
    if not isinstance(value, dict) or isinstance(value, TrackedConfig) or not value:
        return False
    return all(isinstance(name, str) for name in value)


def _called(error: BaseException, frames: list[FrameType]) -> str:
    """Return how a hook is called, if its arguments are others."""
    if not isinstance(error, TypeError) or "argument" not in str(error) or not frames:
        return ""
    ours = frames[0].f_globals.get("__name__", "").startswith("hopfleet.")
    call = CALLS.get(frames[0].f_code.co_name, "") if ours else ""
    return f"Hopfleet calls {call}" if call else ""


def _hints(error: BaseException, batch: Batch | None) -> Iterator[str]:
    text, names = str(error), list(batch or ())
    columns = " and ".join(f"batch[{name!r}]" for name in names[:2])
    if isinstance(error, KeyError) and batch and error.args and error.args[0] not in batch:
        yield f"{did_you_mean(error.args[0], names)}the batch has {listed(error.args[0], names)}"
    elif isinstance(error, AttributeError) and isinstance(error.obj, dict) and _is_batch(error.obj):
        near = error.name if error.name in error.obj else names[0] if names else ""
        yield f"the batch is a dict; write batch[{near!r}]"
    else:
        for pattern, hint in HINTS:
            if re.search(pattern, text) and (columns or "{columns}" not in hint):
                yield hint.replace("{columns}", columns)
                return


def _given(batch: Batch | None, config: TrackedConfig | None) -> str:
    """Return what the code was given: the shapes of a batch or, where there is none, the configuration."""
    if batch is not None:
        return f"batch: {', '.join(f'{name} {_shape(value)}' for name, value in list(batch.items())[:8])}"
    if config:
        return f"config: {', '.join(f'{name}={shown(value)}' for name, value in list(dict.items(config))[:8])}"
    return ""


def _shape(value: object) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"list of {len(value)}" if isinstance(value, list) else type(value).__name__
