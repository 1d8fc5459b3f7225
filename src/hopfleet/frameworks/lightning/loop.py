"""The loop that stands in for a Trainer: it counts, calls hooks, and takes the values that a module logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.optim import Optimizer

from hopfleet.domain.batching import Batching
from hopfleet.errors import TaskError
from hopfleet.frameworks.lightning.metrics import fresh, is_metric, state_of
from hopfleet.frameworks.lightning.optimizers import Configured
from hopfleet.frameworks.lightning.refusals import base_of, overrides, refuse_attribute, takes_number
from hopfleet.frameworks.paced import Paced
from hopfleet.frameworks.torch.step_log import put
from hopfleet.frameworks.torch.trial import LiveTrial
from hopfleet.phrases import listed

Logged = list[tuple[dict[str, Any], int]]
"""The values that were logged with each batch, and the rows of the batch."""


class Strategy:
    """The part of a Trainer that manual optimization asks for."""

    def __init__(self, module: Any, optimizers: Sequence[Optimizer], counters: dict[str, int]) -> None:
        self.lightning_module, self._counters = module, counters
        kind = import_module(f"{package_of(module)}.core.optimizer").LightningOptimizer
        self._lightning_optimizers = [kind._to_lightning_optimizer(optimizer, self) for optimizer in optimizers]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refuse_attribute(f"strategy.{name}")

    def backward(self, loss: torch.Tensor, optimizer: None, *arguments: Any, **options: Any) -> None:
        """Compute gradients."""
        loss.backward(*arguments, **options)  # type: ignore[no-untyped-call]

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], **options: Any) -> Any:
        """Let an optimizer take a step, and count it."""
        self._counters["updates"] = self._counters.get("updates", 0) + 1
        return optimizer.step(closure, **options)


class ScheduleOfLoop:
    """A schedule as ``self.lr_schedulers()`` finds it."""

    def __init__(self, schedule: Any) -> None:
        self.scheduler = schedule.schedule if isinstance(schedule, Paced) else schedule


class LastValues(dict[str, Any]):
    """The value logged last under each name, in this unit."""

    def __missing__(self, name: str) -> Any:
        raise TaskError(
            f"trainer.callback_metrics[{name!r}]: there is no such value, only {listed(name, self)}; it has the values "
            "that training_step logged in this unit, since those of validation are known when the epoch is over, "
            "perhaps on another worker; use a stopping rule, or ReduceLROnPlateau as a schedule"
        )


class Loop:
    """The ``trainer`` of a module. Attributes that it does not have are refused by name."""

    logger = None
    loggers: Sequence[Any] = ()
    global_rank = local_rank = 0
    world_size = num_nodes = num_devices = 1
    is_global_zero = True
    sanity_checking = False
    gradient_clip_val = gradient_clip_algorithm = None
    progress_bar_callback = None
    #: The steps of the module that take a batch alone, without its number.
    short_steps: frozenset[str] = frozenset()

    def __init__(self, module: Any, live: LiveTrial, accumulate: int) -> None:
        self._module, self._live = module, live
        self.accumulate_grad_batches = accumulate
        steps = ("training_step", "validation_step")
        self.short_steps = frozenset(step for step in steps if not takes_number(module, step))
        self.callbacks: list[Any] = []
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[ScheduleOfLoop] = []
        self.precision_plugin = import_module(f"{package_of(module)}.plugins.precision").Precision()
        #: The metrics that schedules monitor.
        self.monitors: Sequence[str] = ()
        #: The value logged last under each name.
        self.callback_metrics: dict[str, Any] = LastValues()
        self.training = False
        #: Values of the batch at hand, and of the batches before it in this unit.
        self._values: dict[str, Any] = {}
        self._logged: Logged = []
        #: The number of the next batch in this unit, and in this evaluation.
        self._next = self._next_validation = 0
        #: The number of the batch that closes an epoch; 0 in other units, None if it is unknown.
        self.closing: int | None = None
        #: Whether a callback or the module has ``on_train_batch_end``.
        self._hears_ends = True
        #: The arguments of ``on_train_batch_end`` of a batch whose update has yet to be made.
        self._pending: tuple[Any, Any, int] | None = None

    def adopt(self, made: Configured) -> None:
        """Take over the optimizers and schedules of the module."""
        self.optimizers, self.monitors = made.optimizers, made.monitors
        self.lr_scheduler_configs = [ScheduleOfLoop(schedule) for schedule in made.schedules]
        self.strategy = Strategy(self._module, made.optimizers, self._live.counters)
        hook = "on_train_batch_end"
        own = overrides(self._module, hook, "LightningModule") or hook in vars(self._module)
        self._hears_ends = bool(self.callbacks) or own

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refuse_attribute(name)

    @property
    def should_stop(self) -> bool:
        raise refuse_attribute("should_stop")

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        raise refuse_attribute("should_stop")

    def __deepcopy__(self, memo: dict[int, Any]) -> Loop:
        # Engines copy a module to compute with it; its hooks and logged values belong to the original alone.
        copied = Deaf()
        copied.short_steps = self.short_steps
        return copied

    @property
    def automatic(self) -> bool:
        """Whether Hopfleet takes the steps, and not the module."""
        return bool(self._module.automatic_optimization)

    @property
    def current_epoch(self) -> int:
        return self._live.counters["epochs"]

    @property
    def global_step(self) -> int:
        """Updates made so far. Batches whose gradients wait for an update do not count."""
        if not self.automatic:
            return self._live.counters.get("updates", 0)
        return self._live.counters.get("batches", 0) // self.accumulate_grad_batches

    @property
    def estimated_stepping_batches(self) -> int:
        """The updates until the end of the epochs that the search may train."""
        return self._live.hooks.total_steps

    @property
    def max_epochs(self) -> int:
        return self._batching.epochs

    @property
    def num_training_batches(self) -> int:
        return self._batching.steps_per_epoch()

    @property
    def _batching(self) -> Batching:
        found = self._live.hooks.batching
        if found is None:
            raise TaskError("the numbers of epochs and batches must be read while an experiment trains")
        return found

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch at hand is the last one of its epoch."""
        if self.closing is None:
            raise refuse_attribute("is_last_batch")
        return self._next == self.closing

    @property
    def validating(self) -> bool:
        return not self.training

    def print(self, *arguments: Any, **options: Any) -> None:
        """Print, as ``self.print`` does on the first rank."""
        print(*arguments, **options)  # noqa: T201

    # --------------------------------------------------------------------------------------------------- logging

    def log(self, name: str, value: Any, *arguments: Any, **options: Any) -> None:
        """Take a value that the module logs; it is averaged over rows."""
        if is_metric(value) and not self.training:
            self._values[name] = state_of(name, value)
            return
        # In training, a metric of torchmetrics has the value of the batch.
        if is_metric(value):
            value = value._forward_cache
            if value is None:
                raise TaskError(f"self.log({name!r}, metric): call the metric with the batch first, e.g. metric(x, y)")
        self._values[name] = self.callback_metrics[name] = value.detach() if torch.is_tensor(value) else value
        if self.training and _on_step(*arguments, **options):
            put(self._live.log, name, value)

    def taken(self) -> dict[str, Any]:
        """Return the values that were logged since the last call."""
        values, self._values = self._values, {}
        return values

    # ----------------------------------------------------------------------------------------------------- training

    def step(self, name: str, module: Any, batch: Any, number: int) -> Any:
        """Let a module, or a copy of it, take a step: "training_step" or "validation_step"."""
        step = getattr(module, name)
        return step(batch) if name in self.short_steps else step(batch, number)

    def start_batch(self, batch: Any) -> int:
        """Begin a batch, and the epoch if it is the first batch; return the number of the batch in its unit."""
        self.end_batch()
        counters = self._live.counters
        self.training = True
        if counters.get("started", 0) <= counters["epochs"]:
            if "started" not in counters:
                self._call("on_fit_start")
                self._call("on_train_start")
            counters["started"] = counters["epochs"] + 1
            self._call("on_train_epoch_start")
        number = self._next
        self._next += 1
        counters["batches"] = counters.get("batches", 0) + 1
        self._call("on_train_batch_start", batch, number)
        return number

    def note_batch(self, outputs: Any, batch: Any, number: int, rows: int) -> None:
        """Keep the values of a batch. Its end is told later, when the update is made."""
        self._logged.append((self.taken(), rows))
        if self._hears_ends:
            self._pending = _detached(outputs), batch, number

    def end_batch(self) -> None:
        """Tell of the end of the last batch, whose update is made by now."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            log = self._live.log
            at_hand, log.batch = log.batch, pending[-1]
            self._call("on_train_batch_end", *pending)
            log.batch = at_hand

    def end_unit(self, rows: int, *, last: bool) -> Logged:
        """End the unit, and the epoch if it is the last; return the values that were logged."""
        self.end_batch()
        if last:
            self._call("on_train_epoch_end")
            self._logged.append((self.taken(), rows))
        logged, self._logged = self._logged, []
        # Gradients that waited were applied: they were an update, too.
        counters = self._live.counters
        counters["batches"] = counters.get("batches", 0) + -counters.get("batches", 0) % self.accumulate_grad_batches
        self._next = self._next_validation = 0
        self.callback_metrics = LastValues()
        self.closing = None
        self.training = False
        return logged

    def _call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all callbacks and then of the module, as a Trainer does."""
        for callback in self.callbacks:
            getattr(callback, hook)(self, self._module, *arguments)
        own = getattr(self._module, hook, None)
        if own is not None:
            own(*arguments)

    # -------------------------------------------------------------------------------------------------- validation

    def validated(self, batch: Any) -> Mapping[str, Any]:
        """Return the values that the module logs for a batch of validation data."""
        module, number = self._module, self._next_validation
        self._next_validation += 1
        kept, last = self.taken(), self.callback_metrics
        self.callback_metrics = LastValues(last)
        try:
            if not overrides(module, "validation_step", "LightningModule"):
                return {"loss": loss_of(self.step("training_step", module, batch, number))}
            with fresh(module):
                outputs = self.step("validation_step", module, batch, number)
            values = self.taken()
        finally:
            self._values, self.callback_metrics = kept, last
        if values:
            return values
        if torch.is_tensor(outputs):
            return {"loss": outputs}
        if isinstance(outputs, Mapping) and outputs:
            return outputs
        raise TaskError("validation_step() logged nothing: call self.log('val_loss', loss) in it")

    # -------------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return what callbacks and the module save besides weights."""
        saved: dict[str, Any] = {}
        self._module.on_save_checkpoint(saved)
        return {"callbacks": [callback.state_dict() for callback in self.callbacks], "module": saved}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Give callbacks and the module what they saved."""
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        self._module.on_load_checkpoint(dict(state["module"]))


class Deaf(Loop):
    """The loop of a copy of a module: nothing is counted and nothing is kept."""

    def __init__(self) -> None:
        self.callbacks = []

    def log(self, name: str, value: Any, *arguments: Any, **options: Any) -> None:
        return

    def start_batch(self, batch: Any) -> int:
        return 0

    def note_batch(self, outputs: Any, batch: Any, number: int, rows: int) -> None:
        return


def _on_step(prog_bar: bool = False, logger: Any = None, on_step: bool | None = None, *_: Any, **__: Any) -> bool:
    """Whether the arguments of ``self.log`` after the value ask for the value of each step."""
    return bool(on_step)


def package_of(module: Any) -> str:
    """Return the package that a module's LightningModule comes from: lightning.pytorch or pytorch_lightning."""
    name: str = base_of(module, "LightningModule").__module__
    return name.rpartition(".core.")[0]


def loss_of(outputs: Any) -> Any:
    """Return the loss that ``training_step`` returned, by itself or in a dict."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is None:
        found = f"a dict without 'loss', only {listed('loss', outputs)}" if isinstance(outputs, Mapping) else "None"
        raise TaskError(f"training_step() returned {found}: return the loss, a scalar tensor, or a dict with 'loss'")
    return loss


def _detached(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return {name: _detached(value) for name, value in outputs.items()}
    return outputs.detach() if torch.is_tensor(outputs) else outputs
