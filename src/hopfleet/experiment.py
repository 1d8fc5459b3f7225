"""Experiment: what a user asks for, checked, and wired to everything that carries it out."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import itertools
import math
import os
import platform
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hopfleet.backends import BACKENDS
from hopfleet.backends.base import Backend, Cluster
from hopfleet.background import in_background
from hopfleet.controller import Controller
from hopfleet.data import Dataset, open_dataset, partition
from hopfleet.domain import space as spaces
from hopfleet.domain.messages import (
    Finish,
    Message,
    OperatorAsked,
    RunStarted,
    SaveDelayed,
    UnitFinished,
    VersionLost,
    VersionSaved,
    WishAnswered,
    WorkerJoined,
)
from hopfleet.domain.objectives import PARAMS, Limit
from hopfleet.domain.secrets import references
from hopfleet.domain.trial import Config, Trial
from hopfleet.errors import (
    CheckpointError,
    ExperimentExists,
    HopfleetError,
    Interrupted,
    TaskError,
    UsageError,
    WorkersLost,
)
from hopfleet.frameworks.base import Task
from hopfleet.loop import WAIT_SECONDS, Interrupts, Loop
from hopfleet.machine import choose_workers, spare_cores, this_machine
from hopfleet.monitor.history import History
from hopfleet.monitor.live import LiveView, open_view
from hopfleet.monitor.wording import plural
from hopfleet.preview import (
    BATCHES,
    SLOW,
    Outline,
    Pilot,
    Preview,
    foresee,
    pilot,
    previewed,
    slow,
    trial_for_probe,
    unsteady,
    worth_a_pilot,
)
from hopfleet.results import Results, load
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.flotillas import Fusion
from hopfleet.scheduler.patience import Timeout
from hopfleet.scheduler.policies import DEFAULT, POLICIES
from hopfleet.scheduler.policies.exact import Exact, require_solver, too_large
from hopfleet.search import SEARCHES
from hopfleet.search.base import MAX_LIVE, UNLIMITED, Earlier, Goal, Rule, Search, allowed, at_least_one, name_of
from hopfleet.search.stopping import Stopping
from hopfleet.secrets import read
from hopfleet.store.folder import RunFolder, check_name, home
from hopfleet.store.journal import Journal
from hopfleet.store.versions import Versions
from hopfleet.version import __version__
from hopfleet.worker.job import Finding, Job

RESUME = "HOPFLEET_RESUME"
"""Set by ``hopfleet resume`` while it runs a script again: the name of the experiment to go on with."""

PREVIEW = "HOPFLEET_PREVIEW"
"""Set by ``hopfleet run --preview`` while it loads a file: nothing may train."""

UNDER_RUN = "__hopfleet__"
"""The ``__name__`` of a file that ``hopfleet run`` loads."""

FUSES = ("exact", "fast", "off")
"""How trials train together: with the bits that they have alone, as fast as can be, not at all."""

LINGER_SECONDS = 0.75
"""Workers outlive their controller by no more than this."""

SAME = (
    *("task", "space", "search", "metric", "mode", "others", "limits", "rules", "points", "warm_start"),
    *("seed", "batch_size", "drop_last", "order", "fuse", "train", "valid"),
)
"""Parts of the definition that must not change between a run and its resumption."""

REPLACE = "fit(overwrite=True) replaces it, another name= keeps both"

VERIFY_BYTES = 4 << 30
"""Data sets up to this size are read and compared with their checksums before work starts."""

SHOWN = 64
"""Ended trials that the live view keeps in mind."""

CHECKED = 10_000
"""Configurations that are made and checked before work starts."""

DRAWN = 1_000
"""Configurations among which a pilot draws."""

PROBES = 3
"""Configurations to try on one batch before work starts, until one of them works."""

MEMBERS = 32
"""Trials that train together on a device of its own memory, at most."""

SHARED = 8
"""Transformed batches may take one such part of the free memory."""

IN_TURN = ("inline",)
"""Backends whose workers take turns: the order of their units changes nothing."""

PATIENCE = 20.0
"""Seconds that the pilot of a preview may take."""

START_SECONDS = 300.0
"""A backend that shows no worker for so long will show none."""


_NAMED: set[str] = set()
"""Names that this process made up, and that may not have a folder yet."""


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
        feeders: int | str = "auto",
    ) -> None:
        if not isinstance(task, Task):
            hint = "an instance, e.g. Digits()" if isinstance(task, type) else "derived from hop.TorchTask"
            raise UsageError(f"task={task!r}: must be {hint}")
        self.task = task
        self.space = space
        self.search = _named("search", search, SEARCHES)() if isinstance(search, str) else search
        if not isinstance(self.search, Search):
            raise UsageError(f"search={search!r}: must be a search, e.g. hop.Random(trials=16), or its name")
        if stop:
            self.search = _stopping(self.search, stop)
        self.goal = _goal(metric, mode, constraints, valid is not None)
        self.seed = _seed(seed)
        self.search.setup(space, seed=self.seed, goal=self.goal)
        #: Configurations to try first.
        self.points = [self._point(number, point) for number, point in enumerate(_listed("points", points, Mapping))]
        self.warm_start = _earlier_ones(warm_start)
        unit_timeout = "none" if unit_timeout is None else unit_timeout
        self.use(workers=workers, backend=backend, policy=policy, unit_timeout=unit_timeout, fuse=fuse)
        if order not in ("open", "fixed"):
            raise UsageError(f"order={order!r}: must be 'open' (the policy chooses) or 'fixed' (by the seed alone)")
        self.order = order
        self.device = device
        self.threads = at_least_one("threads", threads)
        self.batch_size = at_least_one("batch_size", batch_size)
        self.drop_last = drop_last
        self.feeders = _feeders(feeders)
        self.partitions = None if partitions is None else at_least_one("partitions", partitions)
        resumed = os.environ.pop(RESUME, None) if name is None else None
        self.name = check_name(name or resumed or _new_name(task))
        _NAMED.add(self.name)
        self.folder = RunFolder(Path(folder).expanduser().absolute() if folder is not None else home() / self.name)
        self.train = _dataset("train", train)
        self.valid = None if valid is None else _dataset("valid", valid)
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
            self.workers = workers if workers == "auto" else at_least_one("workers", workers)
        if backend is not None:
            self.backend = _named("backend", backend, BACKENDS) if isinstance(backend, str) else backend
        if policy is not None:
            self.policy_name, self.policy = policy, _named("policy", policy, POLICIES)
            if self.policy is Exact:
                require_solver()
                self.policy = partial(Exact, in_background)
        if unit_timeout is not None:
            self.unit_timeout = _timeout(unit_timeout)
        if fuse is not None:
            self.fuse = _fuse(fuse, self.task)

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
                train, valid, resumed = self._prepare(overwrite)
            except BaseException:
                self.folder.discard()
                raise
            history = self._history(len(train))
            with (
                contextlib.closing(Journal(self.folder.journal_file, writable=True)) as journal,
                open_view(history, quiet=quiet) as view,
            ):
                complete = self._run(train, valid, journal, view, resumed=resumed)
        if not complete:
            if self._reason:
                raise WorkersLost(f"{self.name}: {self._reason}: hopfleet resume {self.folder.handle}")
            raise Interrupted(
                f"{self.name} was interrupted and can go on: hopfleet resume {self.folder.handle}, or call fit() again"
            )
        self.results = Results(self.folder, task=self.task)
        return self.results

    # -------------------------------------------------------------------------------------------- preparation

    def _prepare(self, overwrite: bool) -> tuple[Dataset, Dataset | None, bool]:
        """The data sets, and whether an earlier run goes on. Everything is checked before anything is changed."""
        before, wishes = (None, 0) if overwrite else self._last_message()
        earlier = self._earlier(resumed=before is not None)
        if before is None:
            # Nothing there, or nothing that ever got going.
            self.folder.clear()
        elif isinstance(before, Finish) and before.complete and not wishes:
            raise ExperimentExists(
                f"name={self.name!r}: is finished already; hop.load({self.name!r}) opens its results, {REPLACE}"
            )
        resumed = before is not None
        train, valid = self._data(self.folder)
        definition = self._definition(train, valid) | earlier
        if resumed:
            self._check_same(definition)
        else:
            self.folder.create(definition)
        return train, valid, resumed

    def _data(self, place: RunFolder) -> tuple[Dataset, Dataset | None]:
        """The data sets, checked; what is not partitioned yet is partitioned into ``place``."""
        train = self._partitioned("train", self.train, self.partitions, place)
        valid = None if self.valid is None else self._partitioned("valid", self.valid, None, place)
        if valid is not None and valid.columns.keys() != train.columns.keys():
            mine, theirs = ", ".join(valid.columns), ", ".join(train.columns)
            raise UsageError(f"valid has the columns {mine}, train has {theirs}: they must be the same")
        for dataset in (train, valid) if valid is not None else (train,):
            # The nodes of a cluster check what they fetch.
            dataset.check(checksums=dataset.size <= VERIFY_BYTES and not self._on_cluster)
        self._check_configs(train)
        return train, valid

    def _last_message(self) -> tuple[Message | None, int]:
        """The last message of an earlier run, and how many wishes have come since."""
        if not (self.folder.exists and self.folder.journal_file.exists()):
            return None, 0
        with contextlib.closing(Journal(self.folder.journal_file)) as journal:
            return journal.last(), len(journal.wishes())

    def _check_same(self, definition: Mapping[str, Any]) -> None:
        """Refuse to go on with an experiment that was defined otherwise."""
        before = self.folder.definition()
        differ = [key for key in SAME if before.get(key) != definition.get(key)]
        if differ:
            raise ExperimentExists(
                f"name={self.name!r}: an unfinished experiment of that name has another {', '.join(differ)}; "
                f"resume it with its own definition; {REPLACE}"
            )

    def _partitioned(self, role: str, source: Any, partitions: int | None, place: RunFolder) -> Dataset:
        if isinstance(source, Dataset):
            return source
        rows = _rows(source)
        if partitions is None:
            partitions = max(1, min(8, rows // 256)) if rows is not None else 8
        folder = place.data / role
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
                again = partition(source, Path(beside) / role, partitions=partitions, seed=self.seed)
                if again.fingerprint != open_dataset(folder).fingerprint:
                    raise ExperimentExists(
                        f"name={self.name!r}: an unfinished experiment of that name has another {role}; {REPLACE}"
                    )
            return open_dataset(folder)
        return partition(source, folder, partitions=partitions, seed=self.seed)

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

    def _known_configs(self, most: int) -> Iterator[tuple[int, Config]]:
        """The configurations that are known before work starts, of the first so many trials, with their numbers."""
        yield from enumerate([*self.points, *self.search.examples(most)][:most])

    def _point(self, number: int, point: Mapping[str, Any]) -> Config:
        """A point to try first, with draws for what it leaves out."""

        def attempt(count: int) -> Config:
            which = f"{number}.{count}" if count else number
            return spaces.complete(self.space, point, seed=self.seed, number=which)

        return allowed(self.goal, attempt, f"completion of the point {dict(point)}")

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

    def _definition(self, train: Dataset, valid: Dataset | None) -> dict[str, Any]:
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
            "train": _summary(train),
            "valid": None if valid is None else _summary(valid),
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

    # ------------------------------------------------------------------------------------------------ running

    def _run(self, train: Dataset, valid: Dataset | None, journal: Journal, view: LiveView, *, resumed: bool) -> bool:
        backend: Backend = self.backend() if isinstance(self.backend, type) else self.backend
        began = time.monotonic()
        device, devices = self._device()
        workers, why = self._worker_count(backend, device, devices)
        count = f"{workers} worker{'s' if workers > 1 else ''}"
        view.note(f"{self.name}: {count} on {device} ({why}), run folder {self.folder.path}")
        if self.policy_name == "exact" and (warning := too_large(min(self.search.trials, MAX_LIVE), len(train))):
            view.warn(warning)
        for text in self._apart():
            view.warn(text)
        outline = self._outline(train, valid, workers)
        versions = backend.versions(self.folder.checkpoints)
        versions.sweep()
        versions.clear_batches()
        complete = False
        try:
            backend.start(self._job(train, valid, self.folder, device, workers), workers)
            found = self._remembered(device) if resumed else self._foresee(backend, outline, view, device)
            controller = self._controller(outline, found, view)
            controller.restore(_recalled(journal, view))
            loop = Loop(controller, backend, journal, versions, _Watcher(view))
            versions.tidy(controller.schedule.files())
            missing = list(_missing(controller, versions))
            with Interrupts(loop.drain):
                complete = loop.run([RunStarted(__version__, workers, len(journal.wishes())), *missing])
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

    def _job(self, train: Dataset, valid: Dataset | None, place: RunFolder, device: str, workers: int) -> Job:
        machine = this_machine()
        spare = spare_cores(machine, device=device, workers=workers, threads=self.threads)
        return Job(
            task=self.task,
            train=train,
            valid=valid,
            checkpoints=place.checkpoints,
            logs=place.logs,
            seed=self.seed,
            device=device,
            threads=self.threads,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            fast=self.fuse == "fast",
            count_parameters=self.goal.counts_parameters,
            run=uuid.uuid4().hex,
            feeders=spare if isinstance(self.feeders, str) else self.feeders,
            shared_bytes=machine.memory // SHARED,
        )

    def _outline(self, train: Dataset, valid: Dataset | None, workers: int) -> Outline:
        return Outline(
            name=self.name,
            # Of a search that goes on until a budget is spent, as many as can be under way at once.
            trials=self.search.trials if self.search.trials < UNLIMITED else MAX_LIVE,
            open_ended=self.search.trials >= UNLIMITED,
            epochs=self.search.max_epochs,
            rows=train.partition_rows,
            valid_rows=() if valid is None else valid.partition_rows,
            workers=workers,
            policy_name=self.policy_name,
            policy=self.policy,
            fixed_order=self.order == "fixed",
            seed=self.seed,
            goal=self.goal,
            known=not self.search.adaptive,
            configs={} if self.search.adaptive else dict(self._known_configs(DRAWN)),
            fuse="off" if self.task.alone else self.fuse,
            crowded=not spare_cores(this_machine(), device=self._device()[0], workers=workers, threads=self.threads),
        )

    def _controller(self, outline: Outline, found: Pilot, view: LiveView) -> Controller:
        # A search keeps what it heard; a run that goes on begins with one that has heard nothing.
        search = copy.deepcopy(self.search)
        self._learn(search, view)
        return Controller(
            search,
            self.policy(),
            partitions=len(outline.rows),
            valid_partitions=len(outline.valid_rows),
            seed=self.seed,
            estimates=Estimates(outline.rows, outline.prior(found) if _timed(found) else None),
            fixed_order=outline.fixed_order,
            points=self.points,
            unit_timeout=self.unit_timeout,
            fusion=self._fusions(outline.workers, found).get(self.fuse),
            stay=self._on_cluster,
            ahead=self._told_ahead(found),
        )

    def _told_ahead(self, found: Pilot) -> bool:
        """Whether models are to travel while others train: where hops cost network, unless it is better that trials
        train together, since then nobody is left to wait."""
        apart = self.fuse == "off" or bool(self.task.alone)
        findings = found.found.values()
        return self._on_cluster and (apart or (bool(findings) and not any(finding.gains for finding in findings)))

    def _fusions(self, workers: int, found: Pilot) -> dict[str, Fusion]:
        """Which trials may train together: those that want the same batches; if weights are stacked, those alike."""
        if self.task.alone:
            return {}
        # A device has memory of its own; half of it is left for what else is there.
        spare = min((finding.spare for finding in found.found.values()), default=0) // 2
        memory = spare or this_machine().memory // (4 * workers)
        size = max((finding.memory for finding in found.found.values()), default=0)
        # Members that step in turn are never too many: nobody should be left over for their sake.
        most = MEMBERS if spare else 2 * MEMBERS
        return {fuse: Fusion(partial(self._kin, fuse), most, memory, size) for fuse in FUSES if fuse != "off"}

    def _kin(self, fuse: str, config: Config) -> Hashable:
        words = {key: value for key, value in config.items() if not isinstance(value, float)}
        return config.get("batch_size", self.batch_size), str(words) if fuse == "fast" else ""

    def _apart(self) -> Iterator[str]:
        """Why no two trials can train together although they may."""
        if self.fuse == "off":
            return
        if self.task.alone:
            yield f"trials of {type(self.task).__name__} train one by one: {self.task.alone}"
        configs = [config for _, config in self._known_configs(DRAWN)]
        if (
            self.fuse == "fast"
            and len(configs) > 1
            and len({self._kin("fast", config) for config in configs}) == len(configs)
        ):
            differ = [
                key
                for key in dict.fromkeys(key for config in configs for key in config)
                if len({str(config.get(key)) for config in configs if not isinstance(config.get(key), float)}) > 1
            ]
            yield (
                f"fuse='fast': no two trials can train together, since they differ in {', '.join(differ)}; only those "
                "do that have the same batch_size and differ in numbers with a decimal point alone"
            )

    # ------------------------------------------------------------------------------------------- looking ahead

    def _foresee(self, backend: Backend, outline: Outline, view: LiveView, device: str) -> Pilot:
        """Check the metric, time some configurations if that may pay, and keep what follows from it."""
        configs = dict(self._known_configs(DRAWN))
        sizes = (config.get("batch_size", self.batch_size) for config in configs.values())
        batch_size = max(sizes, default=self.batch_size)
        cheap = backend.name in IN_TURN or not worth_a_pilot(outline, batch_size)
        probed = self._probe(backend, 0 if cheap else BATCHES)
        for finding in probed.values():
            if finding.unsteady:
                view.warn(unsteady(f"{type(self.task).__name__}.transform", finding.unsteady))
        if cheap:
            return Pilot({number: finding for number, finding in probed.items() if not finding.error})
        outline = dataclasses.replace(outline, fusions=self._fusions(outline.workers, Pilot(probed)))
        found, rehearsal = foresee(backend.probe, configs, outline, probed)
        if rehearsal is not None:
            self.folder.keep_prediction(rehearsal.as_json())
        self.folder.keep_profile(_profile(device, found, configs))
        if found.seconds > SLOW:
            view.note(f"a pilot of {plural(found.tried, 'configuration')} took {found.seconds:.1f} s")
        return found

    def _remembered(self, device: str) -> Pilot:
        """What a pilot has found in an earlier run, of the configurations of this one."""
        known = _findings(self.folder.profile(), device)
        return Pilot({n: known[repr(config)] for n, config in self._known_configs(DRAWN) if repr(config) in known})

    def _preview(self, place: RunFolder, tell: Callable[[str], None]) -> Preview:
        for role, source in (("train", self.train), ("valid", self.valid)):
            if isinstance(source, Iterator):
                raise UsageError(
                    f"{role}={source!r}: can be read only once, and a preview would use it up; "
                    "partition it first with hop.partition(...)"
                )
        began = time.perf_counter()
        tell("opening the data")
        train, valid = self._data(place)
        device, devices = self._device()
        backend = self._another_backend()
        workers, why = self._worker_count(backend, device, devices)
        if backend.name in IN_TURN:
            workers, why = 1, f"{backend.name} workers take turns"
        outline = self._outline(train, valid, workers)
        configs = dict(self._known_configs(DRAWN))
        for folder in (place.logs, place.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        tell("starting a worker")
        try:
            job = self._job(train, valid, place, device, workers)
            backend.start(dataclasses.replace(job, run="", compare=not self.task.alone), 1)
            _wait_for_a_worker(backend)
            started = time.perf_counter() - began
            known = {**self._remembered(device).found, **self._probe(backend, BATCHES)}

            def probe(trial: Trial, batches: int) -> Finding:
                tell(f"timing {trial.id}")
                return backend.probe(trial, batches)

            found = pilot(probe, configs, seed=self.seed, known=known, budget=lambda found: PATIENCE)
            backend.close()
        except BaseException:
            backend.close(kill=True)
            raise
        if not found.found:
            failed = next(iter(found.failed.values()), None)
            said = f"the first one says {failed.error}" if failed else f"backend={backend.name!r} trains nothing"
            raise TaskError(f"no configuration could be timed; {said}")
        return previewed(
            dataclasses.replace(outline, fusions=self._fusions(workers, found)),
            found,
            why=why,
            device=device,
            start_up=started,
            data_bytes=sum(
                each.size for each in (train, valid) if each is not None and place.path in Path(each.url).parents
            ),
            tell=tell,
        )

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

    @property
    def _on_cluster(self) -> bool:
        return issubclass(self.backend if isinstance(self.backend, type) else type(self.backend), Cluster)

    def _device(self) -> tuple[str, int]:
        if self._on_cluster:
            return self.device, 1
        found, count = self.task.devices()
        if self.device == "auto":
            return found, count
        return self.device, count if self.device == found else 1

    def _worker_count(self, backend: Backend, device: str, devices: int) -> tuple[int, str]:
        """How many workers, and why."""
        if isinstance(self.workers, int):
            return self.workers, "as asked"
        trials = len(self.points) + self.search.trials
        if isinstance(backend, Cluster):
            room, why = backend.offer(device, self.threads)
            return (room, why) if room <= trials else (trials, "as many as there are trials")
        return choose_workers(this_machine(), device=device, devices=devices, threads=self.threads, trials=trials)

    def _probe(self, backend: Backend, batches: int) -> dict[int, Finding]:
        """Try configurations on one batch: a metric that does not exist, or a transform that is not the same each time,
        is known before work starts.

        Returns what was found, by trial number; ``batches`` of training are timed on the way.
        """
        named = [name for name in self.goal.metrics if not name.startswith("train_")]
        if self.valid is None and any(name != PARAMS for name in named):
            metric = next(name for name in named if name != PARAMS)
            raise UsageError(f"metric={metric!r}: there is no valid=... data; give some, or use metric='train_loss'")
        found: dict[int, Finding] = {}
        wanted = named or self.task.transform is not None
        for number, config in self._known_configs(PROBES) if wanted else ():
            finding = found[number] = backend.probe(trial_for_probe(number, config), batches)
            if finding.metrics or not finding.error:
                missing = next((name for name in named if name not in finding.metrics), None)
                if missing is not None:
                    known = ", ".join(finding.metrics)
                    raise UsageError(f"metric={missing!r}: metrics() does not return it; it returns {known}")
                break
        return found


class _Watcher:
    """Shows messages and what came of wishes, and warns of configuration keys that no trial reads."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._unused: set[str] | None = None
        self._asked: dict[int, OperatorAsked] = {}
        self._delayed: set[int] = set()

    def update(self, time: float, message: Message) -> None:
        self._view.update(time, message)
        match message:
            case UnitFinished():
                unused = set(message.unused)
                self._unused = unused if self._unused is None else self._unused & unused
            case Finish():
                for key in sorted(self._unused or ()):
                    self._view.warn(f"the task never read config[{key!r}]: is it misspelt, or not needed?")
            case SaveDelayed():
                self.waiting(message.error)
                self._delayed.add(message.attempt)
            case VersionSaved() if message.attempt in self._delayed:
                self._delayed.discard(message.attempt)
                self.waiting("")
            case OperatorAsked(wish="drain"):
                self._view.note("finishing running units; press Ctrl-C again to stop at once")
            case OperatorAsked():
                self._asked[message.number] = message
            case WishAnswered():
                asked = self._asked.pop(message.number, OperatorAsked("an earlier wish", who="somebody"))
                refused = "" if message.granted else f"{asked.wish} is refused: "
                self._view.note(f"{asked.who}: {refused}{message.text}")
            case _:
                pass

    def refresh(self) -> None:
        self._view.refresh()

    def waiting(self, text: str) -> None:
        self._view.note(f"waiting: {text}; it goes on by itself then" if text else "it goes on")


def _timed(found: Pilot) -> bool:
    return any(finding.seconds_per_row for finding in found.found.values())


def _profile(device: str, found: Pilot, configs: Mapping[int, Config]) -> dict[str, Any]:
    """What a pilot has found, as JSON can hold it."""
    by_config = {repr(configs[number]): dataclasses.asdict(finding) for number, finding in found.found.items()}
    return {"hopfleet": __version__, "device": _device_class(device), "found": by_config}


def _findings(profile: Mapping[str, Any], device: str) -> dict[str, Finding]:
    """The findings of a profile, by configuration, if they were made on such a device."""
    if (profile.get("hopfleet"), profile.get("device")) != (__version__, _device_class(device)):
        return {}
    return {
        config: Finding(**{**found, "metrics": tuple(found["metrics"])}) for config, found in profile["found"].items()
    }


def _device_class(device: str) -> str:
    return f"{device} of {platform.node()}"


def _wait_for_a_worker(backend: Backend) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not any(isinstance(event, WorkerJoined) for event in backend.receive(WAIT_SECONDS)):
        if time.monotonic() > deadline:
            raise WorkersLost(f"no worker was ready after {START_SECONDS:.0f} s")


def _recalled(journal: Journal, view: LiveView) -> Iterator[Message]:
    for _, when, message in journal.read():
        view.recall(when, message)
        yield message


def _missing(controller: Controller, versions: Versions) -> Iterator[VersionLost]:
    """Versions that the journal knows and the disk does not."""
    for name, progress in controller.schedule.trials.items():
        for version, saved in progress.saved.items():
            try:
                versions.find(name, version, saved.attempt)
            except CheckpointError as error:
                yield VersionLost(name, version, str(error), saved=saved.attempt)


def _goal(metric: Any, mode: Any, constraints: Any, has_valid: bool) -> Goal:
    if metric is None:
        metric = "loss" if has_valid else "train_loss"
    several = not isinstance(metric, str)
    names = _listed("metric", metric, str) if several else [metric]
    if not names:
        raise UsageError("metric=[]: name at least one metric")
    if len(set(names)) < len(names):
        raise UsageError(f"metric={metric!r}: names a metric twice; name each once")
    modes = _modes(names, mode, several)
    limits, rules = _constraints(constraints)
    return Goal(names[0], modes[0], tuple(zip(names[1:], modes[1:], strict=True)), limits, rules)


def _modes(names: Sequence[str], mode: Any, several: bool) -> list[str]:
    if mode is None:
        unclear = [name for name in names if not name.endswith("loss")]
        if unclear:
            remedy = "mode=['max', 'min', ...], one for each metric" if several else "mode='max' or mode='min'"
            raise UsageError(f"metric={unclear[0]!r}: say {remedy}")
        return ["min"] * len(names)
    modes = [mode] if isinstance(mode, str) else _listed("mode", mode, str)
    if len(modes) != len(names):
        raise UsageError(f"mode={mode!r}: must have one mode for each of the {len(names)} metrics")
    for one in modes:
        if one not in ("min", "max"):
            raise UsageError(f"mode={one!r}: must be 'min' or 'max'")
    return modes


def _constraints(constraints: Any) -> tuple[tuple[Limit, ...], tuple[Rule, ...]]:
    if isinstance(constraints, str) or callable(constraints):
        constraints = [constraints]
    listed = _listed("constraints", constraints, object)
    for one in listed:
        if not isinstance(one, str) and not callable(one):
            raise UsageError(
                f"constraint {one!r}: must be a function of the configuration, or text such as 'params <= 100000'"
            )
    limits = tuple(Limit.parse(one) for one in listed if isinstance(one, str))
    return limits, tuple(one for one in listed if not isinstance(one, str))


def _listed(name: str, values: Any, kind: type) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{name}={values!r}: must be a list")
    listed = list(values)
    wrong = [value for value in listed if not isinstance(value, kind)]
    if wrong:
        wanted = "text" if kind is str else "a dict of names to values"
        raise UsageError(f"{name}=[{wrong[0]!r}]: each must be {wanted}")
    return listed


def _earlier_ones(warm_start: Any) -> list[Any]:
    if isinstance(warm_start, str | os.PathLike | Results):
        warm_start = [warm_start]
    for source in [warm_start] if not isinstance(warm_start, Iterable) else warm_start:
        if not isinstance(source, str | os.PathLike | Results):
            raise UsageError(f"warm_start={source!r}: must be the name of an experiment, its results, or a list")
    return list(warm_start)


def _stopping(search: Search, rules: Any) -> Search:
    """A search with rules that end trials, or everything, early."""
    return Stopping(search, list(rules) if isinstance(rules, Iterable) else [rules])


def _seed(seed: Any) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UsageError(f"seed={seed!r}: must be an integer")
    return seed


def _fuse(fuse: str, task: Task) -> str:
    if fuse not in FUSES:
        raise UsageError(f"fuse={fuse!r}: must be one of {', '.join(map(repr, FUSES))}")
    if fuse == "fast" and task.alone:
        raise UsageError(f"fuse='fast': trials of {type(task).__name__} cannot train together: {task.alone}")
    return fuse


def _feeders(feeders: Any) -> int | str:
    whole = isinstance(feeders, int) and not isinstance(feeders, bool) and feeders >= 0
    if feeders != "auto" and not whole:
        raise UsageError(
            f"feeders={feeders!r}: must be 'auto' (as many processors as are left over), or a number of processes "
            "from 0 on"
        )
    return feeders  # type: ignore[no-any-return]


def _timeout(timeout: Any) -> Timeout:
    if timeout in ("auto", "none"):
        return "auto" if timeout == "auto" else None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise UsageError(
            f"unit_timeout={timeout!r}: must be 'auto' (judged by estimates), None, or seconds above 0; give a number "
            "that no healthy unit takes"
        )
    return float(timeout)


def _named(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UsageError(f"{kind}={name!r}: unknown; there are {', '.join(sorted(known))}")
    return known[name]


def _new_name(task: Task) -> str:
    name = f"{type(task).__name__.lower()}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    taken = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
    return next(free for free in taken if free not in _NAMED and not (home() / free).exists())


def _dataset(role: str, source: Any) -> Any:
    """A data set that exists is opened now; other sources are kept to be partitioned when work starts."""
    if source is None:
        raise UsageError(f"{role}=None: give a data set folder, or arrays")
    if isinstance(source, (str, os.PathLike)) and not str(source).endswith(".parquet"):
        return open_dataset(source)
    return source


def _rows(source: Any) -> int | None:
    if isinstance(source, Mapping):
        return min((len(column) for column in source.values()), default=0)
    try:
        return len(source)
    except TypeError:
        return None


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
