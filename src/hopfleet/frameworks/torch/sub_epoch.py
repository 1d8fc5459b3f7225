"""The model building abstraction of the Cerebro platform (thesis, Figure 3.2), as a task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import torch

from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, Batches
from hopfleet.frameworks.torch.task import TorchTask
from hopfleet.frameworks.torch.trial import Metrics, Model, Part
from hopfleet.phrases import shown


class SubEpochSpec:
    """Models and their sub-epochs. Derive from it, and pass ``spec.task()`` to ``hop.Experiment``.

    ``models`` are those that ``create_models`` returned. ``checkpoint`` is a dict that hops with them, empty at first:
    put there whatever training depends on besides the weights, such as the state dict of an optimizer. ``dataloader``
    yields batches, and ``hyperparams`` is the configuration of the trial.
    """

    def initialize_worker(self) -> None:
        """Prepare a process, before its first models."""

    def create_models(self) -> Sequence[torch.nn.Module]:
        """Return the models of a trial."""
        raise TaskError(f"{type(self).__name__}: override create_models(self) and return a list of models")

    def train(
        self, models: list[Model], checkpoint: dict[str, Part], dataloader: Iterable[Batch], hyperparams: Config
    ) -> Part:
        """Train one sub-epoch; the numbers in the dict that it returns are recorded as ``train_<name>``."""
        raise TaskError(f"{type(self).__name__}: override train(self, models, checkpoint, dataloader, hyperparams)")

    def test(
        self, models: list[Model], checkpoint: dict[str, Part], dataloader: Iterable[Batch], hyperparams: Config
    ) -> Part:
        """Return a dict of metrics, which are means over rows. The data loader has one batch at a time."""
        raise TaskError(f"{type(self).__name__}: override test(self, models, checkpoint, dataloader, hyperparams)")

    def task(self) -> TorchTask:
        """Return the task to train."""
        return SubEpochTask(self)


class Models(torch.nn.Module):
    """The models of a trial, and the checkpoint that hops with them."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.models = torch.nn.ModuleList(models)
        self.checkpoint: dict[str, Part] = {}

    def get_extra_state(self) -> dict[str, Part]:
        return self.checkpoint

    def set_extra_state(self, state: dict[str, Part]) -> None:
        self.checkpoint = state


class SubEpochTask(TorchTask):
    """The task of a ``SubEpochSpec``."""

    def __init__(self, spec: SubEpochSpec) -> None:
        self.spec = spec
        #: The processes that were initialized: none or this one, for all views of the task.
        self._ready: set[int] = set()

    def initialize_worker(self) -> None:
        if os.getpid() not in self._ready:
            self._ready.add(os.getpid())
            self.spec.initialize_worker()

    def build(self, config: Config) -> Part:
        self.initialize_worker()
        models = self.spec.create_models()
        if not isinstance(models, list | tuple) or not all(isinstance(model, torch.nn.Module) for model in models):
            raise TaskError(f"create_models() returned {shown(models)}: must be a list of torch.nn.Module")
        return Models(models)

    def train(self, model: Model, batches: Batches, config: Config) -> Metrics | None:
        result = self.spec.train(list(model.models), model.checkpoint, batches, config)
        return None if result is None else _numbers("train", result)

    def metrics(self, model: Model, batch: Batch) -> Metrics:
        return _numbers("test", self.spec.test(list(model.models), model.checkpoint, [batch], self.config))


def _numbers(name: str, result: Part) -> dict[str, Part]:
    if not isinstance(result, Mapping):
        raise TaskError(f"{name}() returned {shown(result)}: must be a dict of metrics, e.g. {{'loss': 0.3}}")
    return {key: value for key, value in result.items() if isinstance(value, int | float | torch.Tensor)}
