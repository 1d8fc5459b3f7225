"""Experiment: the definition that a user gives, checked and connected to the parts that carry it out."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hopfleet.backends.base import Backend
from hopfleet.controller.controller import Controller
from hopfleet.domain import space as spaces
from hopfleet.domain.placement import AUTO
from hopfleet.domain.signatures import checked, explained
from hopfleet.domain.trial import Config
from hopfleet.errors import HopfleetError, Interrupted, WorkersLost
from hopfleet.experiment import arguments
from hopfleet.experiment.checking import check_task
from hopfleet.experiment.definition import script_origin
from hopfleet.experiment.failures import raise_if_all_failed, stopped_early
from hopfleet.experiment.forecasting import forecast_of, make_preview, notes_of, warnings_of
from hopfleet.experiment.interrupts import interruptible
from hopfleet.experiment.loading import ADJUST, PREVIEW, RESUME, avoided
from hopfleet.experiment.options import RunOptions, WorkerOptions, merged
from hopfleet.experiment.preparation import Start, lock, prepare, take_back, verify_data, warmed_up
from hopfleet.experiment.previewing import scratch_folder
from hopfleet.experiment.resources import WorkerPlan, on_cluster, plan_workers, worker_limit
from hopfleet.experiment.running import OnceAtWork, observers_of, run_loop
from hopfleet.experiment.teams import find_teams
from hopfleet.forecast.forecast import Forecast
from hopfleet.forecast.preview import Preview, slow
from hopfleet.forecast.profiling import Profiles
from hopfleet.forecast.team_choice import TeamChoice
from hopfleet.frameworks.base import Task
from hopfleet.monitor.history import History
from hopfleet.monitor.page import facts_html
from hopfleet.monitor.terminal.live import LiveView, open_view
from hopfleet.monitor.wording import plural
from hopfleet.runs.best import write_best
from hopfleet.runs.results import Results
from hopfleet.runtime.callbacks import Callback, CallbackObserver, ExperimentInfo
from hopfleet.runtime.callbacks import callbacks as named_callbacks
from hopfleet.search.base import UNLIMITED, Constraint, Earlier, Search, at_least_one
from hopfleet.store.base import JournalStore, VersionStore
from hopfleet.store.folder import RunFolder, home
from hopfleet.store.local import LOCAL, find_store
from hopfleet.store.replacing import drop
from hopfleet.store.shared_memory import SharedMemory
from hopfleet.support.attributes import Signposted
from hopfleet.support.background import Chores
from hopfleet.trackers import TRACKERS
from hopfleet.ui.companion import show_page, suits_page
from hopfleet.ui.summaries import content_of, keep_complete

LINGER_SECONDS = 0.75
"""Longest time in seconds that workers outlive their controller."""

SHOWN = 64
"""Ended trials that the live view keeps."""


@explained
class Experiment(Signposted):
    """One model selection: a task, a search, data and workers.

    ``train`` and ``valid`` are data sets, their folders or URLs, or sources that ``hop.partition`` puts into the run
    folder; ``"kfold(5)"`` validates by folds. Without ``valid`` the metric is ``train_loss``. ``parallelism`` names the
    strategy and the devices of each worker: ``"ddp:2"``; ``"auto"`` finds them by trial runs. ``experiment.options``
    lists replacements of ``old`` keywords.
    """

    ELSEWHERE: ClassVar = {
        **dict.fromkeys(("run", "optimize", "start"), "results = experiment.fit()"),
        **dict.fromkeys(("best", "best_config", "trials", "plot"), "results = experiment.fit(), then results.best"),
    }

    def __init__(
        self,
        task: Task,
        *,
        train: Any,
        valid: Any = None,
        space: spaces.Space,
        search: Search | str = "random",
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        constraints: Sequence[str | Constraint] = (),
        points: Sequence[Mapping[str, Any]] = (),
        warm_start: Any = (),
        stop: Any = (),
        callbacks: Sequence[Callback | str] = (),
        seed: int = 0,
        name: str | None = None,
        workers: int | str = "auto",
        backend: Backend | str = "local",
        parallelism: str | Sequence[str] | Mapping[str, Mapping[Any, str]] = "single",
        batch_size: int = 32,
        partitions: int | None = None,
        run_options: RunOptions | None = None,
        worker_options: WorkerOptions | None = None,
        **old: Any,
    ) -> None:
        self.run_options, self.worker_options = merged(run_options, worker_options, old)
        self.task = arguments.task(task)
        self.space = space
        self.search = arguments.search(search, stop)
        self.goal = arguments.goal(metric, mode, constraints, has_valid=valid is not None)
        self.seed = arguments.seed(seed)
        self.search.setup(space, seed=self.seed, goal=self.goal)
        #: Configurations to try first.
        self.points = arguments.points(points, space, self.goal, seed=self.seed)
        self.warm_start = arguments.warm_start(warm_start)
        self.callbacks = named_callbacks(callbacks, TRACKERS)
        self.workers, self.backend = arguments.workers(workers), arguments.backend(backend)
        #: How workers train, in turn, and strategies of trials by a value of their configurations.
        self.parallelism, self.strategies = arguments.strategies(parallelism, self.task, space)
        self.valid = arguments.valid(valid, self.task, self.parallelism)
        self.use(policy=self.run_options.policy, fuse=arguments.fused(self.worker_options.fuse, self.valid))
        self.batch_size = arguments.batch_size(batch_size)
        self.partitions = None if partitions is None else at_least_one("partitions", partitions)
        resumed = os.environ.pop(RESUME, None) if name is None else None
        self.name = arguments.name(resumed if name is None else name, task)
        folder = self.run_options.folder
        self.folder = RunFolder(Path(folder).expanduser().absolute() if folder is not None else home() / self.name)
        self.store = find_store(self.run_options.store)
        self.train = arguments.dataset("train", train)
        arguments.check_pair(self.train, self.valid)
        #: How to make this experiment again, for ``hopfleet resume``; ``hopfleet run`` sets its own value.
        self.origin: dict[str, Any] = script_origin()
        #: Why the last run ended early, unless a person asked for the end.
        self._reason = ""
        #: Whether the last run ended early because its trials failed in the same way.
        self._failing = False
        #: What ``fit`` returned, None before.
        self.results: Results | None = None

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
                ("metric", ", ".join(f"{name} ({mode})" for name, mode in self.goal.objectives)),
                ("workers", f"{self.workers} ({self.backend.name})"),
                ("run folder", str(self.folder.path)),
            ]
        )

    @checked
    def use(
        self,
        *,
        workers: int | str | None = None,
        backend: Backend | str | None = None,
        policy: str | None = None,
        unit_timeout: float | str | None = None,
        fuse: str | None = None,
        parallelism: str | None = None,
        transform_workers: int | None = None,
    ) -> None:
        """Change where and how the experiment runs. No trial's outcome depends on the workers or the backend.

        None leaves an option as it is; ``unit_timeout="none"`` lets units run without limit.
        """
        if workers is not None:
            self.workers = arguments.workers(workers)
        if backend is not None:
            self.backend = arguments.backend(backend)
        if policy is not None:
            self.policy = arguments.policy(policy)
            self.run_options = dataclasses.replace(self.run_options, policy=policy)
        if unit_timeout is not None:
            self.run_options = dataclasses.replace(self.run_options, unit_timeout=arguments.unit_timeout(unit_timeout))
        if fuse is not None:
            arguments.fuse(fuse, self.task)
            self.worker_options = dataclasses.replace(self.worker_options, fuse=fuse)
        if parallelism is not None:
            self.parallelism = arguments.parallelism(parallelism, self.task)
        if transform_workers is not None:
            self.worker_options = dataclasses.replace(self.worker_options, transform_workers=transform_workers)

    @checked
    def preview(self, *, quiet: bool = False) -> Preview:
        """Predict what a run from the beginning takes, from profiling on real batches and a simulation.

        Nothing is trained and nothing is left behind. ``quiet`` shows no progress.
        """
        with scratch_folder(self) as place, slow(quiet) as tell:
            return make_preview(self, place, self._plan, tell)

    @checked
    def check(self, *, quiet: bool = False) -> list[Config]:
        """Try one configuration per architecture in this process, in seconds, and return those configurations.

        Each one is built, trained on two batches, evaluated, saved, loaded into another session and trained on.
        Nothing is left behind. Raises TaskError, with the traceback of the user's code as its cause, if the task fails.
        """
        with scratch_folder(self) as place, slow(quiet, what="check") as tell:
            return check_task(self, place, tell)

    @checked
    def fit(self, *, overwrite: bool = False, quiet: bool = False, ui: bool | None = None) -> Results:
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
        for callback in self.callbacks:
            callback.check()
        with interruptible(self.folder):
            return self._fit(overwrite=overwrite, quiet=quiet, ui=not quiet and suits_page() if ui is None else ui)

    def _fit(self, *, overwrite: bool, quiet: bool, ui: bool) -> Results:
        backend: Backend = self.backend() if isinstance(self.backend, type) else self.backend
        with contextlib.closing(lock(self.folder)), contextlib.ExitStack() as stack:
            try:
                start = prepare(
                    self, overwrite=overwrite, warm_up=lambda: stack.enter_context(warmed_up(self, backend))
                )
                note = f"{start.note} {show_page(self.folder)}".strip() if ui else start.note
            except BaseException:
                stack.close()
                take_back(self.folder)
                raise
            complete = start.finished or self._train(dataclasses.replace(start, note=note), backend, quiet=quiet)
        content = content_of(self.folder)
        self.results = Results(self.folder, task=self.task)
        if not complete:
            raise self._ended_early(self.results)
        keep_complete(self.folder, content, self.results.history)
        if not start.finished or not self.folder.best.exists():
            write_best(self.results)
        if start.finished:
            with open_view(self.results.history, quiet=quiet) as view:
                view.note(f"{self.name} is finished already: nothing was trained; fit(overwrite=True) starts over")
        if self.run_options.all_failed == "raise":
            raise_if_all_failed(self.results)
        return self.results

    def _ended_early(self, results: Results) -> HopfleetError:
        """Return the error of a run that ended before its search was complete."""
        if self._failing:
            return stopped_early(results, self._reason)
        again = f"hopfleet resume {self.folder.handle}"
        if self._reason:
            return WorkersLost(f"{self.name}: {self._reason}: {again}")
        return Interrupted(f"{self.name} was interrupted and can continue: {again}, or call fit() again")

    def _train(self, start: Start, backend: Backend, *, quiet: bool) -> bool:
        """Run until the search is complete or the run ends early. A run that is refused leaves no folder behind.

        Return whether the search is complete.
        """
        refused = False
        try:
            with (
                contextlib.closing(self.store.journal(self.folder, writable=True)) as journal,
                open_view(self._history(len(start.data.train)), quiet=quiet) as view,
            ):
                try:
                    return self._run(start, backend, journal, view)
                except BaseException:
                    refused = not start.resumed and journal.last() is None
                    raise
        finally:
            if refused:
                take_back(self.folder)

    def _history(self, partitions: int) -> History:
        mode: Any = self.goal.mode
        return History(
            metric=self.goal.metric,
            mode=mode,
            partitions=partitions,
            name=self.name,
            limit=SHOWN,
            others=self.goal.others,
            limits=self.goal.limits,
            expected=self.search.expected(len(self.points)),
        )

    # ----------------------------------------------------------------------------------------------- resources

    def _plan(self, backend: Backend, chosen: TeamChoice | None) -> WorkerPlan:
        plan = plan_workers(
            backend,
            self.task,
            workers=self.workers if chosen is None else chosen.workers or self.workers,
            device=self.worker_options.device,
            threads=self.worker_options.threads,
            trials=len(self.points) + self.search.trials,
            teams=self.parallelism if chosen is None else chosen.shapes,
        )
        if chosen is None:
            return plan
        plan = plan._replace(why=chosen.why, scaling=chosen.scaling, fleet=chosen.fleet)
        return plan._replace(homes=chosen.homes, one_node=chosen.one_node)

    # ------------------------------------------------------------------------------------------------- running

    def _run(self, start: Start, backend: Backend, journal: JournalStore, view: LiveView) -> bool:
        began = time.monotonic()
        tries = self.parallelism == (AUTO,)
        if tries:
            verify_data(self, start.data)  # before trial runs read it
        plan = self._plan(backend, find_teams(self, backend, start.data, view.note, keep=True))
        count = plural(plan.workers, "worker")
        if start.note:
            view.note(start.note)
        view.note(f"{self.name}: {count} on {plan.device} ({plan.why}), run folder {self.folder.path}")
        versions = self._versions(backend)
        memory = SharedMemory(self.folder.checkpoints)
        memory.sweep()
        memory.clear_batches()
        forecast = forecast_of(self, backend, plan, start.data, self.folder)
        for text in filter(None, [start.warning, *warnings_of(self, forecast)]):
            view.warn(text)
        for text in notes_of(self, forecast):
            view.note(text)
        complete = False
        try:
            backend.start(forecast.spec, plan.workers)
            if not tries:
                verify_data(self, start.data)  # meanwhile, the process that forks workers imports their framework
            later: list[Callable[[], object]] = []
            with Chores() as chores:
                found = (
                    forecast.from_record(self.folder)
                    if start.resumed
                    else forecast.foresee(self.folder, view, later.append, fail_fast=self.run_options.fail_fast)
                )
                controller = self._controller(forecast, found, view, worker_limit(backend, plan.workers))
                drop(self.folder)
                info = ExperimentInfo(self.name, self.folder.path, self.goal.metric, self.goal.mode, start.resumed)
                with CallbackObserver(self.callbacks, info) as callbacks:
                    observers = observers_of(view, callbacks, chores, self.folder, backend)
                    observers.append(OnceAtWork(later, chores))
                    definition = self.folder.definition()
                    loop, complete = run_loop(
                        controller, backend, journal, versions, observers, workers=plan.workers, definition=definition
                    )
                self._reason, self._failing = loop.reason, controller.failing
                backend.close(kill=loop.stuck)
            if start.resumed:  # workers of a controller that was killed may have written until now
                time.sleep(max(0.0, LINGER_SECONDS - (time.monotonic() - began)))
            versions.tidy(controller.schedule.files())
        except BaseException:
            backend.close(kill=True)
            raise
        finally:
            memory.clear_batches()
        return complete

    def _versions(self, backend: Backend) -> VersionStore:
        """Return the store of versions: the backend's own, unless the run has another store and one machine."""
        if self.run_options.store == LOCAL or on_cluster(self.backend):
            return backend.versions(self.folder.checkpoints)
        return self.store.versions(self.folder.checkpoints)

    def _controller(self, forecast: Forecast, found: Profiles, view: LiveView, max_workers: int) -> Controller:
        # A search remembers what it was told; each run starts with a copy that was told nothing.
        search = copy.deepcopy(self.search)
        self._learn(search, view)
        outline = forecast.outline
        return Controller(
            search,
            self.policy(),
            partitions=len(outline.rows),
            valid_partitions=len(outline.valid_rows),
            seed=self.seed,
            max_workers=max_workers,
            estimates=outline.estimates(found),
            fixed_order=outline.fixed_order,
            deterministic=self.run_options.deterministic,
            points=self.points,
            unit_timeout=arguments.unit_timeout(self.run_options.unit_timeout),
            fusion=forecast.fusions(found.found).get(self.worker_options.fuse),
            sticky=on_cluster(self.backend),
            lookahead=self._looks_ahead(found),
            fail_fast=self.run_options.fail_fast,
            scaling=outline.scaling,
            fleet=outline.fleet,
        )

    def _learn(self, search: Search, view: LiveView) -> None:
        """Tell the search about the trials of earlier experiments."""
        if not self.warm_start:
            return
        told = self.folder.definition()["warm_start"]
        used = search.learn([Earlier(trial["config"], trial["metrics"]) for trial in told["trials"]])
        view.note(
            f"warm start: {used} of {len(told['trials'])} earlier trials ({', '.join(told['names'])}) are of use to "
            f"{type(search).__name__}"
        )

    def _looks_ahead(self, found: Profiles) -> bool:
        """Whether models travel while other models train.

        Looking ahead pays where a hop uses the network. Trials that gain by training together are better off without,
        since every waiting trial joins them.
        """
        separate = self.worker_options.fuse == "off" or bool(self.task.framework.fusion_blocker)
        gains = [profile.gains for profile in found.found.values()]
        return on_cluster(self.backend) and (separate or (bool(gains) and not any(gains)))
