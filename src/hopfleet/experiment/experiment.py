"""Experiment: what a user asks for, checked, and wired to everything that carries it out."""

from __future__ import annotations

import contextlib
import copy
import datetime
import math
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hopfleet.backends.base import Backend, Cluster
from hopfleet.controller.controller import Controller
from hopfleet.data import Dataset, open_dataset, partition
from hopfleet.domain import space as spaces
from hopfleet.domain.messages import Finish, Message, RunStarted, VersionLost
from hopfleet.domain.secrets import references
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, ExperimentExists, HopfleetError, Interrupted, UsageError, WorkersLost
from hopfleet.experiment import arguments
from hopfleet.experiment.resources import Data, fitting_partitions, made_of
from hopfleet.forecast.forecast import IN_TURN, Forecast
from hopfleet.forecast.fusion import apart
from hopfleet.forecast.preview import Outline, Preview, slow
from hopfleet.forecast.profiling import Profiles
from hopfleet.frameworks.base import Task
from hopfleet.monitor.history import History
from hopfleet.monitor.terminal.live import LiveView, open_view
from hopfleet.monitor.terminal.watcher import Watcher
from hopfleet.monitor.wording import plural
from hopfleet.runs.results import Results, load
from hopfleet.runtime.loop import Interrupts, Loop
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import DEFAULT
from hopfleet.scheduler.policies.exact import too_large
from hopfleet.search.base import MAX_LIVE, UNLIMITED, Earlier, Rule, Search, at_least_one, name_of
from hopfleet.store.folder import RunFolder, home
from hopfleet.store.journal import Journal
from hopfleet.store.versions.local import Versions
from hopfleet.support.machine import choose_workers, spare_cores, this_machine
from hopfleet.version import __version__
from hopfleet.worker.secrets import read
from hopfleet.worker.spec import WorkerSpec

RESUME = "HOPFLEET_RESUME"
"""Set by ``hopfleet resume`` while it runs a script again: the name of the experiment to go on with."""

PREVIEW = "HOPFLEET_PREVIEW"
"""Set by ``hopfleet run --preview`` while it loads a file: nothing may train."""

UNDER_RUN = "__hopfleet__"
"""The ``__name__`` of a file that ``hopfleet run`` loads."""

LINGER_SECONDS = 0.75
"""Workers outlive their controller by no more than this."""

SAME = (
    *("task", "space", "search", "metric", "mode", "others", "limits", "rules", "points", "warm_start"),
    *("seed", "batch_size", "drop_last", "order", "fuse", "train", "valid"),
)
"""Parts of the definition that must not change between a run and its resumption."""

REPLACE = "fit(overwrite=True) replaces it, another name= keeps both"

SHOWN = 64
"""Ended trials that the live view keeps in mind."""

CHECKED = 10_000
"""Configurations that are made and checked before work starts."""

DRAWN = 1_000
"""Configurations among which a pilot draws."""

SHARED = 8
"""Transformed batches may take one such part of the free memory."""


class FitAvoided(HopfleetError):
    """A file called ``fit`` while it was loaded for a preview."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(f"{experiment.name}: fit() was called, and only a preview is wanted")
        self.experiment = experiment


class Experiment:
    """One model selection: a task, a search, data and workers.

    ``train`` and ``valid`` are data set folders, URLs or data sets, or anything that ``hop.partition`` takes, which
    is then partitioned into the run folder. Without ``valid`` the metric is ``train_loss``.
    """

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
        constraints: Sequence[str | Rule] = (),
        points: Sequence[Mapping[str, Any]] = (),
        warm_start: Any = (),
        stop: Any = (),
        seed: int = 0,
        name: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        workers: int | str = "auto",
        backend: Backend | str = "local",
        policy: str = DEFAULT,
        order: str = "open",
        device: str = "auto",
        threads: int = 1,
        batch_size: int = 32,
        drop_last: bool = False,
        partitions: int | None = None,
        unit_timeout: float | str | None = "auto",
        fuse: str = "exact",
        transform_workers: int | str = "auto",
    ) -> None:
        self.task = arguments.task(task)
        self.space = space
        self.search = arguments.search(search, stop)
        self.goal = arguments.goal(metric, mode, constraints, has_valid=valid is not None)
        self.seed = arguments.seed(seed)
        self.search.setup(space, seed=self.seed, goal=self.goal)
        #: Configurations to try first.
        self.points = arguments.points(points, space, self.goal, seed=self.seed)
        self.warm_start = arguments.warm_start(warm_start)
        unit_timeout = "none" if unit_timeout is None else unit_timeout
        self.use(workers=workers, backend=backend, policy=policy, unit_timeout=unit_timeout, fuse=fuse)
        self.order = arguments.order(order)
        self.device = device
        self.threads = at_least_one("threads", threads)
        self.batch_size = at_least_one("batch_size", batch_size)
        self.drop_last = drop_last
        self.transform_workers = arguments.transform_workers(transform_workers)
        self.partitions = None if partitions is None else at_least_one("partitions", partitions)
        resumed = os.environ.pop(RESUME, None) if name is None else None
        self.name = arguments.name(name or resumed, task)
        self.folder = RunFolder(Path(folder).expanduser().absolute() if folder is not None else home() / self.name)
        self.train = arguments.dataset("train", train)
        self.valid = None if valid is None else arguments.dataset("valid", valid)
        #: How to make this experiment again, for ``hopfleet resume``; ``hopfleet run`` fills in its own.
        self.origin: dict[str, Any] = _origin()
        #: Why the last run ended early, if it was not by a wish.
        self._reason = ""
        #: What ``fit`` returned, once it has.
        self.results: Results | None = None

    def __repr__(self) -> str:
        trials = "any number of" if self.search.trials >= UNLIMITED else self.search.trials
        return f"<Experiment {self.name}: {trials} trials of {type(self.task).__name__}>"

    def use(
        self,
        *,
        workers: int | str | None = None,
        backend: Backend | str | None = None,
        policy: str | None = None,
        unit_timeout: float | str | None = None,
        fuse: str | None = None,
    ) -> None:
        """Change what it runs on and in which order, where given. No trial's outcome depends on workers or backend.

        ``unit_timeout="none"`` lets units run for ever.
        """
        if workers is not None:
            self.workers = arguments.workers(workers)
        if backend is not None:
            self.backend = arguments.backend(backend)
        if policy is not None:
            self.policy_name, self.policy = policy, arguments.policy(policy)
        if unit_timeout is not None:
            self.unit_timeout = arguments.unit_timeout(unit_timeout)
        if fuse is not None:
            self.fuse = arguments.fuse(fuse, self.task)

    def preview(self, *, quiet: bool = False) -> Preview:
        """What a run from the beginning will take, by a pilot on real batches and a simulation.

        Trains nothing and leaves nothing behind. ``quiet`` shows no progress.
        """
        parent = self.folder.path.parent
        missing = [path for path in (parent, *parent.parents) if not path.exists()]
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with tempfile.TemporaryDirectory(prefix=".preview-", dir=parent) as place, slow(quiet) as tell:
                return self._preview(RunFolder(Path(place)), tell)
        finally:
            for path in missing:
                with contextlib.suppress(OSError):
                    path.rmdir()

    def fit(self, *, overwrite: bool = False, quiet: bool = False) -> Results:
        """Train until the search is satisfied; an unfinished run of the same definition is continued.

        ``overwrite`` replaces an experiment of the same name. Raises Interrupted after Ctrl-C, when all running
        units are finished and saved; a second Ctrl-C stops at once.
        """
        if PREVIEW in os.environ:
            raise FitAvoided(self)
        with contextlib.closing(self.folder.lock()):
            try:
                data, resumed = self._prepare(overwrite)
            except BaseException:
                self.folder.discard()
                raise
            history = self._history(len(data.train))
            with (
                contextlib.closing(Journal(self.folder.journal_file, writable=True)) as journal,
                open_view(history, quiet=quiet) as view,
            ):
                complete = self._run(data, journal, view, resumed=resumed)
        if not complete:
            if self._reason:
                raise WorkersLost(f"{self.name}: {self._reason}: hopfleet resume {self.folder.handle}")
            raise Interrupted(
                f"{self.name} was interrupted and can go on: hopfleet resume {self.folder.handle}, or call fit() again"
            )
        self.results = Results(self.folder, task=self.task)
        return self.results

    # -------------------------------------------------------------------------------------------- preparation

    def _prepare(self, overwrite: bool) -> tuple[Data, bool]:
        """The data, and whether an earlier run goes on. Everything is checked before anything is changed."""
        before, requests = (None, 0) if overwrite else self._last_message()
        earlier = self._earlier(resumed=before is not None)
        if before is None:
            # Nothing there, or nothing that ever got going.
            self.folder.clear()
        elif isinstance(before, Finish) and before.complete and not requests:
            raise ExperimentExists(
                f"name={self.name!r}: is finished already; hop.load({self.name!r}) opens its results, {REPLACE}"
            )
        resumed = before is not None
        data = self._data(self.folder)
        definition = self._definition(data) | earlier
        if resumed:
            self._check_same(definition)
        else:
            self.folder.create(definition)
        return data, resumed

    def _last_message(self) -> tuple[Message | None, int]:
        """The last message of an earlier run, and how many wishes have come since."""
        if not (self.folder.exists and self.folder.journal_file.exists()):
            return None, 0
        with contextlib.closing(Journal(self.folder.journal_file)) as journal:
            return journal.last(), len(journal.requests())

    def _check_same(self, definition: Mapping[str, Any]) -> None:
        """Refuse to go on with an experiment that was defined otherwise."""
        before = self.folder.definition()
        differ = [key for key in SAME if before.get(key) != definition.get(key)]
        if differ:
            raise ExperimentExists(
                f"name={self.name!r}: an unfinished experiment of that name has another {', '.join(differ)}; "
                f"resume it with its own definition; {REPLACE}"
            )

    def _data(self, place: RunFolder) -> Data:
        """The data, checked; what is not partitioned yet is partitioned into ``place``."""
        train = self._partitioned("train", self.train, self.partitions, place)
        valid = None if self.valid is None else self._partitioned("valid", self.valid, None, place)
        data = Data(train, valid)
        # The nodes of a cluster check what they fetch.
        data.check(checksums=not self._on_cluster)
        self._check_configs(train)
        return data

    def _partitioned(self, role: str, source: Any, partitions: int | None, place: RunFolder) -> Dataset:
        if isinstance(source, Dataset):
            return source
        partitions = partitions or fitting_partitions(source)
        folder = place.data / role
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not folder.exists():
            return partition(source, folder, partitions=partitions, seed=self.seed)
        dataset = open_dataset(folder)
        if not made_of(dataset, source, partitions=partitions, seed=self.seed):
            raise ExperimentExists(
                f"name={self.name!r}: an unfinished experiment of that name has another {role}; {REPLACE}"
            )
        return dataset

    def _check_configs(self, train: Dataset) -> None:
        """Make every configuration that is known beforehand, so that none goes wrong in the middle of a run."""
        smallest = min(train.partition_rows)
        configs = [*self.points, *self.search.examples(CHECKED)]
        for reference in set().union(*map(references, configs)):
            read(reference)
        for size in {config.get("batch_size", self.batch_size) for config in configs}:
            at_least_one("batch_size", size)
            if size > smallest:
                raise UsageError(
                    f"batch_size={size}: is larger than the smallest partition ({smallest} rows); use smaller "
                    "batches or fewer partitions"
                )

    def _earlier(self, *, resumed: bool) -> dict[str, Any]:
        """What earlier experiments have brought, for the definition. A run that goes on knows it already."""
        if not self.warm_start:
            return {}
        names = [source.name if isinstance(source, Results) else str(source) for source in self.warm_start]
        if resumed:
            before: dict[str, Any] = self.folder.definition().get("warm_start") or {}
            if before.get("names") == names:
                return {"warm_start": before}
        found = [source.refresh() if isinstance(source, Results) else load(source) for source in self.warm_start]
        trials = [
            {"config": trial.config, "metrics": {name: value for name, value in last.items() if math.isfinite(value)}}
            for results in found
            for trial in results.trials
            for last in trial.history[-1:]
        ]
        return {"warm_start": {"names": names, "trials": trials}}

    def _definition(self, data: Data) -> dict[str, Any]:
        further = {
            "others": [list(other) for other in self.goal.others],
            "limits": [str(limit) for limit in self.goal.limits],
            "rules": [name_of(rule) for rule in self.goal.rules],
            "points": self.points,
            # The others leave no traces in a model.
            "fuse": self.fuse if self.fuse == "fast" else "",
        }
        return {
            "name": self.name,
            "hopfleet": __version__,
            "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "task": _task_place(self.task),
            "space": spaces.describe(self.space),
            "search": self.search.describe(),
            "metric": self.goal.metric,
            "mode": self.goal.mode,
            **{key: value for key, value in further.items() if value},
            "seed": self.seed,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "order": self.order,
            "train": _summary(data.train),
            "valid": None if data.valid is None else _summary(data.valid),
            "policy": self.policy_name,
            "backend": self.backend.name,
            "device": self.device,
            "threads": self.threads,
            "origin": self.origin,
        }

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
        )

    # ------------------------------------------------------------------------------------------ what it runs with

    @property
    def _on_cluster(self) -> bool:
        return issubclass(self.backend if isinstance(self.backend, type) else type(self.backend), Cluster)

    def _crew(self, backend: Backend) -> _Crew:
        device, devices = self._device()
        if isinstance(self.workers, int):
            return _Crew(device, self.workers, "as asked")
        trials = len(self.points) + self.search.trials
        if isinstance(backend, Cluster):
            room, why = backend.offer(device, self.threads)
            return _Crew(device, room, why) if room <= trials else _Crew(device, trials, "as many as there are trials")
        machine = this_machine()
        count, why = choose_workers(machine, device=device, devices=devices, threads=self.threads, trials=trials)
        return _Crew(device, count, why)

    def _device(self) -> tuple[str, int]:
        """The device of each worker, and how many such there are."""
        if self._on_cluster:
            return self.device, 1
        found, count = self.task.devices()
        if self.device == "auto":
            return found, count
        return self.device, count if self.device == found else 1

    def _forecast(self, backend: Backend, crew: _Crew, data: Data, place: RunFolder) -> Forecast:
        """What there is to know before work starts."""
        configs = dict(enumerate([*self.points, *self.search.examples(DRAWN)][:DRAWN]))
        machine = this_machine()
        spare = spare_cores(machine, device=crew.device, workers=crew.workers, threads=self.threads)
        spec = WorkerSpec(
            task=self.task,
            train=data.train,
            valid=data.valid,
            checkpoints=place.checkpoints,
            logs=place.logs,
            seed=self.seed,
            device=crew.device,
            threads=self.threads,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            fast=self.fuse == "fast",
            count_parameters=self.goal.counts_parameters,
            run=uuid.uuid4().hex,
            transform_workers=spare if isinstance(self.transform_workers, str) else self.transform_workers,
            shared_bytes=machine.memory // SHARED,
        )
        outline = Outline(
            name=self.name,
            # Of a search that goes on until a budget is spent, as many as can be under way at once.
            trials=self.search.trials if self.search.trials < UNLIMITED else MAX_LIVE,
            open_ended=self.search.trials >= UNLIMITED,
            epochs=self.search.max_epochs,
            rows=data.train.partition_rows,
            valid_rows=() if data.valid is None else data.valid.partition_rows,
            workers=crew.workers,
            policy_name=self.policy_name,
            policy=self.policy,
            fixed_order=self.order == "fixed",
            seed=self.seed,
            goal=self.goal,
            known=not self.search.adaptive,
            configs={} if self.search.adaptive else configs,
            fuse="off" if self.task.alone else self.fuse,
            crowded=not spare,
        )
        return Forecast(backend, spec, outline, crew.why, configs)

    # ------------------------------------------------------------------------------------------------ running

    def _run(self, data: Data, journal: Journal, view: LiveView, *, resumed: bool) -> bool:
        """Run until all is done, or until somebody or something ends it early: whether all is done."""
        backend: Backend = self.backend() if isinstance(self.backend, type) else self.backend
        began = time.monotonic()
        crew = self._crew(backend)
        count = plural(crew.workers, "worker")
        view.note(f"{self.name}: {count} on {crew.device} ({crew.why}), run folder {self.folder.path}")
        versions = backend.versions(self.folder.checkpoints)
        versions.sweep()
        versions.clear_batches()
        forecast = self._forecast(backend, crew, data, self.folder)
        for text in self._warnings(forecast):
            view.warn(text)
        complete = False
        try:
            backend.start(forecast.spec, crew.workers)
            found = forecast.from_record(self.folder) if resumed else forecast.foresee(self.folder, view)
            controller = self._controller(forecast, found, view)
            controller.restore(_recalled(journal, view))
            loop = Loop(controller, backend, journal, versions, Watcher(view))
            versions.tidy(controller.schedule.files())
            missing = list(_missing(controller, versions))
            with Interrupts(loop.drain):
                complete = loop.run([RunStarted(__version__, crew.workers, len(journal.requests())), *missing])
            self._reason = loop.reason
            backend.close(kill=loop.stuck)
            if resumed:  # workers of a controller that was killed may have written until now
                time.sleep(max(0.0, LINGER_SECONDS - (time.monotonic() - began)))
            versions.tidy(controller.schedule.files())
        except BaseException:
            backend.close(kill=True)
            raise
        finally:
            versions.clear_batches()
        return complete

    def _warnings(self, forecast: Forecast) -> Iterator[str]:
        """What will not go as well as the user may think."""
        trials, partitions = min(self.search.trials, MAX_LIVE), len(forecast.outline.rows)
        if self.policy_name == "exact" and (warning := too_large(trials, partitions)):
            yield warning
        yield from apart(self.task, self.fuse, self.batch_size, forecast.configs.values())

    def _controller(self, forecast: Forecast, found: Profiles, view: LiveView) -> Controller:
        # A search keeps what it heard; a run that goes on begins with one that has heard nothing.
        search = copy.deepcopy(self.search)
        self._learn(search, view)
        outline = forecast.outline
        return Controller(
            search,
            self.policy(),
            partitions=len(outline.rows),
            valid_partitions=len(outline.valid_rows),
            seed=self.seed,
            estimates=Estimates(outline.rows, outline.prior(found) if found.timed else None),
            fixed_order=outline.fixed_order,
            points=self.points,
            unit_timeout=self.unit_timeout,
            fusion=forecast.fusions(found.found).get(self.fuse),
            sticky=self._on_cluster,
            lookahead=self._told_ahead(found),
        )

    def _learn(self, search: Search, view: LiveView) -> None:
        """Tell the search of earlier experiments."""
        if not self.warm_start:
            return
        told = self.folder.definition()["warm_start"]
        used = search.learn([Earlier(trial["config"], trial["metrics"]) for trial in told["trials"]])
        view.note(
            f"warm start: {used} of {len(told['trials'])} earlier trials ({', '.join(told['names'])}) are of use to "
            f"{type(search).__name__}"
        )

    def _told_ahead(self, found: Profiles) -> bool:
        """Whether models are to travel while others train: where hops cost network, unless it is better that trials
        train together, since then nobody is left to wait."""
        alone = self.fuse == "off" or bool(self.task.alone)
        profiles = found.found.values()
        return self._on_cluster and (alone or (bool(profiles) and not any(profile.gains for profile in profiles)))

    # ------------------------------------------------------------------------------------------- looking ahead

    def _preview(self, place: RunFolder, tell: Callable[[str], None]) -> Preview:
        for role, source in (("train", self.train), ("valid", self.valid)):
            if isinstance(source, Iterator):
                raise UsageError(
                    f"{role}={source!r}: can be read only once, and a preview would use it up; "
                    "partition it first with hop.partition(...)"
                )
        began = time.perf_counter()
        tell("opening the data")
        data = self._data(place)
        backend = self._another_backend()
        crew = self._crew(backend)
        if backend.name in IN_TURN:
            crew = _Crew(crew.device, 1, f"{backend.name} workers take turns")
        forecast = self._forecast(backend, crew, data, place)
        for folder in (place.logs, place.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        return forecast.preview(self.folder, began=began, data_bytes=data.bytes_in(place.path), tell=tell)

    def _another_backend(self) -> Backend:
        """A backend of the same kind, since each can be started once, but for those of clusters."""
        if self._on_cluster and not isinstance(self.backend, type):
            return self.backend
        try:
            backend: Backend = self.backend() if isinstance(self.backend, type) else type(self.backend)()
        except TypeError as error:
            raise UsageError(
                f"backend={self.backend!r}: a preview needs a second one of its kind and cannot make it ({error}); "
                "give its class or its name"
            ) from error
        return backend


class _Crew(NamedTuple):
    """Workers on a device, and why so many."""

    device: str
    workers: int
    why: str


def _recalled(journal: Journal, view: LiveView) -> Iterator[Message]:
    for _, when, message in journal.read():
        view.recall(when, message)
        yield message


def _missing(controller: Controller, versions: Versions) -> Iterator[VersionLost]:
    """Versions that the journal knows and the disk does not."""
    for name, progress in controller.schedule.trials.items():
        for version, saved in progress.saved.items():
            try:
                versions.find(ref := VersionRef(name, version, saved.attempt))
            except CheckpointError as error:
                yield VersionLost(ref, str(error))


def _summary(dataset: Dataset) -> dict[str, Any]:
    return {"url": dataset.url, "rows": dataset.rows, "partitions": len(dataset), "fingerprint": dataset.fingerprint}


def _task_place(task: Task) -> dict[str, str]:
    """Where the task's class is defined. A script is the same place, whether Python or ``hopfleet run`` runs it."""
    module = type(task).__module__
    return {"module": "__main__" if module == UNDER_RUN else module, "name": type(task).__qualname__}


def _origin() -> dict[str, Any]:
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if script is not None and script.suffix == ".py" and script.is_file():
        return {"how": "script", "file": str(script.absolute()), "arguments": sys.argv[1:], "cwd": str(Path.cwd())}
    return {}
