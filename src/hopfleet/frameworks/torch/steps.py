"""How a trial takes its steps: the loop that a task has unless it owns one, batch by batch, with the habits that people
expect of a trainer.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch

if TYPE_CHECKING:
    from hopfleet.frameworks.torch.task import TorchSession

PRECISIONS: Mapping[str, Any] = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

SMALL = 1 << 20
"""Bytes of weights up to which a model is small."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What a task has said about how its trials take their steps; see ``TorchTask``."""

    precision: str
    clip_norm: float | None
    accumulate: int
    channels_last: bool
    compile: bool
    ema: float | None
    deterministic: bool

    @classmethod
    def of(cls, task: Any) -> TrainingOptions:
        options = cls(*(getattr(task, name) for name in cls.__slots__))
        if options.precision not in PRECISIONS:
            raise TaskError(f"precision={options.precision!r}: must be one of {', '.join(PRECISIONS)}")
        if options.clip_norm is not None and not options.clip_norm > 0:
            raise TaskError(f"clip_norm={options.clip_norm!r}: must be greater than 0, or None")
        if type(options.accumulate) is not int or options.accumulate < 1:
            raise TaskError(f"accumulate={options.accumulate!r}: must be a whole number of batches, 1 or more")
        if options.ema is not None and not 0 < options.ema < 1:
            raise TaskError(f"ema={options.ema!r}: must be between 0 and 1, e.g. 0.999, or None")
        if not isinstance(options.deterministic, bool):
            raise TaskError(f"deterministic={options.deterministic!r}: must be True or False")
        return options

    @property
    def plain(self) -> bool:
        """Whether a step is forward, backward, update and nothing else."""
        return (self.precision, self.clip_norm, self.accumulate, self.ema) == ("float32", None, 1, None)

    def autocast(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        dtype = PRECISIONS[self.precision]
        return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


class Steps:
    """A unit of one trial, step by step. Its methods are called while the trial is at work."""

    def __init__(self, session: TorchSession) -> None:
        self._session = session
        self._losses: list[Any] = []
        self._rows: list[int] = []
        #: Batches whose gradients wait for an update.
        self._waiting = 0
        self._small = is_small(session.model)

    def __call__(self, batch: Batch) -> None:
        self.note(self.take(batch), rows_of(batch))
        if not self._waiting and not self._small:
            # Until the next step they would only take memory, while others may want some.
            self._session.task.optimizer.zero_grad(set_to_none=True)
        self.step_schedule()

    def take(self, batch: Batch) -> Mapping[str, Any]:
        """Train on a batch; returns what there is to note."""
        return {"loss": self.step(batch)}

    def step(self, batch: Batch) -> Any:
        """Train on a batch; returns its loss."""
        loss = self._backward(batch)
        if self._waiting == self._session.options.accumulate:
            self._update()
        return loss

    def all_but_update(self, batch: Batch) -> None:
        """Train on a batch, but leave the update to somebody else, who leaves no gradients behind."""
        self.note({"loss": self._backward(batch, clear=False)}, rows_of(batch))
        self._waiting = 0

    def loss(self, batch: Batch) -> Any:
        """Note the loss of a batch; returns it. Its gradients, too, are left to somebody else."""
        loss = self._loss(batch)
        self.note({"loss": loss.detach()}, rows_of(batch))
        return loss

    def _loss(self, batch: Batch) -> Any:
        session = self._session
        with session.options.autocast(session.device):
            loss = session.task.loss(session.callable, batch)
        _check_loss(loss)
        return loss

    def _backward(self, batch: Batch, *, clear: bool = True) -> Any:
        """Add to the gradients, after those of an earlier update are gone; returns the loss."""
        session, options = self._session, self._session.options
        loss = self._loss(batch)
        if clear and not self._waiting:
            session.task.optimizer.zero_grad(set_to_none=True)
        share = loss if options.accumulate == 1 else loss / options.accumulate
        (share if session.scaler is None else session.scaler.scale(share)).backward()
        self._waiting += 1
        return loss.detach()

    def _update(self) -> None:
        session, options, optimizer = self._session, self._session.options, self._session.task.optimizer
        self._waiting = 0
        if options.clip_norm is not None:
            if session.scaler is not None:
                session.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(session.model.parameters(), options.clip_norm, foreach=True)
        if session.scaler is None:
            optimizer.step()
        else:
            session.scaler.step(optimizer)
            session.scaler.update()
        if options.ema is not None:
            with torch.no_grad():
                torch._foreach_lerp_(session.average, list(session.model.parameters()), 1 - options.ema)

    def step_schedule(self) -> None:
        task = self._session.task
        if task.lr_scheduler is not None and task.lr_step == "batch":
            task.lr_scheduler.step()

    def note(self, values: Mapping[str, Any], *rows: int) -> None:
        """Take down the losses of some batches."""
        self._losses.append(values["loss"].reshape(-1))
        self._rows += rows

    def result(self) -> Mapping[str, Any]:
        """What came of all steps. Gradients that still wait are used: nothing is carried from unit to unit."""
        if self._waiting:
            self._update()
        return {"loss": _mean_loss(self._losses, self._rows)}


def is_small(model: Any) -> bool:
    return bool(sum(weight.numel() * weight.element_size() for weight in model.parameters()) <= SMALL)


def rows_of(batch: Batch) -> int:
    """The rows of a batch: the length of its first column."""
    for value in batch.values() if isinstance(batch, Mapping) else batch:
        return len(value)
    return 0


def _check_loss(loss: Any) -> None:
    if not torch.is_tensor(loss):
        raise TaskError(f"loss() returned a {type(loss).__name__}: must be a scalar tensor")
    if loss.ndim != 0:
        raise TaskError(f"loss() returned a tensor of shape {tuple(loss.shape)}: must be a scalar; average it")
    if not loss.requires_grad:
        raise TaskError("loss() returned a tensor without gradient: it must depend on the model's parameters")


def _mean_loss(losses: Sequence[Any], rows: Sequence[int]) -> RowSum:
    if not losses:
        raise TaskError("a unit without a single batch: the partition is empty, or smaller than a batch with drop_last")
    # All of a device are fetched at once.
    runs = itertools.groupby(losses, lambda some: some.device)
    values = [value for _, run in runs for value in torch.cat(list(run)).tolist()]
    for number, value in enumerate(values, 1):
        if not math.isfinite(value):
            raise TaskError(f"the loss is {value} in batch {number} of {len(values)}: try a smaller learning rate")
    return RowSum.over(values, rows)
