"""Trained models over new data: partitions are the units of workers, and a journal tells what is done.

A call that is killed goes on where it was when it is made again: with the same data, models and code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopfleet.backends.base import Backend
from hopfleet.controller.inference import Candidate, InferenceController
from hopfleet.data import Dataset
from hopfleet.data.etl.workspace import workspace_for
from hopfleet.data.folders import LocalFolder
from hopfleet.data.pieces import Pieces
from hopfleet.data.unseen import unseen
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.base import Task
from hopfleet.runs.opened_run import OpenedRun
from hopfleet.runs.place import Place
from hopfleet.runs.verify import find_data
from hopfleet.runtime.driver import Driver
from hopfleet.runtime.loop import WAIT_SECONDS
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from hopfleet.store.versions.local import check
from hopfleet.support.code_digests import digests
from hopfleet.support.files import make_folder, temporary_folder
from hopfleet.worker.inference import EnsembleMember, InferenceTask, Output
from hopfleet.worker.spec import WorkerSpec

PIECE_ROWS, PIECE_BYTES = 1 << 15, 1 << 23
"""Rows and approximate bytes of the largest unit: small enough that workers end at about the same time."""

FEW = 2
"""Units' worth of rows that do not leave this process, since a worker would take longer to start."""


def candidate(results: OpenedRun[Any], trial: str, number: int = 1) -> Candidate:
    """Return the candidate of a trial's best epoch. Raise NotFound or CheckpointError if it has no model."""
    history = results.history.trials[trial]
    path = results[trial].checkpoint
    assert history.best is not None
    saved = history.saved[history.best.version]
    check(path, saved.digest)
    return Candidate(Trial(trial, number, history.config, history.seed, history.best.epoch), saved.ref, saved.digest)


def members(results: OpenedRun[Any], weights: Mapping[str, float]) -> list[EnsembleMember]:
    """Return the members of an ensemble, given by the weights of trials."""
    return [
        EnsembleMember(results[trial].config, results[trial].checkpoint.absolute(), weight)
        for trial, weight in weights.items()
    ]


def job(results: OpenedRun[Any], trials: Mapping[str, float], data: Any, task: Task, **options: Any) -> dict[str, Any]:
    """Return what determines the outcome of a call, apart from the rows."""
    versions = [results.history.trials[trial] for trial in trials]
    source = data.url if isinstance(data, Dataset) else type(data).__name__
    if isinstance(data, str | os.PathLike):
        source = os.fspath(data) if "://" in os.fspath(data) else str(Path(data).absolute())
    return {
        "models": [[each.id, each.saved[each.best.version].digest] for each in versions if each.best is not None],
        "weights": list(trials.values()),
        "data": source,
        "code": digests(task),
        **options,
    }


def key(work: Mapping[str, Any]) -> str:
    """Return a short name of a job."""
    return hashlib.sha256(json.dumps(work, sort_keys=True, default=str).encode()).hexdigest()[:16]


@contextlib.contextmanager
def space_for(target: Path | None, work: dict[str, Any]) -> Iterator[Path]:
    """Yield the folder in which a call works: beside its target, so that it can go on, or else a temporary one."""
    if target is None:
        with temporary_folder("hopfleet-") as folder:
            yield folder
    else:
        with workspace_for(LocalFolder(target), work, "inference") as space:
            yield space.path


def validation(results: OpenedRun[Any]) -> tuple[Dataset, list[int]]:
    """Return the rows that validated the trials, in pieces; with folds, also the fold of each piece.

    Those of a fold are as the models have seen them that were not trained on them. Raise UsageError if there are none.
    """
    folds = results.definition.get("folds", 0)
    if not folds and not results.definition.get("valid"):
        raise UsageError(f"{results.name}: has no validation data, whose rows are the default; pass data")
    data = find_data(results.folder, "train" if folds else "valid")
    found = pieces(unseen(data) if folds else data)
    wholes = found.wholes if isinstance(found, Pieces) else range(len(found))
    return found, [whole % folds for whole in wholes] if folds else []


def pieces(data: Dataset) -> Dataset:
    """Return a data set in partitions that are small enough for units."""
    rows = _most(data)
    return Pieces(data, rows) if max(data.partition_rows, default=0) > rows else data


def _most(data: Dataset) -> int:
    """Return the largest number of rows in a unit."""
    return max(1, min(PIECE_ROWS, PIECE_BYTES * data.rows // max(1, data.size)))


def run_units(
    candidates: Sequence[Candidate],
    data: Dataset,
    space: Path,
    *,
    folder: RunFolder,
    task: Task,
    definition: Mapping[str, Any],
    place: Place,
    batch_size: int = 0,
) -> dict[str, dict[str, RowSum]]:
    """Pass each candidate's model over all partitions of ``data``; return the sums of its metrics."""
    found, devices = task.framework.devices()
    predicts = isinstance(task, InferenceTask)
    device = "cpu" if predicts else found if definition["device"] == "auto" else definition["device"]
    units, few = len(candidates) * len(data), data.rows <= FEW * _most(data)
    backend, count = place.found(units, device, devices, definition["threads"], few=few)
    spec = WorkerSpec(
        task=task,
        train=data,
        valid=data,
        checkpoints=folder.checkpoints,
        logs=space,
        seed=definition["seed"],
        device=device,
        threads=definition["threads"],
        batch_size=definition["batch_size"],
        drop_last=False,
        settings=definition.get("settings", {}),
        evaluation_batch=batch_size,
    )
    output = task.output if isinstance(task, InferenceTask) else None
    controller = InferenceController(candidates, len(data))
    # The rows are part of the name: other rows begin another journal.
    path = space / f"{data.fingerprint[:16]}-{len(data)}.sqlite"
    with contextlib.closing(Journal(path, writable=True)) as journal:
        controller.restore(
            (message for _, _, message in journal.read()),
            lambda unit: output is None or output.file(unit.partition).is_file(),
        )
        if not controller.finished:
            _drive(Driver(controller, backend, journal=journal.append), backend, spec, count)
    if controller.error:
        raise TaskError(controller.error)
    return {each.trial.id: each.sums for each in candidates}


def _drive(driver: Driver, backend: Backend, spec: WorkerSpec, count: int) -> None:
    try:
        with spec.task.framework.applied(spec.settings):  # for workers in this process
            backend.start(spec, count)
            while not driver.controller.finished:
                driver.step(backend.receive(WAIT_SECONDS))
            backend.close()
    except BaseException:
        backend.close(kill=True)
        raise


def output_in(space: Path, data: Dataset, ending: str) -> Output:
    """Return the files of predictions for the partitions of a data set."""
    folder = space / f"{data.fingerprint[:16]}-{len(data)}"
    make_folder(folder)
    return Output(folder.absolute(), ending)
