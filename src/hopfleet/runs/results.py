"""Results of an experiment, read from its journal and checkpoints.

Results of finished and of running experiments can be opened from any process; ``refresh`` reads new journal entries.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hopfleet.domain.batching import Batching
from hopfleet.domain.signatures import explained
from hopfleet.domain.unit import Work
from hopfleet.errors import NotFound, UsageError
from hopfleet.frameworks.base import Task
from hopfleet.monitor.charts.canvas import save
from hopfleet.monitor.history import Span
from hopfleet.monitor.page import results_html
from hopfleet.phrases import did_you_mean, plural, shown
from hopfleet.runs.place import Place
from hopfleet.runs.state import apply_journal, empty_history
from hopfleet.runs.trial_result import TrialResult
from hopfleet.safe_text import visible
from hopfleet.store.folder import RunFolder, check_trusted, find_run
from hopfleet.support import code_digests
from hopfleet.support.attributes import Signposted
from hopfleet.support.files import make_folder, read_json

if TYPE_CHECKING:
    from hopfleet.backends.base import Backend
    from hopfleet.runs.verify import Verdict


@explained
def load(name: str | os.PathLike[str], *, task: Task | None = None) -> Results:
    """Return the results of an experiment by its name or run folder, finished or not. Only models need a ``task``."""
    return Results(find_run(name), task=task)


class Results(Signposted):
    """All trials of an experiment. ``best`` is the trial with the best epoch by the experiment's metric."""

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("best_trial", "get_best_result", "get_best_trial"), "results.best"),
        **dict.fromkeys(("best_config", "best_params", "config"), "results.best.config"),
        **dict.fromkeys(("best_value", "best_score", "metrics"), "results.best.metrics"),
        **dict.fromkeys(("best_model", "model"), "results.best.model()"),
        **dict.fromkeys(("save", "to_csv"), "results.dataframe().to_csv(PATH)"),
        "export": "results.best.export(PATH) for the model, results.dataframe().to_csv(PATH) for the table",
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
        #: Trials whose model changes settings of the process, if the user was told.
        self.told: set[str] = set()
        self.refresh()

    def refresh(self) -> Results:
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
    def trials(self) -> list[TrialResult]:
        """All trials in the order in which they were added."""
        return [TrialResult(self, trial) for trial in self.history.trials.values()]

    @property
    def best(self) -> TrialResult:
        """The trial with the best epoch."""
        best = self.history.best()
        if best is None and any(trial.best for trial in self.history.trials.values()):
            wanted = ", ".join(map(str, self.history.limits)) or f"a number as its {self.history.metric}"
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

    def steps(self) -> Any:
        """Return a pandas DataFrame with one row per trial, name and step of the values that ``self.log`` recorded."""
        from hopfleet.monitor.frame import steps_frame

        return steps_frame(self.history)

    def plot(self, kind: str = "curves", path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Draw a chart into ``path``, or into plots/KIND.png in the run folder, and return the matplotlib figure.

        A notebook displays the figure if it is the value of a cell; in a script, its ``show()`` opens a window.
        Kinds are "curves", "steps", "gantt", "parallel", "importance", "rungs", "lineage" and "pareto". The options
        depend on the kind: ``metric`` for curves, steps and importance, ``epoch`` for importance, ``metrics`` and
        ``modes`` for pareto.
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

    def _picture(self, path: str | os.PathLike[str] | None, name: str) -> str | os.PathLike[str]:
        if path is not None:
            return path
        make_folder(self.folder.plots, private=True)
        return self.folder.plots / name

    def __repr__(self) -> str:
        return visible(f"<Results {self.name}: {plural(len(self), 'trial')}, {'' if self.finished else 'un'}finished>")

    def _repr_html_(self) -> str:
        return results_html(self.history)


def _attributes(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of a task's attributes."""
    return {name: digest for name, digest in digests.items() if name.startswith("self.")}
