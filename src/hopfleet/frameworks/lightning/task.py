"""The tasks that users write for Lightning."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Config
from hopfleet.errors import MissingExtra, TaskError
from hopfleet.frameworks.base import Batch, Batches, EngineCache, Flotilla, IsolationError
from hopfleet.frameworks.example import ExampleTask
from hopfleet.frameworks.views import ModelT

try:
    import lightning.pytorch  # noqa: F401
except ImportError as error:
    if importlib.util.find_spec("pytorch_lightning") is None:
        raise MissingExtra("Lightning", "lightning") from error

from hopfleet.frameworks.lightning.loaders import data_of
from hopfleet.frameworks.lightning.loop import Loop
from hopfleet.frameworks.lightning.optimizers import configured
from hopfleet.frameworks.lightning.outputs import check_outputs, loss_of
from hopfleet.frameworks.lightning.refusals import base_of, check_callbacks, check_module
from hopfleet.frameworks.lightning.session import LightningSession
from hopfleet.frameworks.teams import TeamTrainer
from hopfleet.frameworks.torch.framework import TorchFramework
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import rows_of
from hopfleet.frameworks.torch.task import TorchTask, at_hand
from hopfleet.frameworks.torch.trial import Metrics, Model, Part


class LightningTask(TorchTask[ModelT], ExampleTask[ModelT]):
    """A training task with a LightningModule. Override ``build`` and return the module.

    ``training_step`` and ``validation_step`` get what ``example`` makes of a batch: by default the columns ``x`` and
    ``y``. Values that the module logs are reduced as it asks, by default to means over rows: those of
    ``validation_step`` under their names, those of ``training_step`` as ``train_<name>``. Options of a Trainer are
    attributes of the task: ``precision``, ``clip_norm`` and ``accumulate``.
    """

    preload: Sequence[str] = (*TorchTask.preload, "hopfleet.frameworks.lightning.task")

    #: Schedules have their intervals from ``configure_optimizers``.
    lr_step: str = "batch"
    #: Captured steps would neither count batches nor log values.
    capture: bool = False

    def build(self, config: Config) -> Part:
        """Return the LightningModule of a configuration."""
        raise TaskError(f"{type(self).__name__}: override build(self, config) and return a LightningModule")

    def callbacks(self, config: Config) -> Sequence[Any]:
        """Return callbacks of Lightning that follow the training; what they keep hops with the model."""
        return ()

    @staticmethod
    def data(module: Any) -> dict[str, Any]:
        """Return the data sets of a LightningDataModule as arguments of an experiment: ``train`` and ``valid``.

        The experiment chooses the batch size and the order of rows. A loader that does more, with a sampler or a
        ``collate_fn``, is refused.
        """
        return data_of(module)

    # ----------------------------------------------------------------------------------------------- for workers

    @property
    def batches_per_step(self) -> int:
        return self.accumulate

    def parts(self, config: Config) -> Part:
        module = check_module(self.build(config))
        if self.compile:
            raise TaskError(
                "compile=True: the methods of a LightningModule are not compiled; compile its network in __init__, "
                "e.g. self.net = torch.compile(net)"
            )
        live = at_hand(self).live
        assert live is not None, "parts() is called by workers"
        loop = Loop(module, live, self.accumulate)
        attach(module, loop)
        loop.callbacks = check_callbacks([*self.callbacks(config), *_listed(module.configure_callbacks())])
        for callback in loop.callbacks:
            callback.setup(loop, module, "fit")
        module.setup("fit")
        module.configure_model()
        made = configured(module.configure_optimizers(), self.accumulate)
        if len(made.optimizers) > 1 and module.automatic_optimization:
            raise TaskError(
                f"configure_optimizers() returned {len(made.optimizers)} optimizers: several need "
                "self.automatic_optimization = False, and steps that training_step takes"
            )
        loop.adopt(made)
        return module, made.optimizers, made.schedules

    def loss(self, model: Model, batch: Batch) -> Part:
        outputs = self._step(model, batch)
        return model.trainer.skipped() if outputs is None else loss_of(outputs)

    def metrics(self, model: Model, batch: Batch) -> Metrics:
        return model.trainer.validated(self.example(batch))  # type: ignore[no-any-return]

    def train(self, model: Model, batches: Batches, config: Config) -> Metrics | None:
        if model.automatic_optimization:
            return super().train(model, batches, config)
        for batch in batches:
            self._step(model, batch)
        return None

    def _step(self, model: Model, batch: Batch) -> Any:
        """Let the module compute a training step."""
        loop: Loop = model.trainer
        example = self.example(batch)
        number = loop.start_batch(example, rows_of(batch))
        if number is None:
            return None
        outputs = loop.step("training_step", model, example, number)
        loop.note_batch(check_outputs(outputs, automatic=model.automatic_optimization), example, number)
        return outputs

    @property
    def framework(self) -> LightningFramework:
        return LightningFramework(self, owns_loop=False)


class LightningFramework(TorchFramework):
    """PyTorch, for a task with a LightningModule. Its trials train on one device each."""

    strategies = TeamTrainer.strategies
    team_shape = TeamTrainer.team_shape

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> LightningSession:
        return LightningSession(self._task, config, seed=seed, device=placement.device, threads=threads, cache=cache)

    def model(self, config: Config, checkpoint: Path) -> Any:
        module = super().model(config, checkpoint)
        attach(module, None)
        return module

    def explain(self, error: BaseException) -> None:
        super().explain(error)
        if hint := _hint(error):
            error.__notes__ = [hint, *getattr(error, "__notes__", ())]

    def flotilla(self, sessions: Sequence[TorchSession], *, fast: bool = False) -> Flotilla:
        if not all(session.model.automatic_optimization for session in sessions):
            raise IsolationError("their modules take their own steps (automatic_optimization is False)")
        return super().flotilla(sessions, fast=fast)

    def gains(self, session: TorchSession, *, fast: bool) -> bool:
        return bool(session.model.automatic_optimization) and super().gains(session, fast=fast)


def attach(module: Any, loop: Loop | None) -> None:
    """Make a loop the trainer of a module and of modules inside of it; None detaches them."""
    for part in module.modules():
        if base_of(part, "LightningModule") is not None:
            part._trainer = loop
            if loop is not None:
                part.log = loop.log
            else:
                vars(part).pop("log", None)


def _hint(error: BaseException) -> str:
    """Return what to write instead of code that finds no logger, or columns by name; empty for other errors."""
    name = getattr(error, "name", None) or ""
    if isinstance(error, AttributeError) and error.obj is None and name.startswith(("experiment", "log_")):
        return "self.logger is None: record values with self.log(), and pass trackers to the experiment as callbacks"
    if isinstance(error, TypeError) and "tuple indices must be integers or slices, not str" in str(error):
        return "steps get what example(self, batch) returns, by default x and y; override it to return the batch itself"
    return ""


def _listed(callbacks: Any) -> Sequence[Any]:
    return callbacks if isinstance(callbacks, list | tuple) else [callbacks]
