"""Values of single steps in PyTorch: what may be logged, how it is read in the end, and learning rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, Batches
from hopfleet.frameworks.step_log import StepLog
from hopfleet.frameworks.torch.trial import LiveTrial
from hopfleet.phrases import shown

REASON = "loss() uses self.log, and a replayed step runs no Python; learning rates need none, with log_lr = True"
"""Why the steps of a trial are neither captured nor stacked."""


def put(log: StepLog, name: str, value: object) -> None:
    """Log a number, or a tensor of one element, which is copied and not yet read."""
    if log.batch is None or log.refusal:
        log.put(name, None)
    elif isinstance(value, torch.Tensor):
        if value.numel() != 1:
            shape = tuple(value.shape)
            raise TaskError(f"self.log({name!r}, ...): must be one number, got a tensor of shape {shape}; log its mean")
        log.put(name, value.detach().clone())  # it may be changed in place
    else:
        try:
            log.put(name, float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise TaskError(
                f"self.log({name!r}, ...): must be a number or a tensor of one element, got {shown(value)}; log a "
                "number that stands for it"
            ) from None


def read(values: Sequence[float | torch.Tensor]) -> list[float]:
    """Return values as numbers; those of a device and type are fetched at once."""
    found: dict[int, float] = {}
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    for kind in {(value.device, value.dtype) for value in tensors}:
        some = [value for value in tensors if (value.device, value.dtype) == kind]
        found |= zip(map(id, some), torch.cat([value.reshape(1) for value in some]).tolist(), strict=True)
    return [float(found.get(id(value), value)) for value in values]


def note_rates(trial: LiveTrial, batch: int) -> None:
    """Log the learning rates of a batch, if the task asks for that: ``lr``, or ``lr_0`` and so on if there are more."""
    groups = [group for optimizer in trial.optimizers for group in optimizer.param_groups]
    for number, group in enumerate(groups):
        rate = group["lr"]
        name = "lr" if len(groups) == 1 else f"lr_{number}"
        trial.log.put_at(batch, name, rate.detach().clone() if isinstance(rate, torch.Tensor) else float(rate))


class CountedBatches:
    """The batches of a unit, such that values which are logged belong to the batch that was taken last."""

    def __init__(self, batches: Batches, trial: LiveTrial) -> None:
        self._batches, self._trial = batches, trial
        self.rows = batches.rows

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self._batches):
            self._trial.log.batch = number
            if self._trial.hooks.log_lr:
                note_rates(self._trial, number)
            yield batch
