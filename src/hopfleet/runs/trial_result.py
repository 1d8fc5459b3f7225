"""One trial of an experiment's results: its configuration, its metrics, and its model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Never

from hopfleet.domain.secrets import references, revealed
from hopfleet.domain.trial import Config, TrialState
from hopfleet.errors import CheckpointError, MissingMetric, NotFound
from hopfleet.frameworks.base import Framework, Task
from hopfleet.frameworks.folds import refuse_folds
from hopfleet.monitor.history import TrialHistory
from hopfleet.monitor.page import trial_html
from hopfleet.phrases import did_you_mean
from hopfleet.runs.guest import Guest
from hopfleet.runs.place import Place
from hopfleet.safe_text import visible
from hopfleet.store.versions.local import Versions, check
from hopfleet.support.attributes import Signposted
from hopfleet.support.logging import messages
from hopfleet.worker.secrets import read

if TYPE_CHECKING:
    from hopfleet.backends.base import Backend
    from hopfleet.runs.exporting import Exported
    from hopfleet.runs.results import Results


class Metrics(dict[str, float]):
    """The metrics of an epoch by name."""

    def __missing__(self, name: str) -> float:
        there = f"there are: {', '.join(self)}" if self else "no epoch of the trial has ended"
        raise MissingMetric(f"metrics[{name!r}]: no such metric; {did_you_mean(name, self)}{there}")


class TrialResult(Signposted):
    """One trial: its configuration, its metrics and its model."""

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("params", "hyperparameters"), "trial.config"),
        **dict.fromkeys(("value", "values", "score", "metric"), "trial.metrics"),
    }

    def __init__(self, results: Results, trial: TrialHistory) -> None:
        self._results = results
        self._trial = trial

    def _elsewhere(self, name: str) -> str:
        if name in self.metrics:
            return f"trial.metrics[{name!r}]"
        if name in self.config:
            return f"trial.config[{name!r}]"
        return f"trial.chosen[{name!r}]" if name in self.chosen else super()._elsewhere(name)

    def __getitem__(self, name: str) -> Never:
        where = self._elsewhere(name) or "trial.config[NAME] or trial.metrics[NAME]"
        raise TypeError(f"{type(self).__name__!r} object is not subscriptable; write {where}")

    @property
    def id(self) -> str:
        return self._trial.id

    @property
    def config(self) -> Mapping[str, Any]:
        return self._trial.config

    @property
    def chosen(self) -> Mapping[str, Any]:
        """The values that a space that is a function asked for, by name; of other spaces, the configuration."""
        return self._trial.displayed

    @property
    def seed(self) -> int:
        """The seed of Python's, numpy's and the framework's random generators before ``build``."""
        return self._trial.seed

    @property
    def state(self) -> TrialState:
        return self._trial.state

    @property
    def error(self) -> str | None:
        """Why the trial failed, with the traceback if there is one; None if the trial has not failed."""
        if self._trial.error and self._trial.traceback:
            return f"{self._trial.error}\n\n{self._trial.traceback}"
        return self._trial.error

    @property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of each epoch."""
        return [{"epoch": row.epoch, **row.metrics} for row in self._trial.epochs_done]

    @property
    def logged(self) -> dict[str, list[tuple[int, float]]]:
        """The values that ``self.log`` recorded, by name: steps, counted from the trial's beginning, and values."""
        curves = self._results.history.logged(self._trial)
        return {name: list(zip(*points, strict=True)) for name, points in curves.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the best epoch."""
        return Metrics(self._trial.best.metrics if self._trial.best is not None else {})

    @property
    def best_epoch(self) -> int | None:
        return self._trial.best.epoch if self._trial.best is not None else None

    @property
    def origin(self) -> str:
        """Where the trial comes from: ``search``, ``point`` (a point to try first), ``clone`` or ``person``."""
        return self._trial.origin

    @property
    def parent(self) -> str | None:
        """The trial that this one was cloned from."""
        return self._trial.parent or None

    @property
    def begins(self) -> int:
        """The epoch of the parent from which a warm clone continues; 0 for all other trials."""
        return self._trial.begins

    @property
    def visits(self) -> list[list[int]]:
        """The partitions in the order visited, one list per epoch, without visits inherited from a parent."""
        return self._trial.visits

    @property
    def checkpoint(self) -> Path:
        """The safetensors file of the best epoch."""
        return self._file(self._trial.best.version if self._trial.best is not None else None, "best")

    @property
    def last_checkpoint(self) -> Path:
        """The safetensors file of the last epoch trained."""
        return self._file(max(self._trial.saved, default=None), "last")

    def model(self, task: Task | None = None) -> Any:
        """Return the model of the best epoch, ready to predict.

        What ``build`` changes in the process, such as the default dtype, is put back and named once.
        """
        model, guest = self.built(task)
        if guest.changes and self.id not in self._results.told:
            self._results.told.add(self.id)
            messages().warning(
                "%s: build() changed %s; the model was built with that, and this process keeps its own settings: make "
                "the change yourself where you call the model",
                self.id, guest.changes,
            )  # fmt: skip
        return model

    def built(self, task: Task | None) -> tuple[Any, Guest]:
        """Return the model of the best epoch, and its trial as a guest of this process, which runs its hooks."""
        with self.opened(task) as (framework, config, checkpoint):
            model = framework.model(config, checkpoint)
        return model, self._guest

    def export(
        self,
        path: str | os.PathLike[str],
        task: Task | None = None,
        *,
        format: str | None = None,  # noqa: A002
    ) -> Exported:
        """Write the model of the best epoch to a file that can be loaded without Hopfleet, or to a bundle.

        By default the file has the weights in the framework's own format; with PyTorch, the model's own state dict for
        ``safetensors.torch.load_file``. Other formats are "safetensors", "torch" (``torch.load``), "torch.export" and
        "onnx" (whole programs), and "bundle": a folder for ``hop.load_bundle``. What was written is read back, and the
        largest deviation of its outputs on a few training rows is returned.
        """
        from hopfleet.runs.exporting import export_models

        return export_models(self._results, {self.id: 1.0}, path, format, self._results.find_task(task))

    def test(
        self, data: Any, *, task: Task | None = None, workers: int | str = "auto", backend: Backend | str = "local"
    ) -> dict[str, float]:
        """Return the metrics of the best epoch's model on new data; see ``Results.test``."""
        return self._results.test(data, [self.id], task=task, workers=workers, backend=backend)[self.id]

    def predict(
        self,
        data: Any,
        *,
        to: Any = None,
        task: Task | None = None,
        batch_size: int = 1024,
        workers: int | str = "auto",
        backend: Backend | str = "local",
    ) -> Any:
        """Return the best model's predictions for new rows as an Arrow table, in the order of the rows.

        ``data`` is as in ``test``; raw data may lack labels. ``to`` may be ``pandas.DataFrame``, ``iter`` for batches,
        or a .parquet, .csv or .arrow file or a folder to write. A killed call goes on when it is made again.
        """
        from hopfleet.runs.prediction import predict

        found, place = self._results.find_task(task), Place(workers, backend)
        return predict(self._results, {self.id: 1.0}, data, to, found, place, batch_size)

    @contextlib.contextmanager
    def opened(self, task: Task | None) -> Iterator[tuple[Framework, Config, Path]]:
        """Yield the framework with the settings of the run in place, the configuration and the best version."""
        refuse_folds(self._results.definition.get("folds", 0))
        path = self.checkpoint
        assert self._trial.best is not None
        check(path, self._trial.saved[self._trial.best.version].digest)
        config = revealed(self.config, {reference: read(reference) for reference in references(self.config)})
        framework = self._results.find_task(task).framework
        self._guest = Guest(self._results.find_task(task))
        with framework.applied(self._results.definition.get("settings", {})), self._guest.building():
            yield framework, config, path

    def log(self) -> str:
        """Return the output of the trial's code."""
        path = self._results.folder.logs / f"{self.id}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def _file(self, version: int | None, which: str) -> Path:
        if version is None:
            raise NotFound(f"{self.id} has no {which} checkpoint: it is {self.state.value} without a finished epoch")
        folder, saved = self._results.folder.checkpoints, self._trial.saved.get(version)
        if saved is None:
            raise CheckpointError(f"{folder / self.id}: version {version} is not saved")
        path = Versions(folder).path(saved.ref, durable=True)
        if not path.is_file():
            raise CheckpointError(f"{path}: is missing")
        return path

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        return visible(f"<TrialResult {self.id} {self.state.value} {metrics}>")

    def _repr_html_(self) -> str:
        return trial_html(self._trial, self._results.name)
