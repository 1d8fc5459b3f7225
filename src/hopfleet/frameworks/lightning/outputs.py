"""What ``training_step`` may return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hopfleet.errors import TaskError
from hopfleet.phrases import listed, shown

RETURN = "must be a scalar tensor, a dict with it as 'loss', or None to skip the batch"
"""The constraint on what ``training_step`` returns."""


def check_outputs(outputs: Any, *, automatic: bool = True) -> Any:
    """Return what ``training_step`` returned. Raises TaskError for anything but a loss, a dict with one, or None."""
    if isinstance(outputs, Mapping) and automatic and outputs.get("loss") is None:
        raise TaskError(f"training_step() returned a dict without 'loss', only {listed('loss', outputs)}: {RETURN}")
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is not None and not torch.is_tensor(loss):
        raise TaskError(f"training_step() returned the loss {shown(loss)}: {RETURN}")
    return outputs


def loss_of(outputs: Any) -> Any:
    """Return the loss in what ``training_step`` returned."""
    return outputs["loss"] if isinstance(outputs, Mapping) else outputs


def told(outputs: Any, share: int) -> dict[str, Any]:
    """Return what ``on_train_batch_end`` is told of a step: a dict, with the loss as far as it counts in an update."""
    found = dict(outputs) if isinstance(outputs, Mapping) else {} if outputs is None else {"loss": outputs}
    if share > 1 and "loss" in found:
        found["loss"] = found["loss"] / share
    return {name: value.detach() if torch.is_tensor(value) else value for name, value in found.items()}
