"""Results of an experiment, read from its journal and checkpoints.

Results of finished and of running experiments can be opened from any process; ``refresh`` reads new journal entries.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, overload

from hopfleet.domain.choices import Auto, BackendName, Chart, Mode
from hopfleet.domain.signatures import explained
from hopfleet.domain.unit import Work
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.views import ModelT
from hopfleet.monitor.charts.canvas import save
from hopfleet.monitor.history import Span, TrialHistory
from hopfleet.monitor.page import results_html
from hopfleet.phrases import plural
from hopfleet.runs.opened_run import OpenedRun
from hopfleet.runs.place import Place
from hopfleet.runs.trial_result import TrialResult
from hopfleet.safe_text import visible
from hopfleet.store.folder import find_run
from hopfleet.support.files import make_folder, read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hopfleet.backends.base import Backend
    from hopfleet.runs.verify import Verdict

Target = str | os.PathLike[str]
"""A file to write."""


@overload
def load(name: str | os.PathLike[str], *, task: Task[ModelT]) -> Results[ModelT]: ...
@overload
def load(name: str | os.PathLike[str], *, task: None = None) -> Results: ...
@explained
def load(name: str | os.PathLike[str], *, task: Task | None = None) -> Results:
    """Return the results of an experiment by its name or run folder, finished or not. Only models need a ``task``."""
    return Results(find_run(name), task=task)


class Results(OpenedRun[TrialResult[ModelT]], Generic[ModelT]):
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

    def _opened(self, trial: TrialHistory) -> TrialResult[ModelT]:
        return TrialResult(self, trial)

    def dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per trial."""
        from hopfleet.monitor.frame import dataframe

        return dataframe(self.history)

    def steps(self) -> Any:
        """Return a pandas DataFrame with one row per trial, name and step of the values that ``self.log`` recorded."""
        from hopfleet.monitor.frame import steps_frame

        return steps_frame(self.history)

    @overload
    def plot(
        self, kind: Literal["curves", "steps"] = ..., path: Target | None = ..., *, metric: str | None = ...
    ) -> Figure: ...
    @overload
    def plot(
        self,
        kind: Literal["importance"],
        path: Target | None = ...,
        *,
        metric: str | None = ...,
        epoch: int | None = ...,
    ) -> Figure: ...
    @overload
    def plot(
        self,
        kind: Literal["pareto"],
        path: Target | None = ...,
        *,
        metrics: Sequence[str] | None = ...,
        modes: Sequence[Mode] | None = ...,
    ) -> Figure: ...
    @overload
    def plot(self, kind: Chart, path: Target | None = ...) -> Figure: ...
    def plot(self, kind: Chart = "curves", path: Target | None = None, **options: Any) -> Figure:
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

    def plot_data(self, kind: Chart = "curves", **options: Any) -> dict[str, Any]:
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

    def gantt(self, path: Target | None = None) -> Figure:
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
        workers: int | Auto = "auto",
        backend: Backend | BackendName | str = "local",
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
        task: Task[ModelT] | None = None,
        workers: int | Auto = "auto",
        backend: Backend | BackendName | str = "local",
        overwrite: bool = False,
        quiet: bool = False,
    ) -> Results[ModelT]:
        """Train the best configuration, or a ``trial``'s, anew on training and validation data; return its results.

        The new experiment, NAME-refit by default, trains until the trial's best epoch. ``on`` may also be other data.
        """
        # A refit is an experiment of its own, and so a layer above results.
        refit: Callable[..., Results[ModelT]] = pkgutil.resolve_name("hopfleet.clients.refit:refit")
        found = self[trial] if trial else self.best
        return refit(self, found, on, epochs, name, self.find_task(task), workers, backend, overwrite, quiet)

    def verify(self) -> Verdict:
        """Check the run folder against its journal: invariants, checksums of models and data, permissions.

        The verdict's ``ok`` is True if there are no ``faults``.
        """
        from hopfleet.runs.verify import verify

        return verify(self.folder)

    def _picture(self, path: Target | None, name: str) -> Target:
        if path is not None:
            return path
        make_folder(self.folder.plots, private=True)
        return self.folder.plots / name

    def __repr__(self) -> str:
        return visible(f"<Results {self.name}: {plural(len(self), 'trial')}, {'' if self.finished else 'un'}finished>")

    def _repr_html_(self) -> str:
        return results_html(self.history)
