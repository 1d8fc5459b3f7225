"""Tests of trained models: their metrics on new data, computed by workers, one partition each.

A small controller of its own gives idle workers units of evaluation, as a run does in validation. Sums over rows are
exact, so metrics do not depend on the number of workers or on partitions.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from hopfleet.backends import BACKENDS
from hopfleet.backends.base import Backend
from hopfleet.data import Dataset, open_dataset, partition
from hopfleet.data.etl.preparation import prepare
from hopfleet.data.etl.recipe import RECIPE, Batch, Prepared, Recipe, load_recipe
from hopfleet.data.manifest import FILE
from hopfleet.domain.messages import (
    Event,
    Message,
    RunUnit,
    UnitFailed,
    UnitFinished,
    VersionLost,
    WorkerJoined,
    WorkerLost,
)
from hopfleet.domain.rowsum import RowSum, means
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import DataError, TaskError
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.folds import refuse_folds
from hopfleet.monitor.history import TrialHistory
from hopfleet.runs.verify import find_data
from hopfleet.runtime.driver import Driver
from hopfleet.runtime.loop import WAIT_SECONDS
from hopfleet.search.base import at_least_one
from hopfleet.store.folder import RunFolder
from hopfleet.support import registry
from hopfleet.support.machine import choose_workers, this_machine
from hopfleet.worker.spec import WorkerSpec

if TYPE_CHECKING:
    from hopfleet.runs.results import Results

MAX_LOSSES = 3
"""Workers that may be lost over one unit."""


class Candidate:
    """A trial to test: its model and what is known of its metrics so far."""

    def __init__(self, trial: Trial, epoch: int, model: VersionRef, digest: str) -> None:
        self.trial = trial
        self.epoch = epoch
        self.model = model
        self.digest = digest
        self.sums: dict[str, RowSum] = {}

    @classmethod
    def of(cls, history: TrialHistory, number: int) -> Self:
        """Return the candidate of a trial's best epoch."""
        assert history.best is not None
        saved = history.saved[history.best.version]
        trial = Trial(history.id, number, history.config, history.seed, history.best.epoch)
        return cls(trial, history.best.epoch, saved.ref, saved.digest)


def measure_trials(
    results: Results,
    data: Any,
    trials: Sequence[str],
    *,
    top: int,
    task: Task,
    workers: int | str,
    backend: Backend | str,
) -> dict[str, dict[str, float]]:
    """Return the metrics of the ``top`` best trials, or of the ``trials`` given, on new data, the best first."""
    refuse_folds(results.definition.get("folds", 0))
    names = list(trials) or [trial.id for trial in results.history.leaderboard() if trial.best is not None][:top]
    if not names:
        results.best  # noqa: B018, raises NotFound
    for name in names:
        results[name].checkpoint  # noqa: B018, raises NotFound or CheckpointError
    candidates = [Candidate.of(results.history.trials[name], number) for number, name in enumerate(names, 1)]
    train = find_data(results.folder, "train")
    with opened_data(data, train.columns, recipe_of(train)) as opened:
        return measure_models(
            candidates,
            opened,
            folder=results.folder,
            task=task,
            definition=results.definition,
            workers=workers,
            backend=backend,
        )


def measure_models(
    candidates: Sequence[Candidate],
    data: Dataset,
    *,
    folder: RunFolder,
    task: Task,
    definition: Mapping[str, Any],
    workers: int | str,
    backend: Backend | str,
) -> dict[str, dict[str, float]]:
    """Return the metrics of each candidate on all rows of ``data``."""
    place = registry.find("backend", backend, BACKENDS)() if isinstance(backend, str) else backend
    found, devices = task.framework.devices()
    device = found if definition["device"] == "auto" else definition["device"]
    units = len(candidates) * len(data)
    threads = definition["threads"]
    if workers == "auto":
        count, _ = choose_workers(this_machine(), device=device, devices=devices, threads=threads, trials=units)
    else:
        count = min(at_least_one("workers", workers), units)
    with tempfile.TemporaryDirectory(prefix="hopfleet-test-") as logs:
        spec = WorkerSpec(
            task=task,
            train=data,
            valid=data,
            checkpoints=folder.checkpoints,
            logs=Path(logs),
            seed=definition["seed"],
            device=device,
            threads=threads,
            batch_size=definition["batch_size"],
            drop_last=False,
            settings=definition.get("settings", {}),
        )
        controller = EvaluationController(candidates, len(data))
        try:
            with task.framework.applied(spec.settings):  # for workers in this process
                place.start(spec, count)
                driver = Driver(controller, place)
                while not controller.finished:
                    driver.step(place.receive(WAIT_SECONDS))
                place.close()
        except BaseException:
            place.close(kill=True)
            raise
    if controller.error:
        raise TaskError(controller.error)
    return {candidate.trial.id: means(candidate.sums) for candidate in candidates}


class EvaluationController:
    """The controller of a test: every candidate is evaluated on every partition, by any idle worker."""

    def __init__(self, candidates: Sequence[Candidate], partitions: int) -> None:
        self._candidates = {candidate.trial.id: candidate for candidate in candidates}
        self._waiting = deque((name, part) for part in range(partitions) for name in self._candidates)
        self._left = len(self._waiting)
        self._idle: list[str] = []
        #: The attempt and the unit of each busy worker.
        self._running: dict[str, tuple[int, str, int]] = {}
        self._losses: dict[tuple[str, int], int] = {}
        self._attempts = 0
        self.error = ""

    @property
    def finished(self) -> bool:
        return not self._left or bool(self.error)

    @property
    def schedule(self) -> EvaluationController:
        return self

    def find(self, trial: str) -> Candidate | None:
        return self._candidates.get(trial)

    def take(self, events: Iterable[Event]) -> list[Message]:
        """Take in events; return the commands that follow."""
        for event in events:
            self._hear(event)
        commands: list[Message] = []
        while self._idle and self._waiting and not self.error:
            worker, (name, part) = self._idle.pop(0), self._waiting.popleft()
            candidate = self._candidates[name]
            self._attempts += 1
            self._running[worker] = (self._attempts, name, part)
            unit = Unit(name, candidate.epoch, part, Work.EVALUATE)
            commands.append(RunUnit(worker, unit, self._attempts, candidate.model, digest=candidate.digest))
        return commands

    def _hear(self, event: Event) -> None:
        match event:
            case WorkerJoined():
                self._idle.append(event.worker)
            case WorkerLost():
                self._lose(event)
            case UnitFinished() if self._ends(event.worker, event.attempt):
                self._left -= 1
                sums = self._candidates[event.trial].sums
                for name, value in event.sums.items():
                    sums[name] = sums[name] + value if name in sums else value
            case UnitFailed() if self._ends(event.worker, event.attempt):
                self.error = f"{event.trial} cannot be tested: {event.error}\n\n{event.traceback}".rstrip()
            case VersionLost() if event.worker and self._ends(event.worker, event.attempt):
                self.error = f"{event.ref.trial} cannot be tested: {event.reason}"
            case _:
                pass

    def _ends(self, worker: str, attempt: int | None) -> bool:
        """Whether this is the end of a running attempt; its worker is idle then."""
        if worker not in self._running or self._running[worker][0] != attempt:
            return False
        del self._running[worker]
        self._idle.append(worker)
        return True

    def _lose(self, lost: WorkerLost) -> None:
        self._idle = [worker for worker in self._idle if worker != lost.worker]
        if lost.worker not in self._running:
            return
        _, name, part = self._running.pop(lost.worker)
        self._losses[name, part] = self._losses.get((name, part), 0) + 1
        if self._losses[name, part] == MAX_LOSSES:
            self.error = f"{name} cannot be tested: {MAX_LOSSES} workers were lost; the last one: {lost.reason}"
        self._waiting.appendleft((name, part))


# ---------------------------------------------------------------------------------------------------------------- data


class Again(Recipe):
    """The recipe of an earlier preparation, with its statistics."""

    arrow = True

    def __init__(self, prepared: Prepared, labelled: bool) -> None:
        self.prepared = prepared
        self.labelled = labelled

    @property
    def inputs(self) -> Sequence[str] | None:
        return list(self.prepared.layout.types)

    def apply(self, batch: pa.Table, fitted: Mapping[str, Any]) -> Batch:
        return self.prepared.apply(*self.prepared.given(batch, labelled=self.labelled))


@contextlib.contextmanager
def opened_data(
    data: Any, columns: Iterable[str], recipe: Callable[[], Prepared] | None, *, labelled: bool = True
) -> Iterator[Dataset]:
    """Yield data as a data set with the columns of the training data; unless ``labelled``, some may be absent.

    Raw files pass through the recipe that prepared the training data; other sources are partitioned as they are. Both
    keep the order of their rows.
    """
    with tempfile.TemporaryDirectory(prefix="hopfleet-test-") as folder:
        found = _opened(data, recipe, Path(folder) / "set", labelled)
        missing = [name for name in columns if name not in found.columns and labelled]
        if missing:
            raise DataError(
                f"{found.url}: lacks the columns {', '.join(missing)} of the training data; it has "
                f"{', '.join(found.columns)}"
            )
        yield found


def recipe_of(train: Dataset) -> Callable[[], Prepared] | None:
    """Return a function that loads the recipe of training data; None if it has no recipe."""
    return partial(load_recipe, train) if (Path(train.url) / RECIPE).is_file() else None


def _opened(data: Any, recipe: Callable[[], Prepared] | None, folder: Path, labelled: bool) -> Dataset:
    if isinstance(data, Dataset):
        return data
    named = isinstance(data, str | os.PathLike)
    if named and ((Path(data) / FILE).is_file() or ("://" in os.fspath(data) and not Path(data).suffix)):
        return open_dataset(data)
    if recipe is not None:
        made: Dataset = prepare(data, folder, Again(recipe(), labelled), partitions=1, quiet=True)
        return made
    return partition(data, folder, partitions=1)
