"""Opened runs: definition, history, trials and models of a run folder, finished or not."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from hopfleet.data import Dataset
from hopfleet.domain.batching import Batching
from hopfleet.domain.secrets import references, revealed
from hopfleet.domain.trial import Config, TrialState
from hopfleet.errors import CheckpointError, MissingMetric, NotFound, TaskError, UsageError
from hopfleet.frameworks.base import Framework, Task
from hopfleet.frameworks.folds import checkpoints
from hopfleet.frameworks.views import ModelT
from hopfleet.monitor.history import TrialHistory
from hopfleet.monitor.page import trial_html
from hopfleet.phrases import did_you_mean, shown
from hopfleet.runs.guest import Guest
from hopfleet.runs.state import apply_journal, empty_history
from hopfleet.runs.verify import find_data
from hopfleet.safe_text import visible
from hopfleet.store.folder import RunFolder, check_trusted
from hopfleet.store.versions.local import Versions, check
from hopfleet.support import code_digests
from hopfleet.support.attributes import Signposted
from hopfleet.support.logging import messages
from hopfleet.worker.secrets import read

TrialT = TypeVar("TrialT", bound="OpenedTrial[Any]")


class Metrics(dict[str, float]):
    """The metrics of an epoch by name."""

    def __missing__(self, name: str) -> float:
        there = f"there are: {', '.join(self)}" if self else "no epoch of the trial has ended"
        raise MissingMetric(f"metrics[{name!r}]: no such metric; {did_you_mean(name, self)}{there}")


class OpenedTrial(Signposted, Generic[ModelT]):
    """A trial of an opened run: its configuration, its metrics, and its model."""

    def __init__(self, run: OpenedRun[Any], trial: TrialHistory) -> None:
        self._run = run
        self._trial = trial

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
        curves = self._run.history.logged(self._trial)
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

    def model(self, task: Task[ModelT] | None = None) -> ModelT:
        """Return the model of the best epoch, ready to predict; with folds, the mean of their models.

        What ``build`` changes in the process, such as the default dtype, is put back and named once.
        """
        models, guest = self.built(task)
        if guest.changes and self.id not in self._run.told:
            self._run.told.add(self.id)
            messages().warning(
                "%s: build() changed %s; the model was built with that, and this process keeps its own settings: make "
                "the change yourself where you call the model",
                self.id, guest.changes,
            )  # fmt: skip
        shares = [1 / len(models)] * len(models)
        self._run.check_shared_folds()
        if len(models) > 1:
            check_ensembles(self._run.find_task(task), len(models))
        made: ModelT = as_one(self._run.find_task(task), models, shares, logits=False)
        return made

    def built(self, task: Task[ModelT] | None) -> tuple[list[ModelT], Guest]:
        """Return the model of the best epoch, or one for each fold, and the trial as a guest of this process."""
        with self.opened(task) as (framework, config, files):
            models: list[ModelT] = [framework.model(config, file) for file in files]
        return models, self._guest

    @contextlib.contextmanager
    def opened(self, task: Task | None) -> Iterator[tuple[Framework, Config, list[Path]]]:
        """Yield the framework with the settings of the run in place, the configuration, and the best version.

        The version is a file, or one for each fold.
        """
        path = self.checkpoint
        assert self._trial.best is not None
        check(path, self._trial.saved[self._trial.best.version].digest)
        config = revealed(self.config, {reference: read(reference) for reference in references(self.config)})
        framework = self._run.find_task(task).framework
        self._guest = Guest(self._run.find_task(task))
        definition = self._run.definition
        with (
            framework.applied(definition.get("settings", {})),
            self._guest.building(),
            checkpoints(path, definition.get("folds", 0)) as files,
        ):
            yield framework, config, files

    def log(self) -> str:
        """Return the output of the trial's code."""
        path = self._run.folder.logs / f"{self.id}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def _file(self, version: int | None, which: str) -> Path:
        if version is None:
            raise NotFound(f"{self.id} has no {which} checkpoint: it is {self.state.value} without a finished epoch")
        folder, saved = self._run.folder.checkpoints, self._trial.saved.get(version)
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
        return trial_html(self._trial, self._run.name)


class OpenedRun(Signposted, Generic[TrialT]):
    """A run folder that is read: its definition, its history and its trials."""

    def __init__(self, folder: RunFolder, *, task: Task | None = None) -> None:
        if not isinstance(folder, RunFolder):
            raise UsageError(f"Results({shown(folder)}): results are opened with hop.load(NAME)")
        self.folder = folder
        self.definition = folder.definition()
        self._task = task
        if task is not None:
            self.find_task()
        self.history = empty_history(self.definition)
        self._read = 0
        #: Trials whose model changes settings of the process, if the user was told.
        self.told: set[str] = set()
        self.refresh()

    @property
    def own_folds(self) -> tuple[Dataset, ...]:
        """The rows as prepared for each fold; none without folds, or if all models have the same rows."""
        return find_data(self.folder, "train").folds if self.definition.get("folds") else ()

    def check_shared_folds(self) -> None:
        """Raise UsageError if each model of a trial takes rows with the statistics of its own fold."""
        if self.own_folds:
            raise UsageError(
                f"{self.name}: each model was trained with the statistics of its own fold, so the models of a trial "
                "are no model of new rows; results.refit() trains one on all rows, and predict() without data returns "
                "what the models of the folds predict for them"
            )

    def refresh(self) -> Self:
        """Read new journal entries, and return these results."""
        for number in apply_journal(self.folder, self.history, self._read):
            self._read = number
        return self

    @property
    def name(self) -> str:
        return str(self.definition["name"])

    @property
    def finished(self) -> bool:
        return bool(self.history.finished)

    @property
    def trials(self) -> list[TrialT]:
        """All trials in the order in which they were added."""
        return [self._opened(trial) for trial in self.history.trials.values()]

    @property
    def best(self) -> TrialT:
        """The trial with the best epoch."""
        best = self.history.best()
        if best is None and any(trial.best for trial in self.history.trials.values()):
            wanted = ", ".join(map(str, self.history.limits)) or f"a number as its {self.history.metric}"
            raise NotFound(f"{self.name} has no trial with {wanted}; results.trials lists all trials")
        if best is None and self.history.failed:
            raise NotFound(f"{self.name}: {self.history.failed}; results.trials[0].error shows why")
        if best is None:
            raise NotFound(f"{self.name} has no trial with a finished epoch yet")
        return self._opened(best)

    @property
    def pareto(self) -> list[TrialT]:
        """The trials that no other trial beats in all metrics of the experiment, in the order in which they were added.

        Trials are compared at their best epoch by the first metric. Trials that violate a limit are left out.
        """
        return [self._opened(trial) for trial in self.history.pareto()]

    def __iter__(self) -> Iterator[TrialT]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.history.trials)

    def __bool__(self) -> bool:
        return True  # also before the first trial

    def __getitem__(self, trial: str) -> TrialT:
        if not isinstance(trial, str) or trial not in self.history.trials:
            count, near = len(self.history.trials), did_you_mean(trial, self.history.trials)
            remedy = f"; results.trials[{trial}] counts from 0" if isinstance(trial, int) else ""
            remedy = remedy or ("" if isinstance(trial, str) else "; results.trials is a list of all trials")
            if isinstance(trial, str) and trial[:1] != "_" and hasattr(type(self), trial):
                remedy = f"; write results.{trial}"
            raise NotFound(f"{trial!r}: no such trial; {near}{self.name} has {count}, starting with t0001{remedy}")
        return self._opened(self.history.trials[trial])

    def find_task(self, task: Task | None = None) -> Task:
        """Return the given task, or the experiment's own task if it can be imported; it knows the steps of trials."""
        return self._own_task(task or self._task).planned(Batching.recorded(self.definition))

    def _own_task(self, task: Task | None) -> Task:
        if isinstance(task, Task):
            return task
        if task is not None:
            made = f"an instance, {task.__name__}()" if isinstance(task, type) else "an instance of the task's class"
            raise UsageError(f"task={shown(task)}: must be {made}")
        module, name = self.definition["task"]["module"], self.definition["task"]["name"]
        remedy = f"pass it, as in model(task={name}())"
        check_trusted(self.folder)
        try:
            kind = getattr(importlib.import_module(module), name)
            if not (isinstance(kind, type) and issubclass(kind, Task)):
                raise UsageError(f"{self.folder.definition_file}: {module}.{name} is not a task; {remedy}")
            return self._as_recorded(kind(), remedy)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"the task {module}.{name} cannot be created here ({error}); {remedy}") from error

    def _as_recorded(self, task: Task, remedy: str) -> Task:
        """Return a task that was created without arguments, if its attributes are those of the experiment's task."""
        code = self.definition.get("code") or {}
        before, now = (_attributes(digests) for digests in (code, code_digests.digests(task)))
        if code and (other := sorted(name for name in {*before, *now} if before.get(name) != now.get(name))):
            raise UsageError(f"the task was created with other values of {', '.join(other)}; {remedy}")
        return task

    def _opened(self, trial: TrialHistory) -> TrialT:
        """Return a trial by its history."""
        raise NotImplementedError


def as_one(task: Task, models: Sequence[Any], shares: Sequence[float], *, logits: bool) -> Any:
    """Return the one model there is, or one whose outputs are the weighted means of those of several."""
    if len(models) == 1:
        return models[0]
    check_ensembles(task)
    return task.framework.ensemble(models, shares, logits=logits)


def check_ensembles(task: Task, folds: int = 0) -> None:
    """Raise TaskError if the task's framework cannot make one model of several, such as those of ``folds``."""
    if type(task.framework).ensemble is Framework.ensemble:
        if folds:
            raise TaskError(
                f"valid='kfold({folds})': new rows are predicted by the mean of the models of all folds, which tasks "
                "of PyTorch, Lightning and Transformers have; results.refit() trains one model on all rows"
            )
        raise TaskError(
            "ensembles: need a task of PyTorch, Lightning or Transformers; results.best is the best single model, and "
            "the predictions of several trials can be averaged"
        )


def _attributes(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of a task's attributes."""
    return {name: digest for name, digest in digests.items() if name.startswith("self.")}
