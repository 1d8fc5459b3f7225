"""The default training loop, batch by batch: forward pass, backward pass, update, and the options of the task."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.errors import NotFinite, TaskError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.step_log import note_rates
from hopfleet.frameworks.torch.trial import LiveTrial, Metrics, Weigh
from hopfleet.frameworks.whole_set import collected
from hopfleet.phrases import shown

Item = TypeVar("Item")

UNLIKE = "some batches have labels, and others have none: the losses of both cannot be averaged"
"""Why an update cannot be followed by another one."""

SMALL = 1 << 20
"""Bytes. A model whose weights take at most this much keeps its gradients between steps."""


class Steps:
    """The steps of one trial in one unit. Call its methods only while the trial's environment is in place."""

    def __init__(self, trial: LiveTrial) -> None:
        self._trial = trial
        self._losses: list[torch.Tensor] = []
        self._rows: list[int] = []
        #: The norms of the gradients before each update, if the task limits them.
        self._norms: list[torch.Tensor] = []
        #: Batches whose gradients wait for an update. Captured steps change the number, too.
        self.waiting = 0
        #: Makes an update that was captured alone, and returns its values; or does nothing and returns None.
        self.replay: Callable[[Steps], Metrics | None] | None = None
        #: Makes the update of an optimizer in a faster way and returns True; or does nothing and returns False.
        self.direct: Callable[[Optimizer], bool] | None = None
        #: Whether the schedule has yet to step for the last batch, whose gradients wait for an update.
        self._schedule_waits = False
        #: Batches for which the schedules have stepped, and the last one whose learning rates were logged.
        self._scheduled, self._rated = 0, -1
        self._small = is_small(trial.model)
        #: The batches that ``foresee`` is told: all of an update if its batches have to do with each other.
        self.ahead = trial.options.accumulate if trial.hooks.weighs_batches else 1
        #: What the batches of the update at hand become; None if they stay as they are. First, nothing is known.
        self._weigh: Weigh | None = None
        self._foreseen = False

    def foresee(self, batches: Sequence[Batch]) -> None:
        """Let the task see the next batches, before the first batch of an update."""
        trial = self._trial
        if self.ahead == 1 or self.waiting:
            return
        batch, trial.log.batch = trial.log.batch, len(self._rows)
        with trial.options.autocast(trial.device), no_update():
            weigh = trial.hooks.weighed(trial.callable, batches[: self.ahead])
        trial.log.batch = batch
        if self._foreseen and (weigh is None) != (self._weigh is None):
            raise TaskError(UNLIKE)
        self._weigh, self._foreseen = weigh, True

    def __call__(self, batch: Batch) -> None:
        """Train on a batch and note its loss."""
        self.begin()
        self._begin_log()
        self.note(self.take(batch), rows_of(batch))
        if not self.waiting and not self._small:
            # Free the gradients now: the next step makes new ones, and other work may need the memory until then.
            self._clear_gradients()
        self.end()

    def begin(self) -> None:
        """Step the schedules for the batch before, if its gradients wait for an update."""
        if self._schedule_waits:
            for optimizer in self._trial.optimizers:
                _compat.count_as_stepped(optimizer)  # schedules count batches, and torch expects an update before each
            self.step_schedule()

    def end(self) -> None:
        """Step the schedules for a batch, unless its gradients wait for an update.

        If no batch follows, waiting gradients are applied first, at the learning rate of their last batch.
        """
        self._schedule_waits = self.waiting > 0
        if not self._schedule_waits:
            self.step_schedule()

    def take(self, batch: Batch) -> Metrics:
        """Train on a batch; return the values to note."""
        return {"loss": self.step(batch)}

    def step(self, batch: Batch) -> torch.Tensor:
        """Train on a batch; return its loss."""
        loss = self._backward(batch)
        if self.waiting == self._trial.options.accumulate:
            self.update()
        return loss

    def gradients(self, batch: Batch) -> Metrics:
        """Train on a batch up to its gradients; return the values to note. The caller makes the update."""
        return {"loss": self._backward(batch)}

    def all_but_update(self, batch: Batch) -> None:
        """Train on a batch up to its gradients. The caller makes the update and clears the gradients."""
        self._begin_log()
        self.note({"loss": self._backward(batch, clear=False)}, rows_of(batch))
        self.waiting = 0

    def loss(self, batch: Batch) -> torch.Tensor:
        """Note and return the loss of a batch. The caller makes the backward pass and the update."""
        self._begin_log()
        loss = self._loss(batch)
        self.note({"loss": loss.detach()}, rows_of(batch))
        return loss

    def forward(self, batch: Batch) -> None:
        """Compute the loss of a batch, and nothing else."""
        self._loss(batch)

    def _loss(self, batch: Batch) -> torch.Tensor:
        trial = self._trial
        # What the first batch of a unit does, all of them do.
        watched = contextlib.nullcontext() if self._losses else no_update()
        with trial.options.autocast(trial.device), watched:
            loss = trial.hooks.loss(trial.callable, batch if self._weigh is None else self._weigh(batch))
        check_loss(loss)
        return loss

    def _backward(self, batch: Batch, *, clear: bool = True) -> torch.Tensor:
        """Add to the gradients, after clearing those of an earlier update; return the loss."""
        trial, options = self._trial, self._trial.options
        loss = self._loss(batch)
        if clear and not self.waiting:
            self._clear_gradients()
        share = loss if options.accumulate == 1 or self._weigh is not None else loss / options.accumulate
        (share if trial.scaler is None else trial.scaler.scale(share)).backward()  # type: ignore[no-untyped-call]
        self.waiting += 1
        return loss.detach()

    def update(self) -> None:
        """Update the weights with the gradients that there are."""
        self.waiting = 0
        found = None if self.replay is None else self.replay(self)
        self._norms += (self.updated() if found is None else found).values()

    def updated(self) -> Metrics:
        """Update the weights eagerly; return the norm of the gradients, if the task limits it."""
        trial, options = self._trial, self._trial.options
        found: dict[str, torch.Tensor] = {}
        if options.clip_norm is not None:
            if trial.scaler is not None:
                for optimizer in trial.optimizers:
                    trial.scaler.unscale_(optimizer)
            found["norm"] = self._limit_norm(options.clip_norm)
        self._step()
        return found

    def _limit_norm(self, most: float) -> torch.Tensor:
        """Scale the gradients down to a norm, if theirs is larger; return their norm."""
        return torch.nn.utils.clip_grad_norm_(self._trial.model.parameters(), most, foreach=True)

    def _step(self) -> None:
        """Let the optimizers take a step, and update the moving average of the weights."""
        trial, options = self._trial, self._trial.options
        self._step_optimizers()
        if options.ema is not None:
            with torch.no_grad():
                pairs = list(zip(trial.average, trial.model.parameters(), strict=True))
                # A frozen weight that trials share is its own average. Tensors spread over a team have no address.
                pairs = [(mean, one) for mean, one in pairs if mean.data_ptr() != one.data_ptr() or not one.data_ptr()]
                means, weights = [mean for mean, _ in pairs], [weight.detach() for _, weight in pairs]
                _compat.foreach_lerp_(means, weights, 1 - options.ema)

    def _step_optimizers(self) -> None:
        trial = self._trial
        for optimizer in trial.optimizers:
            if trial.scaler is not None:
                trial.scaler.step(optimizer)
            elif self.direct is None or not self.direct(optimizer):
                optimizer.step()
        if trial.scaler is not None:
            trial.scaler.update()

    def _clear_gradients(self) -> None:
        for optimizer in self._trial.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def step_schedule(self) -> None:
        """Step the schedules, if the task steps them after each batch."""
        if self._trial.hooks.lr_step == "batch" and self._trial.schedulers:
            if self._scheduled > self._rated:  # a replayed step
                self._note_rates(self._scheduled)
            self._trial.log.batch = self._scheduled
            for scheduler in by_time(self._trial.schedulers):
                scheduler.step()
            self._trial.log.batch = None
            self._scheduled += 1

    def _begin_log(self) -> None:
        """Let values that are logged until the loss is noted be those of the next batch. Trial steps log nothing."""
        self._trial.log.batch = len(self._rows)

    def _note_rates(self, batch: int) -> None:
        """Log the learning rates of a batch, if the task asks for that."""
        if self._trial.hooks.log_lr:
            self._rated = batch
            note_rates(self._trial, batch)

    def note(self, values: Metrics, *rows: int) -> None:
        """Note the losses of some batches and the rows of each."""
        if (batch := self._trial.log.batch) is not None:
            self._note_rates(batch)
            self._trial.log.batch = None
        self._losses.append(values["loss"].reshape(-1))
        self._rows += rows

    def result(self) -> Metrics:
        """Return the mean loss of the unit. Apply waiting gradients first: none are carried into the next unit."""
        if self.waiting:
            self.update()
        if self._schedule_waits:
            self.step_schedule()
        if self._rated < (last := len(self._rows) - 1):
            # Replayed steps without a schedule of their own: the rates are those of the whole unit.
            self._note_rates(self._rated + 1)
            self._note_rates(last)
        return {"loss": self._mean_loss()}

    def _mean_loss(self) -> RowSum:
        if not self._losses:
            raise TaskError("the unit has no batches: the partition is empty, or smaller than a batch with drop_last")
        # Fetch all losses of a device in one transfer.
        runs = itertools.groupby(self._losses, lambda some: some.device)
        values = [value for _, run in runs for value in torch.cat(list(run)).tolist()]
        for number, value in enumerate(values, 1):
            if not math.isfinite(value):
                after = f", after {values[number - 2]:.3g}{self._norm(number, len(values))}" if number > 1 else ""
                raise NotFinite(f"the loss is {value} in batch {number} of {len(values)}{after}", batch=number)
        if self._weigh is None:
            return RowSum.over(values, self._rows)
        # The loss of an update is the sum over its batches.
        sums = [math.fsum(some) for some in grouped(values, self.ahead)]
        return RowSum.over(sums, [sum(some) for some in grouped(self._rows, self.ahead)])

    def _norm(self, number: int, batches: int) -> str:
        """Return the norm of the gradients in the last update before a batch; empty if it is not known."""
        accumulate = self._trial.options.accumulate
        update = (number - 1) // accumulate
        if not update or len(self._norms) != math.ceil(batches / accumulate):
            return ""
        return f" and gradients of norm {self._norms[update - 1].item():.3g}"


def grouped(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of ``size`` items; the last one may have fewer."""
    iterator = iter(items)
    while group := list(itertools.islice(iterator, size)):
        yield group


def by_time(schedulers: Iterable[LRScheduler]) -> Iterator[LRScheduler]:
    """Yield the schedules that follow batches or epochs alone, and not a metric."""
    return (scheduler for scheduler in schedulers if not isinstance(scheduler, ReduceLROnPlateau))


def is_small(model: torch.nn.Module) -> bool:
    """Whether the weights of a model take at most ``SMALL`` bytes."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters()) <= SMALL


def rows_of(batch: Batch) -> int:
    """Count the rows of a batch: the length of its first column."""
    for value in batch.values() if isinstance(batch, Mapping) else batch:
        return len(value)
    return 0


def on_host(found: tuple[Metrics, int]) -> tuple[Metrics, int]:
    """Return the metrics of a batch with rows that are scored later in the memory of the host."""
    return collected(found[0]), found[1]


def summed(found: Iterable[tuple[Metrics, int]]) -> dict[str, RowSum]:
    """Sum the metrics of many batches, given with the rows of each. Values are fetched from the device only here."""
    found = list(found)
    there = [value for metrics, _ in found for value in metrics.values() if torch.is_tensor(value) and value.is_cuda]
    numbers: dict[int, float] = {}
    for dtype in {value.dtype for value in there}:
        some = [value for value in there if value.dtype == dtype and value.numel() == 1]
        if some:
            numbers |= zip(map(id, some), torch.cat([value.reshape(1) for value in some]).tolist(), strict=True)
    exact: list[Mapping[str, RowSum]] = []
    plain: dict[str, tuple[list[float], list[int]]] = {}
    for metrics, rows in found:
        for name, value in metrics.items():
            if isinstance(value, RowSum):
                exact.append({name: value})
                continue
            means, counts = plain.setdefault(name, ([], []))
            means.append(_number(name, numbers.get(id(value), value)))
            counts.append(rows)
    return add([{name: RowSum.over(*pieces) for name, pieces in plain.items()}, *exact])


def _number(name: str, value: object) -> float:
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) != 1:
        raise TaskError(f"metric {name!r} is an array of shape {shape}: must be one number; return its mean")
    if isinstance(value, str | bytes):
        raise TaskError(f"metric {name!r} is the text {shown(value)}: must be one number")
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TaskError(f"metric {name!r} is {shown(value)}: must be one number") from None


def check_metrics(hook: str, metrics: object) -> Metrics:
    """Return what a hook returned if it maps names to values, else raise TaskError."""
    if not isinstance(metrics, Mapping):
        value = "a tensor" if isinstance(metrics, torch.Tensor) else shown(metrics)
        raise TaskError(f"{hook}() returned {value}: must be a dict of names to numbers, e.g. {{'accuracy': 0.9}}")
    for name in metrics:
        if not isinstance(name, str):
            raise TaskError(f"{hook}() returned the name {name!r}: names of metrics must be text, e.g. 'accuracy'")
    return metrics


@contextlib.contextmanager
def no_update() -> Iterator[None]:
    """Raise TaskError if an optimizer takes a step inside the context, in the same thread."""
    here = threading.get_ident()

    def refuse(optimizer: Optimizer, *_: object) -> None:
        if threading.get_ident() != here:
            return
        raise TaskError(
            f"loss() called {type(optimizer).__name__}.step(): Hopfleet calls backward() and step() with the loss that "
            "it returns; for updates of your own, override train(self, model, batches, config)"
        )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


def check_loss(loss: object) -> None:
    """Raise TaskError unless a loss is a scalar tensor with a gradient."""
    if loss is None:
        raise TaskError("loss() returned None: must be a scalar tensor; its return statement may be missing")
    if not isinstance(loss, torch.Tensor):
        remedy = {
            float: "; return it without .item()",
            tuple: "; return the loss alone",
            dict: "; return the loss alone",
        }
        raise TaskError(f"loss() returned a {type(loss).__name__}: must be a scalar tensor{remedy.get(type(loss), '')}")
    if loss.ndim != 0:
        raise TaskError(f"loss() returned a tensor of shape {tuple(loss.shape)}: must be a scalar; average it")
    if not loss.requires_grad:
        raise TaskError(
            "loss() returned a tensor without gradient: it must depend on parameters of the model that require "
            "gradients, without .detach(), .item(), argmax or torch.no_grad() on the way"
        )
