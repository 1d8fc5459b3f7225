"""The start of a run: what an earlier run of the same name has left, and the data to train on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from hopfleet.backends.base import Backend, WarmsUp
from hopfleet.data import Dataset, open_dataset
from hopfleet.domain.messages import Finish, RequestAnswered, TrialEnded, UnitFinished
from hopfleet.domain.placement import AUTO
from hopfleet.domain.trial import TrialState
from hopfleet.errors import DataChanged, UsageError
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.definition_record import changed_code, define, earlier_trials, refuse_changes
from hopfleet.experiment.resources import Data, check_configs, check_device, on_cluster, partitioned
from hopfleet.runs.guest import Guest
from hopfleet.store.base import JournalStore
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import last_message
from hopfleet.store.replacing import put_back, set_aside
from hopfleet.support.files import make_folder

BUILT = 4
"""Configurations whose models are built before work starts, if a strategy must cut them."""

CHECKED = 10_000
"""Configurations that are made and checked before work starts."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a run starts: anew, or where an earlier run of the same definition has ended."""

    data: Data
    resumed: bool = False
    finished: bool = False  #: whether the earlier run has left nothing to do
    note: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What an earlier run has left in its folder."""

    finished: bool
    #: Whether trials failed, none of them finished a unit, and no request has changed the run.
    every_trial_failed: bool


def lock(folder: RunFolder) -> IO[bytes]:
    """Lock a run folder, which is made if it does not exist. Raise UsageError if it cannot be written."""
    try:
        file = folder.lock()
        put_back(folder)  # a process that was about to replace the run may have died
        return file
    except OSError as error:
        raise UsageError(
            f"{folder.path}: the run folder cannot be written ({error.strerror or error}); set HOPFLEET_HOME, or "
            "run_options=hop.RunOptions(folder=...), to a folder that you may write to"
        ) from error


def take_back(folder: RunFolder) -> None:
    """Undo what a refused run did to its folder: put an earlier run back, or delete a new folder."""
    with contextlib.suppress(OSError):
        if not put_back(folder):
            folder.discard()


@contextlib.contextmanager
def warmed_up(definition: Definition, backend: Backend) -> Iterator[None]:
    """Let a backend load the framework while the data is prepared, unless trial runs need the machine until then."""
    if not isinstance(backend, WarmsUp) or definition.parallelism == (AUTO,):
        yield
        return
    logs = definition.folder.logs
    make_folder(logs, private=True)
    with backend.warmed_up(definition.task.preload, definition.worker_options.threads, logs):
        yield


def prepare(definition: Definition, *, overwrite: bool, warm_up: Callable[[], None]) -> Start:
    """Prepare the run folder and the data. The caller holds the lock of the folder.

    ``warm_up`` is called before the data is read, unless there is nothing to train.
    """
    folder = definition.folder
    check_device(definition.backend, definition.task, definition.worker_options.device)
    earlier = None if overwrite else _earlier(definition)
    fresh = earlier is None or earlier.every_trial_failed
    before: Mapping[str, Any] = {} if fresh else folder.definition()
    warm_start = earlier_trials(definition.warm_start, before)
    if fresh:
        set_aside(folder)
    if earlier is None or not earlier.finished:
        warm_up()
    changes: list[str] = []
    data = open_data(definition, folder, changes)
    record = define(definition, data) | warm_start
    if earlier is None or earlier.every_trial_failed:
        check_data(definition, data)
        folder.create(record)
        return Start(data, note=f"{definition.name}: replaces a run in which every trial failed" if earlier else "")
    refuse_changes(definition, before, record, changes, finished=earlier.finished)
    if earlier.finished:
        return Start(data, finished=True)
    check_data(definition, data)
    warning = ""
    if pieces := changed_code(before, record):
        warning = (
            f"the task's code has changed since this run began ({pieces}): what was trained before stays as it is; "
            "fit(overwrite=True) starts over"
        )
        folder.create({**before, "code": record["code"]})
    return Start(data, resumed=True, warning=warning)


def open_data(definition: Definition, place: RunFolder, changes: list[str] | None = None) -> Data:
    """Return the data; rows that are not partitioned yet are partitioned into ``place``.

    If ``place`` holds other data from an earlier run, that data is returned, and ``changes`` tells how it differs.
    """

    folds = definition.folds

    def opened(role: str, source: Any, partitions: int | None) -> Dataset:
        folder = place.data / role
        try:
            return partitioned(source, folder, partitions=partitions, seed=definition.seed, least=folds)
        except DataChanged as error:
            if changes is None:
                raise
            changes.extend(f"{role}: {change}" for change in error.changes)
            return open_dataset(folder)

    train = opened("train", definition.train, definition.partitions)
    if folds > len(train):
        raise UsageError(
            f"valid='{definition.valid}': needs at least {folds} partitions, and the training data has {len(train)}; "
            "use more partitions, or fewer folds"
        )
    if folds and (made := len(train.manifest.folds)) not in (0, folds):
        raise UsageError(
            f"valid='{definition.valid}': {train.url} was prepared with folds={made}; use valid='kfold({made})', or "
            f"prepare the data with folds={folds}"
        )
    if folds:
        return Data(train, train)
    return Data(train, None if definition.valid is None else opened("valid", definition.valid, None))


def check_data(definition: Definition, data: Data) -> None:
    """Raise an error unless the data is complete and suits the configurations that are known in advance."""
    data.check()
    configs = definition.examples(CHECKED)
    team = max(shape.devices for shape in definition.parallelism)
    check_configs(configs, data.train, definition.batch_size, team)
    teams = {shape for shape in definition.parallelism if shape.devices > 1}
    for shape, config in itertools.product(teams, configs[:BUILT]):
        with Guest(definition.task).building():
            definition.task.framework.check_team(config, shape, seed=definition.seed)


def verify_data(definition: Definition, data: Data) -> None:
    """Raise DataError for a file with a wrong checksum. The nodes of a cluster check the files that they fetch."""
    if not on_cluster(definition.backend):
        data.verify()


def _earlier(definition: Definition) -> _Earlier | None:
    """Return what an earlier run has left; None if there was none, or if it ended before its first message."""
    folder, store = definition.folder, definition.store
    last, requests = last_message(folder, store)
    if last is None:
        return None
    finished = isinstance(last, Finish) and last.complete and not requests
    with contextlib.closing(store.journal(folder)) as journal:
        return _Earlier(finished, _every_trial_failed(journal))


def _every_trial_failed(journal: JournalStore) -> bool:
    failed = False
    for _, _, message in journal.read():
        if isinstance(message, UnitFinished | RequestAnswered):
            return False
        failed = failed or (isinstance(message, TrialEnded) and message.state is TrialState.FAILED)
    return failed
