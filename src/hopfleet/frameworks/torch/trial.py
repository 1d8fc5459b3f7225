"""The two faces of a trial inside the adapter: the hooks of its task, and the live state that training changes.

Both are protocols, so that steps, checkpoints and engines depend on neither the task class nor the session class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hopfleet.domain.batching import Batching
from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import Batch, Batches, EngineCache
from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.step_log import StepLog
from hopfleet.frameworks.torch.options import TrainingOptions
from hopfleet.frameworks.torch.randomness import Streams
from hopfleet.frameworks.torch.shared import SharedTensor

Metrics = Mapping[str, Any]
"""Names to numbers: Python numbers, tensors of one element, or exact sums over rows."""

Model = Any
"""The model as hooks receive it: the module that ``build`` returned, or its compiled form."""

Part = Any
"""A part that ``build`` returned for a trial, or a list of such parts."""

ParameterGroup = dict[str, Any]
"""One entry of ``Optimizer.param_groups``: the parameters and their settings."""


class Weigh(Protocol):
    """An update whose batches have to do with each other. Called with one, return it as ``loss`` receives it."""

    @property
    def number(self) -> torch.Tensor:
        """Return what the batches have to do with each other, in one number."""
        ...

    def __call__(self, batch: Batch) -> Batch: ...


class Hooks(Protocol):
    """A task as one trial sees it: ``self`` in the user's methods."""

    lr_step: str
    log_lr: bool
    config: Config
    #: The steps of a schedule that steps with batches, or with updates.
    steps_per_epoch: int
    total_steps: int
    #: The optimizer that ``build`` returned, or the list of optimizers if ``build`` returned a list.
    optimizer: Part
    lr_scheduler: Part

    @property
    def batching(self) -> Batching | None: ...
    @property
    def batches_per_step(self) -> int: ...
    @property
    def weighs_batches(self) -> bool: ...
    def weighed(self, model: Model, batches: Sequence[Batch]) -> Weigh | None: ...
    def weighed_by(self, number: torch.Tensor) -> Weigh: ...
    def parts(self, config: Config) -> object: ...
    def loss(self, model: Model, batch: Batch) -> torch.Tensor: ...
    def metrics(self, model: Model, batch: Batch) -> Metrics: ...
    def train(self, model: Model, batches: Batches, config: Config) -> Metrics | None: ...
    def with_config(self, config: Config) -> Hooks: ...
    def with_parts(self, parts: Part) -> Hooks: ...


class LiveTrial(Protocol):
    """Everything that a step reads or changes, and everything that a version stores."""

    hooks: Hooks
    cache: EngineCache
    options: TrainingOptions
    device: torch.device
    model: torch.nn.Module
    #: The model as the user's code calls it: compiled, or the model itself.
    callable: Callable[..., object]
    optimizers: list[Optimizer]
    schedulers: list[LRScheduler]
    scaler: torch.amp.GradScaler | None
    #: The moving average of each parameter; empty if the task asks for none.
    average: list[torch.Tensor]
    #: The frozen tensors of the model, which versions refer to.
    shared: list[SharedTensor]
    random: Streams
    counters: dict[str, int]
    #: What is kept from unit to unit, but in no version, by the class that keeps it.
    kept: dict[type, object]
    #: The values of single steps that the unit at hand has logged.
    log: StepLog

    def extra_state(self) -> Tree:
        """Return what else a version stores; None if there is nothing."""
        ...

    def load_extra_state(self, state: Tree) -> None:
        """Restore what ``extra_state`` returned."""
        ...


@dataclass(slots=True)
class TrialContext:
    """The trial at hand, as the hooks of a task see it through ``self``."""

    config: Config
    optimizer: Part = None
    lr_scheduler: Part = None
    scaler: Part = None
    live: LiveTrial | None = None


class SharedTask(Protocol):
    """A task that all trials of a worker share."""

    @property
    def transform(self) -> object: ...

    @property
    def batching(self) -> Batching | None: ...

    def planned(self, batching: Batching | None) -> SharedTask:
        """Return a view of the task whose hooks know the steps of trials."""
        ...

    def for_trial(self, context: TrialContext) -> Hooks:
        """Return a view of the task for one trial: the same attributes, with the trial at hand."""
        ...
