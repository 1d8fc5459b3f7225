"""The tasks that users write for PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Config
from hopfleet.errors import MissingExtra, TaskError
from hopfleet.frameworks.base import Batch, Batches, Task

try:
    import torch
except ImportError as error:
    raise MissingExtra("PyTorch", "torch") from error

from hopfleet.frameworks.torch._compat import COMPILER_MODULE
from hopfleet.frameworks.torch.framework import TorchFramework
from hopfleet.frameworks.torch.step_log import put
from hopfleet.frameworks.torch.steps import Steps, grouped
from hopfleet.frameworks.torch.trial import Metrics, Model, Part, TrialContext, Weigh
from hopfleet.frameworks.views import ModelT, call_model_fn


class OfTrial:
    """An attribute that belongs to the trial at hand rather than to the task."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, task: object, owner: type) -> Part:
        return getattr(at_hand(task), self._name)

    def __set__(self, task: TorchTask[Any], value: object) -> None:
        context = dataclasses.replace(at_hand(task))
        setattr(context, self._name, value)
        task._context = context


def at_hand(task: object) -> TrialContext:
    """Return the trial that a view of a task belongs to; an empty one for the task itself."""
    context: TrialContext | None = getattr(task, "_context", None)
    return TrialContext({}) if context is None else context


class TorchTask(Task[ModelT]):
    """A training task in PyTorch. Override ``build`` and ``loss``; the other hooks have defaults.

    In every hook, ``self.config`` is the configuration of the trial at hand, and ``self.optimizer``,
    ``self.lr_scheduler`` and ``self.scaler`` are those that ``build`` returned for the trial. Each trial sees a view of
    the task: it begins with the attributes of the task, and an attribute that a hook sets belongs to the trial.
    """

    #: The trial at hand. The slot is hidden from the task's own attributes.
    __slots__ = ("_context",)
    _context: TrialContext

    preload: Sequence[str] = ("torch", "hopfleet.frameworks.torch.uncompiled", "hopfleet.frameworks.torch.task")

    #: Step the LR scheduler after each "epoch" or after each "batch".
    lr_step: str = "epoch"
    #: Log the learning rate of each step as ``lr``, or as ``lr_0``, ``lr_1`` and so on if there are several.
    log_lr: bool = False

    # Each of these options may be a property that reads self.config. They apply to the default training loop only.
    #: "float32", or "bf16" or "fp16" to compute losses and metrics in that type where it is safe (autocast). With
    #: "tf32", products and convolutions of float32 numbers on CUDA may use TF32; other devices are not affected.
    precision: str = "float32"
    #: Scale gradients down to this norm, over all parameters, if they are larger.
    clip_norm: float | None = None
    #: Update after this many batches with the mean of their gradients; at the end of a unit, with those there are.
    accumulate: int = 1
    #: Store images channel by channel in memory, which can make convolutions faster.
    channels_last: bool = False
    #: Compile the model with torch.compile.
    compile: bool = False
    #: Evaluate, and return in the end, a moving average of the weights; each update keeps this share of the average.
    ema: float | None = None
    #: Use only algorithms that give the same bits each time; operations without one raise. This may be slower.
    deterministic: bool = False
    #: On CUDA, capture whole steps and replay them. Optimizers are then fused or capturable during their updates, and
    #: read learning rates from the device. With False, the constructor's own arithmetic and settings hold.
    capture: bool = True

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.compile is not False and "preload" not in vars(cls):
            cls.preload = (*cls.preload, COMPILER_MODULE)
        for name in ("config", "optimizer", "lr_scheduler", "scaler"):
            # A plain value in the body of a class, say ``optimizer = None``, must not hide that of the trial at hand.
            if name in vars(cls) and not hasattr(vars(cls)[name], "__get__"):
                delattr(cls, name)

    def build(self, config: Config) -> Part:
        """Return the model, its optimizer and, if needed, an LR scheduler and a gradient scaler, as a tuple."""
        raise TaskError(f"{type(self).__name__}: override build(self, config) and return model, optimizer")

    def parts(self, config: Config) -> Part:
        """Return the parts of a trial. Adapters that build on this one make them of what ``build`` returns."""
        return self.build(config)

    def loss(self, model: Model, batch: Batch) -> Part:
        """Return the loss of one mini-batch, a scalar tensor."""
        raise TaskError(
            f"{type(self).__name__}: override loss(self, model, batch), or train(self, model, batches, config)"
        )

    def metrics(self, model: Model, batch: Batch) -> Metrics:
        """Return the metrics of one mini-batch of validation data; they are averaged over rows. Default: the loss."""
        return {"loss": self.loss(model, batch)}

    def train(self, model: Model, batches: Batches, config: Config) -> Metrics | None:
        """Train one sub-epoch. Override this to own the loop; the values returned are recorded as ``train_<name>``."""
        live = at_hand(self).live
        assert live is not None, "train() is called by workers"
        steps = Steps(live)
        for update in grouped(batches, steps.ahead):
            steps.foresee(update)
            for batch in update:
                steps(batch)
        return steps.result()

    def log(self, name: str, value: Part) -> None:
        live = at_hand(self).live
        if live is None:
            raise TaskError(f"self.log({name!r}, ...): must be called while a trial trains, got a task without a trial")
        put(live.log, name, value)

    @property
    def weighs_batches(self) -> bool:
        """Whether the loss of a batch depends on the other batches of its update."""
        return False

    def weighed(self, model: Model, batches: Sequence[Batch]) -> Weigh | None:
        """Look at the batches of an update before the first of them is trained on.

        The gradients of losses of batches that the result has returned are added. None: those of the batches as they
        are, and divided by ``accumulate``.
        """
        return None

    def weighed_by(self, number: torch.Tensor) -> Weigh:
        """Return an update by its number, where another process has looked at the batches."""
        raise NotImplementedError

    def blocks(self, model: Model) -> Sequence[Part] | None:
        """Return the parts of the model that strategies shard, cut or spill one by one, in their order.

        None: the children of an ``nn.Sequential``, or of the model's largest list of modules.
        """
        return None

    # ---------------------------------------------------------------------------------------- the trial at hand

    config: Config = OfTrial()  # type: ignore[assignment]
    #: The optimizer that ``build`` returned; a list if ``build`` returned a list.
    optimizer: Part = OfTrial()
    #: The LR scheduler that ``build`` returned; a list if there are several.
    lr_scheduler: Part = OfTrial()
    scaler: Part = OfTrial()

    def for_trial(self, context: TrialContext) -> Self:
        """Return a view of this task for one trial. An attribute that a hook sets belongs to the trial."""
        view = self._view(context)
        object.__setattr__(view, "__dict__", dict(vars(self)))
        return view

    def _view(self, context: TrialContext) -> Self:
        view = self.for_config(context.config)
        object.__setattr__(view, "_context", context)
        return view

    def with_config(self, config: Config) -> Self:
        """Return a view of this task for the trial at hand, with another configuration."""
        return self._view(dataclasses.replace(at_hand(self), config=config))

    def with_parts(self, parts: Part) -> Self:
        """Return a view of this task for the trial at hand, with something else as optimizer, schedule and scaler."""
        return self._view(dataclasses.replace(at_hand(self), optimizer=parts, lr_scheduler=parts, scaler=parts))

    # ----------------------------------------------------------------------------------------------- for workers

    @property
    def framework(self) -> TorchFramework:
        return TorchFramework(self, owns_loop=type(self).train is not TorchTask.train)


@explained
class FunctionTask(TorchTask):
    """The Cerebro paper's three functions as a task.

    ``input_fn(batch)`` turns a batch of the data into the input of the other functions; ``model_fn(config)`` returns
    model, optimizer and, if needed, an LR scheduler (``model_fn(config, task)`` may read ``task.total_steps`` and
    ``task.steps_per_epoch``); ``train_fn(model, optimizer, batches, config)`` runs one
    sub-epoch and returns a dict of metrics. In evaluation ``train_fn`` is called with ``optimizer=None``, with
    gradients off and the model in evaluation mode, one batch at a time: it must not step then.
    """

    def __init__(
        self,
        input_fn: Callable[[Batch], Any],
        model_fn: Callable[[Config], Part],
        train_fn: Callable[[Model, Part, Iterable[Any], Config], Metrics | None],
    ) -> None:
        for name, function in (("input_fn", input_fn), ("model_fn", model_fn), ("train_fn", train_fn)):
            if not callable(function):
                raise TaskError(f"{name}={function!r}: must be a function")
        self.input_fn, self.model_fn, self.train_fn = input_fn, model_fn, train_fn

    def build(self, config: Config) -> Part:
        return call_model_fn(self.model_fn, config, self)

    def train(self, model: Model, batches: Batches, config: Config) -> Metrics | None:
        return self.train_fn(model, self.optimizer, map(self.input_fn, batches), config)

    def metrics(self, model: Model, batch: Batch) -> Metrics:
        result = self.train_fn(model, None, iter([self.input_fn(batch)]), self.config)
        if not isinstance(result, Mapping):
            raise TaskError(f"train_fn returned {result!r}: must be a dict of metrics, e.g. {{'loss': 0.3}}")
        return result
