"""Experiment: the definition that a user gives, checked and connected to the parts that carry it out."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal

from hopfleet.backends.base import Backend
from hopfleet.domain import space as spaces
from hopfleet.domain.choices import (
    Auto,
    BackendName,
    Fuse,
    Mode,
    ParallelismName,
    PolicyName,
    RuleName,
    SearchName,
    TrackerName,
)
from hopfleet.domain.signatures import checked, explained
from hopfleet.domain.trial import Config
from hopfleet.errors import HopfleetError
from hopfleet.experiment import arguments
from hopfleet.experiment.checking import check_task
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.definition_record import script_origin
from hopfleet.experiment.failures import ended_early, raise_if_all_failed
from hopfleet.experiment.forecasting import make_preview
from hopfleet.experiment.interrupts import interruptible
from hopfleet.experiment.options import RunOptions, WorkerOptions, groups, guided
from hopfleet.experiment.preparation import lock, prepare, take_back, warmed_up
from hopfleet.experiment.previewing import scratch_folder
from hopfleet.experiment.running import Ending, run
from hopfleet.experiment.tasks import checked_task
from hopfleet.forecast.preview import Preview, slow
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.views import ModelT
from hopfleet.monitor.page import facts_html
from hopfleet.monitor.terminal.live import open_view
from hopfleet.monitor.wording import plural
from hopfleet.runs.best import write_best
from hopfleet.runs.results import Results
from hopfleet.runtime.callbacks import Callback
from hopfleet.runtime.callbacks import callbacks as named_callbacks
from hopfleet.search.base import UNLIMITED, Constraint, Search, at_least_one
from hopfleet.search.stopping import StoppingRule
from hopfleet.store.folder import RunFolder, home
from hopfleet.store.local import find_store
from hopfleet.support.attributes import Signposted
from hopfleet.trackers import TRACKERS
from hopfleet.ui.companion import show_page, suits_page
from hopfleet.ui.summaries import content_of, keep_complete

RESUME = "HOPFLEET_RESUME"
"""Environment variable that ``hopfleet resume`` sets while it runs a script again: the name of the experiment."""

PREVIEW = "HOPFLEET_PREVIEW"
"""Environment variable that commands set while they load a file: ``fit`` must not train.

Its value is ``ANY``, or the run folder of the experiment that the command looks for.
"""

ANY = "any"

Source = str | os.PathLike[str] | Results
"""An earlier experiment: its name, its run folder or its results."""


@guided
@explained
class Experiment(Signposted, Generic[ModelT]):
    """One model selection: a task, a search, data and workers.

    ``train`` and ``valid`` are data sets, their folders or URLs, or sources that ``hop.partition`` puts into the run
    folder; ``"kfold(5)"`` validates by folds. Without ``valid`` the metric is ``train_loss``. ``parallelism`` names the
    strategy and the devices of each worker: ``"ddp:2"``; ``"auto"`` finds them by trial runs.
    """

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("run", "optimize", "start"), "results = experiment.fit()"),
        **dict.fromkeys(("best", "best_config", "trials", "plot"), "results = experiment.fit(), then results.best"),
    }

    def __init__(
        self,
        task: Task[ModelT],
        *,
        train: Any,
        valid: Any = None,
        space: spaces.Space,
        search: Search | SearchName | str = "random",
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] | None = None,
        constraints: Sequence[str | Constraint] = (),
        initial_configs: Sequence[Mapping[str, Any]] = (),
        warm_start: Source | Sequence[Source] = (),
        stop: StoppingRule | RuleName | str | Sequence[StoppingRule | RuleName | str] = (),
        callbacks: Sequence[Callback | TrackerName | str] = (),
        seed: int = 0,
        name: str | None = None,
        workers: int | Auto = "auto",
        backend: Backend | type[Backend] | BackendName | str = "local",
        parallelism: ParallelismName | str | Sequence[str] | Mapping[str, Mapping[Any, str]] = "single",
        batch_size: int = 32,
        partitions: int | None = None,
        run_options: RunOptions | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        run, worker = groups(run_options, worker_options)
        task, seed = checked_task(task), arguments.seed(seed)
        search = arguments.search(search, stop)
        goal = arguments.goal(metric, mode, constraints, has_valid=valid is not None)
        search.setup(space, seed=seed, goal=goal)
        shapes, strategies = arguments.strategies(parallelism, task, space)
        valid = arguments.valid(valid, task, shapes)
        train = arguments.dataset("train", train)
        arguments.check_pair(train, valid)
        fuse = arguments.fuse(arguments.fused(worker.fuse, valid), task)
        resumed = os.environ.pop(RESUME, None) if name is None else None
        name = arguments.name(resumed if name is None else name, task)
        #: What the arguments resolve to.
        self.definition = Definition(
            name=name,
            folder=RunFolder(home() / name if run.folder is None else Path(run.folder).expanduser().absolute()),
            store=find_store(run.store),
            task=task,
            train=train,
            valid=valid,
            partitions=None if partitions is None else at_least_one("partitions", partitions),
            batch_size=arguments.batch_size(batch_size),
            space=space,
            search=search,
            goal=goal,
            points=arguments.initial_configs(initial_configs, space, goal, seed=seed),
            warm_start=arguments.warm_start(warm_start),
            seed=seed,
            workers=arguments.workers(workers),
            backend=arguments.backend(backend),
            parallelism=shapes,
            strategies=strategies,
            policy=arguments.policy(run.policy),
            run_options=run,
            worker_options=dataclasses.replace(worker, fuse=fuse),
            callbacks=named_callbacks(callbacks, TRACKERS),
            origin=script_origin(),
        )
        #: What ``fit`` returned, None before.
        self.results: Results[ModelT] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse an attribute that nothing would read: arguments are resolved when an experiment is made."""
        if not name.startswith("_") and name not in ("definition", "results"):
            raise AttributeError(f"experiment.{name} cannot be set; write hop.Experiment(..., {name}=...) instead")
        super().__setattr__(name, value)

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return self.definition.folder

    @property
    def task(self) -> Task[ModelT]:
        return self.definition.task

    @property
    def train(self) -> Any:
        return self.definition.train

    @property
    def search(self) -> Search:
        return self.definition.search

    def __repr__(self) -> str:
        return f"<Experiment {self.name}: {self._trials} trials of {type(self.task).__name__}>"

    @property
    def _trials(self) -> str:
        return "any number of" if self.search.trials >= UNLIMITED else str(self.search.trials)

    def _repr_html_(self) -> str:
        epochs = plural(self.search.max_epochs, "epoch")
        return facts_html(
            [
                ("experiment", self.name),
                ("task", type(self.task).__name__),
                ("search", f"{self.search.describe()['search']}: {self._trials} trials of at most {epochs}"),
                ("metric", ", ".join(f"{name} ({mode})" for name, mode in self.definition.goal.objectives)),
                ("workers", f"{self.definition.workers} ({self.definition.backend.name})"),
                ("run folder", str(self.folder.path)),
            ]
        )

    @checked
    def use(
        self,
        *,
        workers: int | Auto | None = None,
        backend: Backend | type[Backend] | BackendName | str | None = None,
        policy: PolicyName | str | None = None,
        unit_timeout: float | Literal["auto", "none"] | None = None,
        fuse: Fuse | None = None,
        parallelism: ParallelismName | str | None = None,
        transform_workers: int | Auto | None = None,
    ) -> None:
        """Change where and how the experiment runs. No trial's outcome depends on the workers or the backend.

        None leaves an option as it is; ``unit_timeout="none"`` lets units run without limit.
        """
        now = self.definition
        changed: dict[str, Any] = {}
        run: dict[str, Any] = {}
        worker: dict[str, Any] = {}
        if workers is not None:
            changed["workers"] = arguments.workers(workers)
        if backend is not None:
            changed["backend"] = arguments.backend(backend)
        if policy is not None:
            changed["policy"], run["policy"] = arguments.policy(policy), policy
        if unit_timeout is not None:
            run["unit_timeout"] = arguments.unit_timeout(unit_timeout)
        if fuse is not None:
            worker["fuse"] = arguments.fuse(fuse, now.task)
        if parallelism is not None:
            changed["parallelism"] = arguments.parallelism(parallelism, now.task)
        if transform_workers is not None:
            worker["transform_workers"] = transform_workers
        self.definition = dataclasses.replace(
            now,
            **changed,
            run_options=dataclasses.replace(now.run_options, **run),
            worker_options=dataclasses.replace(now.worker_options, **worker),
        )

    @checked
    def preview(self, *, quiet: bool = False) -> Preview:
        """Predict what a run from the beginning takes, from profiling on real batches and a simulation.

        Nothing is trained and nothing is left behind. ``quiet`` shows no progress.
        """
        with scratch_folder(self.definition) as place, slow(quiet) as tell:
            return make_preview(self.definition, place, tell)

    @checked
    def check(self, *, quiet: bool = False) -> list[Config]:
        """Try one configuration per architecture in this process, in seconds, and return those configurations.

        Each one is built, trained on two batches, evaluated, saved, loaded into another session and trained on.
        Nothing is left behind. Raises TaskError, with the traceback of the user's code as its cause, if the task fails.
        """
        with scratch_folder(self.definition) as place, slow(quiet, what="check") as tell:
            return check_task(self.definition, place, tell)

    @checked
    def fit(self, *, overwrite: bool = False, quiet: bool = False, ui: bool | None = None) -> Results[ModelT]:
        """Train until the search is complete; continue an unfinished run of the same definition.

        A finished run of the same definition is not trained again: its results are returned. ``overwrite`` replaces an
        experiment of the same name. ``ui`` shows the run on a page, by default in notebooks. Raises AllTrialsFailed if
        no trial succeeds, and Interrupted after Ctrl-C, when all running units are finished and saved; a second Ctrl-C
        stops at once.
        """
        arguments.flags(overwrite=overwrite, quiet=quiet, **({} if ui is None else {"ui": ui}))
        if PREVIEW in os.environ:
            return avoided(self, os.environ[PREVIEW])
        if adjust := ADJUST.get():
            replaces, hushed = adjust(self)
            overwrite, quiet = overwrite or replaces, quiet or hushed
        for callback in self.definition.callbacks:
            callback.check()
        with interruptible(self.folder):
            return self._fit(overwrite=overwrite, quiet=quiet, ui=not quiet and suits_page() if ui is None else ui)

    def _fit(self, *, overwrite: bool, quiet: bool, ui: bool) -> Results[ModelT]:
        definition, backend = self.definition, self.definition.find_backend()
        folder, ending = definition.folder, Ending(complete=True)
        with contextlib.closing(lock(folder)), contextlib.ExitStack() as stack:
            try:
                start = prepare(
                    definition, overwrite=overwrite, warm_up=lambda: stack.enter_context(warmed_up(definition, backend))
                )
                note = f"{start.note} {show_page(folder)}".strip() if ui else start.note
            except BaseException:
                stack.close()
                take_back(folder)
                raise
            if not start.finished:
                ending = run(definition, dataclasses.replace(start, note=note), backend, quiet=quiet)
        content = content_of(folder)
        self.results = Results(folder, task=definition.task)
        if not ending.complete:
            raise ended_early(self.results, ending)
        keep_complete(folder, content, self.results.history)
        if not start.finished or not folder.best.exists():
            write_best(self.results)
        if start.finished:
            with open_view(self.results.history, quiet=quiet) as view:
                view.note(f"{self.name} is finished already: nothing was trained; fit(overwrite=True) starts over")
        if definition.run_options.all_failed == "raise":
            raise_if_all_failed(self.results)
        return self.results


# ------------------------------------------------------------------------------- experiments in files of users

Adjust = Callable[[Experiment], tuple[bool, bool]]
"""Changes an experiment before it trains, and returns whether to overwrite an earlier one and whether to be quiet."""

ADJUST: ContextVar[Adjust | None] = ContextVar("ADJUST", default=None)
"""What a command does to each experiment that a user's file fits by itself."""


class FitAvoided(HopfleetError):
    """A file called ``fit`` while it was loaded without training."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(f"{experiment.name}: fit() was called while the file was loaded without training")
        self.experiment = experiment


def avoided(experiment: Experiment, wanted: str) -> Results:
    """Return the results of a finished experiment whose run folder is not ``wanted``; raise FitAvoided otherwise."""
    if wanted not in (ANY, str(experiment.folder.path)) and experiment.folder.exists:
        results = Results(experiment.folder, task=experiment.task)
        if results.finished:
            return results
    raise FitAvoided(experiment)
