"""What a LightningModule or a callback may need that only a Trainer has: named, with the way to have it here."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

from hopfleet.errors import TaskError

_STEPS = "Hopfleet takes the steps; set self.automatic_optimization = False and take them in training_step"
_BATCHES = "Hopfleet moves batches to the device; override example(self, batch) of the task to change them"
_PARTS = "partitions of the validation data are evaluated apart, on any worker; log the values in validation_step"
_END = "a trial ends when the search says so; use on_train_epoch_end"

HOOKS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "backward",
            "configure_gradient_clipping",
            "lr_scheduler_step",
            "on_after_backward",
            "on_before_backward",
            "on_before_optimizer_step",
            "on_before_zero_grad",
            "optimizer_step",
            "optimizer_zero_grad",
        ),
        _STEPS,
    ),
    **dict.fromkeys(("on_after_batch_transfer", "on_before_batch_transfer", "transfer_batch_to_device"), _BATCHES),
    **dict.fromkeys(
        (
            "on_validation_batch_end",
            "on_validation_batch_start",
            "on_validation_end",
            "on_validation_epoch_end",
            "on_validation_epoch_start",
            "on_validation_start",
        ),
        _PARTS,
    ),
    **dict.fromkeys(("on_fit_end", "on_train_end", "teardown"), _END),
}
"""Hooks that Hopfleet does not call, with the remedy."""

CALLBACKS: Mapping[str, str] = {
    "BatchSizeFinder": "add batch_size to the space",
    "DeviceStatsMonitor": "see `hopfleet doctor` and the records of units",
    "EarlyStopping": "give the experiment a stopping rule, e.g. stop=hop.Patience(...)",
    "EMAWeightAveraging": "set ema in the task, e.g. ema = 0.999",
    "GradientAccumulationScheduler": "set accumulate in the task",
    "LearningRateFinder": "add the learning rate to the space",
    "LearningRateMonitor": "set log_lr = True in the task",
    "ModelCheckpoint": "every version that may be needed is saved; results.best.model() is the best",
    "ModelSummary": "print(results.best.model())",
    "RichModelSummary": "print(results.best.model())",
    "RichProgressBar": "fit() shows the progress of all trials",
    "StochasticWeightAveraging": "set ema in the task, e.g. ema = 0.999",
    "Timer": "give the experiment a budget, e.g. stop=hop.Budget(...)",
    "TQDMProgressBar": "fit() shows the progress of all trials",
    "WeightAveraging": "set ema in the task, e.g. ema = 0.999",
}
"""Callbacks of Lightning that need a Trainer, with the way to have the same here."""

TRAINER: Mapping[str, str] = {
    "datamodule": "give the data to the experiment, with hop.LightningTask.data(datamodule)",
    "is_last_batch": "trials that train together do not know it; use on_train_epoch_end, or WorkerOptions(fuse='off')",
    "max_steps": "use self.trainer.estimated_stepping_batches, the steps of this trial",
    "save_checkpoint": "every version that may be needed is saved; results.best.model() is the best",
    "should_stop": "give the experiment a stopping rule, e.g. stop=hop.Patience(...)",
    "strategy.all_gather": "a trial trains on one device, so there is nothing to gather; use the values as they are",
    "strategy.barrier": "a trial trains on one device, so there is no other process; do without it",
    "train_dataloader": "the experiment makes the batches; self.trainer.num_training_batches is their number",
}
"""Attributes of a Trainer that are asked for often, with the way to have the same here."""


PACKAGES = ("lightning", "pytorch_lightning")
"""The names under which Lightning is installed. Each has classes of its own."""


def base_of(thing: object, name: str) -> Any:
    """Return the class of Lightning with a name that a thing is derived from; None if there is none."""
    kinds = (kind for kind in type(thing).__mro__ if kind.__module__.partition(".")[0] in PACKAGES)
    return next((kind for kind in kinds if kind.__name__ == name), None)


def overrides(thing: object, method: str, name: str) -> bool:
    """Whether a thing overrides a method of the class of Lightning with a name."""
    return getattr(type(thing), method, None) is not getattr(base_of(thing, name), method, None)


def takes_number(module: object, step: str) -> bool:
    """Whether a step takes the number of a batch beside the batch: Lightning lets modules leave it out."""
    parameters = inspect.signature(getattr(module, step)).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    positional = sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    return positional > 1 or Parameter.VAR_POSITIONAL in kinds


def _check_step(module: object, step: str) -> None:
    """Raise TaskError if a step wants more than a batch and its number."""
    parameters = inspect.signature(getattr(module, step)).parameters.values()
    name = type(module).__name__
    if any(parameter.name == "dataloader_iter" for parameter in parameters):
        raise TaskError(
            f"{name}.{step}() takes dataloader_iter, which only a Trainer has: the experiment makes the batches; take "
            "batch and batch_idx"
        )
    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    wanted = [each.name for each in parameters if each.kind in named and each.default is Parameter.empty]
    if len(wanted) > 2:
        raise TaskError(
            f"{name}.{step}() needs {wanted[2]}, but gets a batch and its number, since there is one set of data: give "
            f"it a default, e.g. {wanted[2]}=0"
        )


def check_module(module: object) -> Any:
    """Return a module whose hooks Hopfleet can call. Raises TaskError for one that needs a Trainer."""
    if isinstance(module, type):
        raise TaskError(
            f"build() returned the class {module.__name__}: return an object of it, e.g. {module.__name__}()"
        )
    if base_of(module, "LightningModule") is None:
        raise TaskError(f"build() returned {type(module).__name__}: return a LightningModule")
    name = type(module).__name__
    for hook in ("training_step", "configure_optimizers"):
        if not overrides(module, hook, "LightningModule"):
            raise TaskError(f"{name} has no {hook}(): Hopfleet needs it to train the module")
    for hook, remedy in HOOKS.items():
        if overrides(module, hook, "LightningModule"):
            raise TaskError(f"{name} overrides {hook}(), which only a Trainer calls: {remedy}")
    for step in ("training_step", "validation_step"):
        if overrides(module, step, "LightningModule"):
            _check_step(module, step)
    return module


def check_callbacks(callbacks: Iterable[object]) -> list[Any]:
    """Return callbacks whose hooks Hopfleet can call. Raises TaskError for one that needs a Trainer."""
    checked: list[Any] = []
    for callback in callbacks:
        if isinstance(callback, type):
            name = callback.__name__
            raise TaskError(f"callbacks() returned the class {name}: return objects, e.g. [{name}()]")
        name = type(callback).__name__
        base = base_of(callback, "Callback")
        if base is None:
            raise TaskError(f"callbacks() returned {name}: return callbacks of Lightning")
        for kind in type(callback).__mro__:
            if kind.__name__ in CALLBACKS and kind.__module__.partition(".")[0] in PACKAGES:
                raise TaskError(f"the callback {name} needs a Trainer: {CALLBACKS[kind.__name__]}")
        for hook, remedy in HOOKS.items():
            if hasattr(base, hook) and overrides(callback, hook, "Callback"):
                raise TaskError(f"the callback {name} overrides {hook}(), which only a Trainer calls: {remedy}")
        checked.append(callback)
    return checked


def refuse_attribute(name: str) -> TaskError:
    """Return the error for an attribute of the Trainer that there is not."""
    remedy = TRAINER.get(name, "there is no Trainer behind a trial; do without the attribute, or compute its value")
    return TaskError(f"the module or a callback uses trainer.{name}, which cannot be kept across hops: {remedy}")
