"""Results of an experiment, read from its journal and checkpoints.

Results of finished and of running experiments can be opened from any process; ``refresh`` reads new journal entries.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Never

from hopfleet.domain.secrets import references, revealed
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Config, TrialState
from hopfleet.domain.unit import Work
from hopfleet.errors import CheckpointError, HopfleetError, JournalError, MissingMetric, NotFound, UsageError, describe
from hopfleet.frameworks.base import Framework, Task
from hopfleet.frameworks.folds import refuse_folds
from hopfleet.monitor.charts.canvas import save
from hopfleet.monitor.history import Span, TrialHistory
from hopfleet.monitor.page import results_html, trial_html
from hopfleet.phrases import did_you_mean, shown
from hopfleet.runs.place import Place
from hopfleet.runs.state import empty_history
from hopfleet.store.folder import RunFolder, check_trusted, find_run
from hopfleet.store.local import MALFORMED, has_journal, open_journal
from hopfleet.store.versions.local import Versions, check
from hopfleet.support.attributes import Signposted
from hopfleet.support.files import read_json
from hopfleet.support.text import visible
from hopfleet.worker.secrets import read

if TYPE_CHECKING:
    from hopfleet.backends.base import Backend
    from hopfleet.runs.exporting import Exported
    from hopfleet.runs.verify import Verdict


@explained
def load(name: str | os.PathLike[str], *, task: Task | None = None) -> Results:
    """Return the results of an experiment by its name or run folder, finished or not. Only models need a ``task``."""
    return Results(find_run(name), task=task)


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
        return f"trial.config[{name!r}]" if name in self.config else super()._elsewhere(name)

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
        """Return the model of the best epoch, ready to predict."""
        with self.opened(task) as (framework, config, checkpoint):
            return framework.model(config, checkpoint)

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
        with framework.applied(self._results.definition.get("settings", {})):
            yield framework, config, path

    def log(self) -> str:
        """Return the output of the trial's code."""
        path = self._results.folder.logs / f"{self.id}.log"
        return path.read_text(errors="replace") if path.is_file() else ""

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


class Results(Signposted):
    """All trials of an experiment. ``best`` is the trial with the best epoch by the experiment's metric."""

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("best_trial", "get_best_result", "get_best_trial"), "results.best"),
        **dict.fromkeys(("best_config", "best_params", "config"), "results.best.config"),
        **dict.fromkeys(("best_value", "best_score", "metrics"), "results.best.metrics"),
        **dict.fromkeys(("best_model", "model"), "results.best.model()"),
        **dict.fromkeys(("save", "to_csv", "export"), "results.dataframe().to_csv(PATH)"),
        **dict.fromkeys(("get_dataframe", "trials_dataframe", "cv_results_"), "results.dataframe()"),
        **dict.fromkeys(("fit", "resume"), "experiment.fit(), which goes on with what is left to do"),
        "predict": "results.best.predict(DATA)",
    }

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
        self.refresh()

    def refresh(self) -> Results:
        """Read new journal entries, and return these results."""
        if has_journal(self.folder):
            with contextlib.closing(open_journal(self.folder)) as journal:
                for number, time, message in journal.read(self._read):
                    try:
                        self.history.apply(time, message)
                    except HopfleetError:
                        raise
                    except MALFORMED as error:
                        raise JournalError(
                            f"{journal.path}: is damaged: message {number} does not fit those before it "
                            f"({describe(error)}); {self.folder.rescue}"
                        ) from error
                    self._read = number
        return self

    @property
    def name(self) -> str:
        return str(self.definition["name"])

    @property
    def finished(self) -> bool:
        return bool(self.history.finished)

    @property
    def trials(self) -> list[TrialResult]:
        """All trials in the order in which they were added."""
        return [TrialResult(self, trial) for trial in self.history.trials.values()]

    @property
    def best(self) -> TrialResult:
        """The trial with the best epoch."""
        best = self.history.best()
        if best is None and any(trial.best for trial in self.history.trials.values()):
            wanted = ", ".join(map(str, self.history.limits)) or f"a {self.history.metric} that is a number"
            raise NotFound(f"{self.name} has no trial with {wanted}; results.trials lists all trials")
        if best is None and self.history.failed:
            raise NotFound(f"{self.name}: {self.history.failed}; results.trials[0].error shows why")
        if best is None:
            raise NotFound(f"{self.name} has no trial with a finished epoch yet")
        return TrialResult(self, best)

    @property
    def pareto(self) -> list[TrialResult]:
        """The trials that no other trial beats in all metrics of the experiment, in the order in which they were added.

        Trials are compared at their best epoch by the first metric. Trials that violate a limit are left out.
        """
        return [TrialResult(self, trial) for trial in self.history.pareto()]

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.history.trials)

    def __bool__(self) -> bool:
        return True  # also before the first trial

    def __getitem__(self, trial: str) -> TrialResult:
        if not isinstance(trial, str) or trial not in self.history.trials:
            count, near = len(self.history.trials), did_you_mean(trial, self.history.trials)
            remedy = f"; results.trials[{trial}] counts from 0" if isinstance(trial, int) else ""
            remedy = remedy or ("" if isinstance(trial, str) else "; results.trials is a list of all trials")
            if isinstance(trial, str) and trial[:1] != "_" and hasattr(type(self), trial):
                remedy = f"; write results.{trial}"
            raise NotFound(f"{trial!r}: no such trial; {near}{self.name} has {count}, starting with t0001{remedy}")
        return TrialResult(self, self.history.trials[trial])

    def dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per trial."""
        from hopfleet.monitor.frame import dataframe

        return dataframe(self.history)

    def plot(self, kind: str = "curves", path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Draw a chart into ``path``, or into plots/KIND.png in the run folder, and return the matplotlib figure.

        A notebook displays the figure if it is the value of a cell; in a script, its ``show()`` opens a window.
        Kinds are "curves", "gantt", "parallel", "importance", "rungs", "lineage" and "pareto". The options depend on
        the kind: ``metric`` for curves and importance, ``epoch`` for importance, ``metrics`` and ``modes`` for pareto.
        """
        from hopfleet.monitor.charts.charts import draw_chart

        figure = draw_chart(self.history, kind, **self._completed(kind, options))
        save(figure, self._picture(path, f"{kind}.png"))
        return figure

    def plot_data(self, kind: str = "curves", **options: Any) -> dict[str, Any]:
        """Return the data of a chart as plain values that JSON can hold."""
        from hopfleet.monitor.charts.charts import chart_data

        return chart_data(self.history, kind, **self._completed(kind, options))

    def _completed(self, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options, completed with defaults from the run folder."""
        objectives = self.history.objectives
        if kind == "gantt":
            return {"predicted": self._predicted(), **options}
        if kind == "pareto" and "metrics" not in options and len(objectives) > 1:
            return {"metrics": [name for name, _ in objectives], "modes": [mode for _, mode in objectives], **options}
        return dict(options)

    def gantt(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the workers' schedule, with the predicted schedule below if there is one: ``plot("gantt", path)``."""
        return self.plot("gantt", path)

    def _predicted(self) -> list[Span]:
        prediction = self.folder.prediction() or {"spans": ()}
        return [
            Span(worker, trial, epoch, partition, Work(work), started, ended)
            for worker, trial, epoch, partition, work, started, ended in prediction["spans"]
        ]

    def test(
        self,
        data: Any,
        trials: Sequence[str] = (),
        *,
        top: int = 1,
        task: Task | None = None,
        workers: int | str = "auto",
        backend: Backend | str = "local",
    ) -> dict[str, dict[str, float]]:
        """Return the metrics of the ``top`` best trials, or of the ``trials`` given, on new data, the best first.

        ``data`` is a data set, its folder, or any source of ``hop.partition``. If ``hop.prepare`` made the training
        data, files and tables are raw data, which pass through the same recipe. Workers evaluate the models of the best
        epochs, a partition at a time. A killed call goes on when it is made again.
        """
        from hopfleet.runs.evaluation import measure_trials

        return measure_trials(self, data, trials, top, self.find_task(task), Place(workers, backend))

    @property
    def tests(self) -> list[dict[str, Any]]:
        """The tests of trials and ensembles so far, in order: the time, data, models and metrics of each."""
        return sorted((read_json(path) for path in self.folder.tests.glob("*.json")), key=lambda each: each["time"])

    def refit(
        self,
        trial: str | None = None,
        *,
        on: Any = "train+valid",
        epochs: int | str = "best",
        name: str | None = None,
        task: Task | None = None,
        workers: int | str = "auto",
        backend: Backend | str = "local",
        overwrite: bool = False,
        quiet: bool = False,
    ) -> Results:
        """Train the best configuration, or a ``trial``'s, anew on training and validation data; return its results.

        The new experiment, NAME-refit by default, trains until the trial's best epoch. ``on`` may also be other data.
        """
        from hopfleet.experiment.refit import refit

        found = self[trial] if trial else self.best
        return refit(self, found, on, epochs, name, self.find_task(task), workers, backend, overwrite, quiet)

    def verify(self) -> Verdict:
        """Check the run folder against its journal: invariants, checksums of models and data, permissions.

        The verdict's ``ok`` is True if there are no ``faults``.
        """
        from hopfleet.runs.verify import verify

        return verify(self.folder)

    def find_task(self, task: Task | None = None) -> Task:
        """Return the given task, or the experiment's own task if it can be imported."""
        task = task or self._task
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
            return kind()
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"the task {module}.{name} cannot be created here ({error}); {remedy}") from error

    def _picture(self, path: str | os.PathLike[str] | None, name: str) -> str | os.PathLike[str]:
        if path is not None:
            return path
        self.folder.plots.mkdir(exist_ok=True, mode=0o700)
        return self.folder.plots / name

    def __repr__(self) -> str:
        return visible(f"<Results {self.name}: {len(self)} trials, {'' if self.finished else 'un'}finished>")

    def _repr_html_(self) -> str:
        return results_html(self.history)
