"""One run of an experiment, in order: plan, start the workers, restore, loop, end."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.backends.base import Backend, Supervisor
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import Message, RunStarted, RunUnit
from hopfleet.domain.placement import AUTO
from hopfleet.errors import HopfleetError, JournalError, describe
from hopfleet.experiment import arguments
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.forecasting import forecast_of, notes_of, plan_of, warnings_of
from hopfleet.experiment.preparation import Start, take_back, verify_data
from hopfleet.experiment.resources import on_cluster, worker_limit
from hopfleet.experiment.teams import find_teams
from hopfleet.forecast.forecast import Forecast
from hopfleet.forecast.profiling import Profiles
from hopfleet.monitor.history import History
from hopfleet.monitor.observer import Observer
from hopfleet.monitor.terminal.live import LiveView, open_view
from hopfleet.monitor.terminal.watcher import watchers
from hopfleet.monitor.wording import plural
from hopfleet.runtime.callbacks import CallbackObserver, ExperimentInfo
from hopfleet.runtime.effects import missing_versions
from hopfleet.runtime.load_record import LoadRecord
from hopfleet.runtime.loop import Interrupts, Loop
from hopfleet.runtime.records import HealthRecord, TrialRecords
from hopfleet.search.base import Earlier, Search
from hopfleet.store.base import JournalStore, VersionStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import LOCAL, MALFORMED, recalled
from hopfleet.store.replacing import drop
from hopfleet.store.shared_memory import SharedMemory
from hopfleet.support.background import Chores
from hopfleet.version import __version__

LINGER_SECONDS = 0.75
"""Longest time in seconds that workers outlive their controller."""

SHOWN = 64
"""Ended trials that the live view keeps."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    complete: bool  #: whether the search is complete
    reason: str = ""  #: why the run ended early, unless a person asked for the end
    failing: bool = False  #: whether the run ended early because its trials failed in the same way


def run(definition: Definition, start: Start, backend: Backend, *, quiet: bool) -> Ending:
    """Run until the search is complete or the run ends early. A run that is refused leaves no folder behind."""
    refused = False
    try:
        with (
            contextlib.closing(definition.store.journal(definition.folder, writable=True)) as journal,
            open_view(_history(definition, len(start.data.train)), quiet=quiet) as view,
        ):
            try:
                return _run(definition, start, backend, journal, view)
            except BaseException:
                refused = not start.resumed and journal.last() is None
                raise
    finally:
        if refused:
            take_back(definition.folder)


def _run(definition: Definition, start: Start, backend: Backend, journal: JournalStore, view: LiveView) -> Ending:
    began, folder = time.monotonic(), definition.folder
    forecast = _planned(definition, start, backend, view)
    workers = forecast.outline.workers
    versions = _versions(definition, backend)
    memory = SharedMemory(folder.checkpoints)
    memory.sweep()
    memory.clear_batches()
    try:
        backend.start(forecast.spec, workers)
        if not _tries(definition):
            verify_data(definition, start.data)  # meanwhile, the process that forks workers imports their framework
        later: list[Callable[[], object]] = []
        with Chores() as chores:
            found = (
                forecast.from_record(folder)
                if start.resumed
                else forecast.foresee(folder, view, later.append, fail_fast=definition.run_options.fail_fast)
            )
            controller = _controller(definition, forecast, found, view, worker_limit(backend, workers))
            drop(folder)
            info = ExperimentInfo(
                definition.name, folder.path, definition.goal.metric, definition.goal.mode, start.resumed
            )
            with CallbackObserver(definition.callbacks, info) as callbacks:
                observers = _observers(view, callbacks, chores, folder, backend)
                observers.append(OnceAtWork(later, chores))
                _restore(controller, journal, observers)
                loop = Loop(controller, backend, journal, versions, observers)
                missing = list(missing_versions(controller.schedule, versions))
                requests = len(journal.requests.pending())
                with Interrupts(loop.drain):  # the first Ctrl-C drains the run
                    complete = loop.run([RunStarted(__version__, workers, requests, folder.definition()), *missing])
            backend.close(kill=loop.stuck)
        if start.resumed:  # workers of a controller that was killed may have written until now
            time.sleep(max(0.0, LINGER_SECONDS - (time.monotonic() - began)))
        versions.tidy(controller.schedule.files())
    except BaseException:
        backend.close(kill=True)
        raise
    finally:
        memory.clear_batches()
    return Ending(complete, loop.reason, controller.failing)


# ---------------------------------------------------------------------------------------------------------------- plan


def _history(definition: Definition, partitions: int) -> History:
    goal = definition.goal
    mode: Any = goal.mode
    return History(
        metric=goal.metric,
        mode=mode,
        partitions=partitions,
        name=definition.name,
        limit=SHOWN,
        others=goal.others,
        limits=goal.limits,
        expected=definition.search.expected(len(definition.points)),
    )


def _tries(definition: Definition) -> bool:
    """Whether trial runs decide how workers train."""
    return definition.parallelism == (AUTO,)


def _planned(definition: Definition, start: Start, backend: Backend, view: LiveView) -> Forecast:
    """Plan the workers, and tell the user of the plan."""
    if _tries(definition):
        verify_data(definition, start.data)  # before trial runs read it
    plan = plan_of(definition, backend, find_teams(definition, backend, start.data, view.note, keep=True))
    if start.note:
        view.note(start.note)
    count = plural(plan.workers, "worker")
    view.note(f"{definition.name}: {count} on {plan.device} ({plan.why}), run folder {definition.folder.path}")
    forecast = forecast_of(definition, backend, plan, start.data, definition.folder)
    for text in filter(None, [start.warning, *warnings_of(definition, forecast)]):
        view.warn(text)
    for text in notes_of(definition, forecast):
        view.note(text)
    return forecast


def _versions(definition: Definition, backend: Backend) -> VersionStore:
    """Return the store of versions: the backend's own, unless the run has another store and one machine."""
    if definition.run_options.store == LOCAL or on_cluster(backend):
        return backend.versions(definition.folder.checkpoints)
    return definition.store.versions(definition.folder.checkpoints)


# ------------------------------------------------------------------------------------------------------------- restore


def _controller(
    definition: Definition, forecast: Forecast, found: Profiles, view: LiveView, max_workers: int
) -> Controller:
    # A search remembers what it was told; each run starts with a copy that was told nothing.
    search = copy.deepcopy(definition.search)
    if definition.warm_start:
        view.note(_learn(search, definition.folder))
    outline, options = forecast.outline, definition.run_options
    return Controller(
        search,
        definition.policy(),
        partitions=len(outline.rows),
        valid_partitions=len(outline.valid_rows),
        seed=definition.seed,
        max_workers=max_workers,
        estimates=outline.estimates(found),
        fixed_order=outline.fixed_order,
        deterministic=options.deterministic,
        points=definition.points,
        unit_timeout=arguments.unit_timeout(options.unit_timeout),
        fusion=forecast.fusions(found.found).get(definition.worker_options.fuse),
        sticky=on_cluster(definition.backend),
        lookahead=looks_ahead(definition, found),
        fail_fast=options.fail_fast,
        scaling=outline.scaling,
        fleet=outline.fleet,
    )


def _learn(search: Search, folder: RunFolder) -> str:
    """Tell the search about the trials of earlier experiments, and return what came of it."""
    told = folder.definition()["warm_start"]
    used = search.learn([Earlier(trial["config"], trial["metrics"]) for trial in told["trials"]])
    names = ", ".join(told["names"])
    return f"warm start: {used} of {len(told['trials'])} earlier trials ({names}) are of use to {type(search).__name__}"


def looks_ahead(definition: Definition, found: Profiles) -> bool:
    """Whether models travel while other models train.

    Looking ahead pays where a hop uses the network. Trials that gain by training together are better off without,
    since every waiting trial joins them.
    """
    separate = definition.worker_options.fuse == "off" or bool(definition.task.framework.fusion_blocker)
    gains = [profile.gains for profile in found.found.values()]
    return on_cluster(definition.backend) and (separate or (bool(gains) and not any(gains)))


class OnceAtWork(Observer):
    """Adds jobs to the chores as soon as a worker has something to do: no worker shall wait for them."""

    def __init__(self, jobs: list[Callable[[], object]], chores: Chores) -> None:
        self._jobs, self._chores = jobs, chores

    def update(self, time: float, message: Message) -> None:
        while self._jobs and isinstance(message, RunUnit):
            self._chores.add(self._jobs.pop(0))


def _observers(
    view: LiveView, callbacks: CallbackObserver, chores: Chores, folder: RunFolder, backend: Backend
) -> list[Observer]:
    """Return the observers of a run, in the order in which they hear of messages."""
    supervised: list[Observer] = []
    if isinstance(backend, Supervisor):
        supervised = [HealthRecord(folder, backend), LoadRecord(folder.load_file, backend, chores)]
    return [
        *(view.history, view, *watchers(view), *([callbacks] if callbacks.hooked else [])),
        TrialRecords(folder.trials, chores),
        *supervised,
    ]


def _restore(controller: Controller, journal: JournalStore, observers: Sequence[Observer]) -> None:
    """Apply the messages of earlier runs. Observers take note of them first."""
    try:
        controller.restore(_recalled(journal, observers))
    except HopfleetError:
        raise
    except MALFORMED as error:
        raise JournalError(
            f"{journal.path}: cannot be replayed ({describe(error)}); the journal is damaged, or the search has changed"
        ) from error


def _recalled(journal: JournalStore, observers: Sequence[Observer]) -> Iterator[Message]:
    """Yield the messages of earlier runs, after the observers have taken note of them."""
    recalls = [observer.recall for observer in observers]
    for when, message in recalled(journal):
        for recall in recalls:
            recall(when, message)
        yield message
