"""The loop that stands in for a Trainer: it counts, calls hooks, and takes the values that a module logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.optim import Optimizer

from hopfleet.domain.batching import Batching
from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import TaskError
from hopfleet.frameworks.lightning.logged import ONCE, REDUCTIONS, Asked, Reduced, as_number
from hopfleet.frameworks.lightning.metrics import check_logged, fresh, is_metric, place_of, state_of
from hopfleet.frameworks.lightning.optimizers import Configured
from hopfleet.frameworks.lightning.outputs import check_outputs, loss_of, told
from hopfleet.frameworks.lightning.refusals import base_of, overrides, refuse_attribute, takes_number
from hopfleet.frameworks.paced import Paced
from hopfleet.frameworks.torch.step_log import put
from hopfleet.frameworks.torch.trial import LiveTrial
from hopfleet.frameworks.whole_set import States
from hopfleet.phrases import listed

Logged = list[tuple[dict[str, Any], int]]
"""Values that were logged, and the rows that each stands for."""


class Strategy:
    """The part of a Trainer that manual optimization asks for."""

    def __init__(self, module: Any, optimizers: Sequence[Optimizer], live: LiveTrial) -> None:
        self.lightning_module, self._live = module, live
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
        counters = self._live.counters
        counters["updates"] = counters.get("updates", 0) + 1
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
        #: The hook or step that is running, and the rows of the batch at hand.
        self._hook, self._rows = "", 0
        #: Values of the batch at hand of an evaluation, and those of this unit.
        self._values: dict[str, Any] = {}
        self._logged: Logged = []
        #: The values that steps have logged with a reduction, joined over the batches of the epoch.
        self._reduced: dict[str, torch.Tensor] = {}
        #: The metrics that were logged in this epoch: their places in the module, and whether they count at its end.
        self._metrics: dict[str, tuple[int, bool]] = {}
        #: Rows of batches without a loss in this unit.
        self._without_loss = 0
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
        self.strategy = Strategy(self._module, made.optimizers, self._live)
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
        """Take a value that the module logs."""
        asked = Asked(*arguments, **options)
        reduction = asked.reduction(name, self._hook)
        metric = is_metric(value)
        if not metric:
            self.callback_metrics[name] = value.detach() if torch.is_tensor(value) else value
        if self.training:
            self._log_training(name, value, asked, reduction)
        elif asked.on_epoch is not False:
            rows = asked.batch_size
            if metric:
                value = state_of(name, value)
            elif reduction != "mean":
                value = States(Reduced(reduction), {"value": as_number(name, value)})
            elif rows is not None:
                value = RowSum.of(as_number(name, value).item(), rows)
            self._values[name] = value.detach() if torch.is_tensor(value) else value

    def _log_training(self, name: str, value: Any, asked: Asked, reduction: str) -> None:
        rows = self._rows if asked.batch_size is None else asked.batch_size
        if is_metric(value):
            whole = self._hook in ONCE or bool(asked.on_epoch)
            self._metrics[name] = place_of(name, value, self._module), whole
            # Where it does not count at the end of the epoch, a metric of torchmetrics has the value of the batch.
            value = value._forward_cache
            if value is None and not whole:
                raise TaskError(f"self.log({name!r}, metric): call the metric with the batch first, e.g. metric(x, y)")
            self.callback_metrics[name] = value
        else:
            whole = False
        if asked.on_step and value is not None:
            put(self._live.log, name, value)
        if whole or asked.on_epoch is False:
            return
        if self._hook == "on_train_epoch_end" and (
            name in self._reduced or any(name in one for one, _ in self._logged)
        ):
            raise TaskError(
                f"self.log({name!r}, ...): on_train_epoch_end() and a step log it; use another name, or log it with "
                "on_step=True, on_epoch=False in the step"
            )
        if reduction == "mean":
            self._logged.append(({name: value.detach() if torch.is_tensor(value) else value}, rows))
        else:
            number = as_number(name, value)
            before = self._reduced.get(name)
            self._reduced[name] = number if before is None else REDUCTIONS[reduction](before, number)

    # ----------------------------------------------------------------------------------------------------- training

    def step(self, name: str, module: Any, batch: Any, number: int) -> Any:
        """Let a module, or a copy of it, take a step: "training_step" or "validation_step"."""
        self._hook = name
        step = getattr(module, name)
        return step(batch) if name in self.short_steps else step(batch, number)

    def start_batch(self, batch: Any, rows: int) -> int | None:
        """Begin a batch, and the epoch if it is the first batch. Return its number, None if the epoch was ended."""
        self.end_batch()
        counters, epoch = self._live.counters, self._live.counters["epochs"] + 1
        self.training, self._rows = True, rows
        if counters.get("started", 0) < epoch:
            if "started" not in counters:
                self._call("on_fit_start")
                self._call("on_train_start")
            counters["started"], counters["number"] = epoch, 0
            self._call("on_train_epoch_start")
        self._next += 1
        if counters.get("ended", 0) < epoch:
            number = counters.get("number", 0)
            counters["number"] = number + 1
            if self._call("on_train_batch_start", batch, number) != -1:
                return number
            self._end_epoch(epoch)
        else:
            self._mute(True)
        self._without_loss += rows
        return None

    def _end_epoch(self, epoch: int) -> None:
        """Let the remaining batches of the epoch pass. Gradients that wait are dropped, as a Trainer does."""
        if self.automatic and self._live.options.ema is not None:
            raise TaskError("on_train_batch_start() returned -1: must not be used with ema, which counts all batches")
        counters = self._live.counters
        counters["ended"] = epoch
        counters["batches"] = counters.get("batches", 0) // self.accumulate_grad_batches * self.accumulate_grad_batches
        for optimizer in self.optimizers if self.automatic else ():
            optimizer.zero_grad()

    def _mute(self, muted: bool) -> None:
        """Let schedules count batches, or not."""
        for schedule in self._live.schedulers:
            if isinstance(schedule, Paced):
                schedule.muted = muted

    def skipped(self) -> torch.Tensor:
        """Return a loss without gradients for the model: the batch leaves it as it is, while its update counts."""
        if self._live.scaler is not None:
            raise TaskError(
                "training_step() returned None, or on_train_batch_start() -1: must not be used with precision='fp16', "
                "whose scale follows the gradients of each update"
            )
        return torch.zeros((), device=self._live.device, requires_grad=True)

    def note_batch(self, outputs: Any, batch: Any, number: int) -> None:
        """Note that a batch was trained. Its end is told later, when the update is made."""
        counters = self._live.counters
        counters["batches"] = counters.get("batches", 0) + 1
        if outputs is None:
            self._without_loss += self._rows
        if self._hears_ends:
            share = self.accumulate_grad_batches if self.automatic else 1
            self._pending = told(outputs, share), batch, number

    def end_batch(self) -> None:
        """Tell of the end of the last batch, whose update is made by now."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            log = self._live.log
            at_hand, log.batch = log.batch, self._next - 1
            self._call("on_train_batch_end", *pending)
            log.batch = at_hand

    def end_unit(self, *, last: bool) -> Logged:
        """End the unit, and the epoch if it is the last; return the values that were logged."""
        # Gradients that waited were applied: they were an update, too.
        counters = self._live.counters
        counters["batches"] = counters.get("batches", 0) + -counters.get("batches", 0) % self.accumulate_grad_batches
        self.end_batch()
        if last:
            self._call("on_train_epoch_end")
            self._log_epoch()
        logged, self._logged = self._logged, []
        self._next = self._without_loss = 0
        self.callback_metrics = LastValues()
        self.closing = None
        self.training = False
        self._mute(False)
        return logged

    def _log_epoch(self) -> None:
        """Log what counts over the whole epoch, and let metrics begin anew."""
        parts = list(self._module.modules())
        whole = {name: parts[place].compute() for name, (place, counts) in self._metrics.items() if counts}
        self._logged += [({name: value}, 1) for name, value in {**self._reduced, **whole}.items()]
        for place, _ in self._metrics.values():
            parts[place].reset()
        self._metrics, self._reduced = {}, {}

    def with_loss(self, loss: RowSum) -> dict[str, RowSum]:
        """Return the mean loss of a unit without the batches that had none."""
        rows = loss.rows - self._without_loss
        return {"loss": RowSum(loss.total, rows)} if rows else {}

    def _call(self, hook: str, *arguments: Any) -> Any:
        """Call a hook of all callbacks and then of the module, as a Trainer does; return what the module returns."""
        self._hook = hook
        for callback in self.callbacks:
            getattr(callback, hook)(self, self._module, *arguments)
        own = getattr(self._module, hook, None)
        return None if own is None else own(*arguments)

    # -------------------------------------------------------------------------------------------------- validation

    def begin_evaluation(self) -> None:
        """Count batches anew."""
        self._next_validation = 0

    def validated(self, batch: Any) -> Mapping[str, Any]:
        """Return the values that the module logs for a batch of validation data."""
        module, number = self._module, self._next_validation
        self._next_validation += 1
        last = self.callback_metrics
        self._values, self.callback_metrics = {}, LastValues(last)
        try:
            if not overrides(module, "validation_step", "LightningModule"):
                outputs = check_outputs(self.step("training_step", module, batch, number))
                return {"loss": RowSum(0, 0) if outputs is None else loss_of(outputs)}
            with fresh(module):
                outputs = self.step("validation_step", module, batch, number)
                check_logged(module, self._values.values())
            values = self._values
        finally:
            self._values, self.callback_metrics = {}, last
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
        return {
            "callbacks": [callback.state_dict() for callback in self.callbacks],
            "module": saved,
            "reduced": dict(self._reduced),
            "metrics": dict(self._metrics),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Give callbacks and the module what they saved."""
        for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(saved)
        self._module.on_load_checkpoint(dict(state["module"]))
        self._reduced, self._metrics = dict(state.get("reduced", {})), dict(state.get("metrics", {}))


class Deaf(Loop):
    """The loop of a copy of a module: nothing is counted and nothing is kept."""

    def __init__(self) -> None:
        self.callbacks = []

    def log(self, name: str, value: Any, *arguments: Any, **options: Any) -> None:
        return

    def start_batch(self, batch: Any, rows: int) -> int:
        return 0

    def skipped(self) -> torch.Tensor:
        raise TaskError("training_step() returned None: trials whose steps may do so cannot be stacked")

    def note_batch(self, outputs: Any, batch: Any, number: int) -> None:
        return


def package_of(module: Any) -> str:
    """Return the package that a module's LightningModule comes from: lightning.pytorch or pytorch_lightning."""
    name: str = base_of(module, "LightningModule").__module__
    return name.rpartition(".core.")[0]
