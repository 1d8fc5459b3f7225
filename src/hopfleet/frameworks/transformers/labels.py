"""The labels of all batches of an update, by which a Trainer divides the losses of the batches.

The number is a tensor that stays where it is, so that steps which were captured read that of the update at hand.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_pt_utils import LabelSmoother

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch.trial import LiveTrial
from hopfleet.frameworks.transformers.preferences import IGNORED


class Counted(dict[str, Any]):
    """A batch of an update, with the labels of all its batches."""

    #: The number of labels that count, a tensor.
    labels: torch.Tensor
    #: The inputs of the model, if they were made when the labels were counted.
    inputs: dict[str, Any] | None


class Update:
    """The batches of an update whose labels have been counted. Called with one of them, return it as ``Counted``."""

    def __init__(self, labels: torch.Tensor, batches: Sequence[Batch], inputs: Sequence[dict[str, Any]]) -> None:
        self.number = labels
        # Batches are copied on their way, and their columns are not.
        self._inputs = [(_first(batch), made) for batch, made in zip(batches, inputs, strict=True)]

    def __call__(self, batch: Batch) -> Counted:
        found, column = Counted(batch), _first(batch)
        found.labels = self.number
        found.inputs = next((made for known, made in self._inputs if known is column), None)
        return found


def _first(batch: Batch) -> object:
    return next(iter(batch.values()), None)


def takes_number(network: Any) -> bool:
    """Whether a Trainer gives the number of labels to the model: if the model says so, or takes any argument."""
    if hasattr(network, "accepts_loss_kwargs"):
        return bool(network.accepts_loss_kwargs)
    taken = inspect.signature(network.forward).parameters.values()
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken)


def update(live: LiveTrial, network: Any, batches: Sequence[Batch], inputs: Sequence[dict[str, Any]]) -> Update | None:
    """Return the batches of an update with the number of their labels; None if a Trainer cannot count them."""
    number = _number(network, inputs)
    if number is None:
        return None
    place = live.kept.setdefault(Counted, torch.zeros((), dtype=torch.int64, device=live.device))
    assert isinstance(place, torch.Tensor)
    return Update(place.copy_(number), batches, inputs)


def _number(network: Any, inputs: Sequence[Mapping[str, Any]]) -> torch.Tensor | None:
    if "labels" not in inputs[0]:
        return None
    # The first token of a row is no target of a model that predicts the next one.
    encodes = getattr(getattr(network, "config", None), "is_encoder_decoder", False)
    shifts = LOSS_MAPPING.get(getattr(network, "loss_type", None)) is ForCausalLMLoss and not encodes
    found: list[torch.Tensor] = []
    for one in inputs:
        labels = one["shift_labels"] if "shift_labels" in one else one["labels"]
        if not torch.is_tensor(labels):
            return None  # such as the boxes of each image
        counted = labels[..., 1:] if shifts and "shift_labels" not in one else labels
        found.append(counted.ne(IGNORED).sum())
    return torch.stack(found).sum()


def smoothed(smoothing: float, network: Any, outputs: Any, labels: Any, number: torch.Tensor | None) -> Any:
    """Return the loss with smoothed labels, divided by their number: that of the batch, or a given one."""
    names = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    shifted = any(base.__name__ in names for base in type(network).__mro__)
    given = {} if number is None or not _smoother_counts() else {"num_items_in_batch": number}
    return LabelSmoother(epsilon=smoothing)(outputs, labels, shift_labels=shifted, **given)


@functools.cache
def _smoother_counts() -> bool:
    """Whether the installed version divides smoothed losses by the labels of an update."""
    return "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters
