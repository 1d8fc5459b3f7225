"""Cross-validation: a trial trains a model for each fold, and every row validates the model that has not seen it.

Partition n belongs to fold n modulo the number of folds. All models but that of the fold train on a partition, on one
stream of batches; the model of the fold is evaluated on it. So the rows are stored once, a metric is the mean over all
rows, and to the controller the trial is like any other. Where the data was prepared with folds, each model trains on
the rows as prepared for its fold, and each partition is evaluated as prepared for the one that it belongs to.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import numpy as np

from hopfleet.domain.batching import Batching
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.trial import Config
from hopfleet.errors import CheckpointError, TaskError, UsageError
from hopfleet.frameworks.base import (
    Batch,
    Batches,
    EngineCache,
    Flotilla,
    Framework,
    IsolationError,
    Result,
    Session,
    Task,
)
from hopfleet.frameworks.step_log import averaged
from hopfleet.frameworks.wrapped import WrappedFramework, WrappedTask
from hopfleet.support.files import create_folder, open_plain, overwrite, temporary_folder

UNITS = "units"
"""Name of the file in a saved version that counts the units of each model."""

EARLY = (1980, 1, 1, 0, 0, 0)
"""The time of all files in a saved version: the same state must give the same bytes."""


class Rows(Protocol):
    """A data set, as far as folds read it."""

    @property
    def folds(self) -> Sequence[Any]:
        """The rows as prepared for each fold, if they differ."""

    def __len__(self) -> int:
        """Return the number of partitions."""


class Stream(Batches, Protocol):
    """The batches of a unit as workers have them."""

    @property
    def is_resident(self) -> bool:
        """Whether batches are selected from a partition on the device."""

    def of(self, dataset: Any, session: Session) -> Stream:
        """Return the batches with the rows that another data set has in the same places, for another session."""


@dataclass(frozen=True, slots=True)
class KFold:
    """Validation by a number of folds."""

    count: int

    @classmethod
    def parse(cls, text: str) -> KFold | None:
        """Return the folds that text such as ``kfold(5)`` asks for; None for any other text."""
        found = re.fullmatch(r"kfold\((.*)\)", text.strip())
        if found is None:
            return None
        if not (found[1].strip().isdecimal() and int(found[1]) >= 2):
            raise UsageError(f"valid={text!r}: needs a number of folds of at least 2, as in valid='kfold(5)'")
        return cls(int(found[1]))

    def __str__(self) -> str:
        return f"kfold({self.count})"


def folded(task: Task, folds: int, data: Rows) -> Task:
    """Return a task that trains a model for each fold of the data; the task itself if there are no ``folds``."""
    return FoldedTask(task, folds, len(data), data.folds) if folds else task


@contextlib.contextmanager
def checkpoints(path: Path, folds: int) -> Iterator[list[Path]]:
    """Yield the files of the models in a saved version: one, or one for each fold."""
    if not folds:
        yield [path]
        return
    with _scratch() as folder:
        _unpack(path, folder)
        yield [_part(folder, number) for number in range(folds)]


class FoldedTask(WrappedTask):
    """A task with a model for each fold; ``own`` has the rows as prepared for each, if they differ."""

    def __init__(self, task: Task, folds: int, partitions: int, own: Sequence[Any] = ()) -> None:
        super().__init__(task)
        self._folds, self._partitions = folds, partitions
        self.own = own

    @property
    def framework(self) -> Framework:
        folds = [self.inner.planned(self._of_fold(fold)).framework for fold in range(self._folds)]
        return FoldedFramework(self.inner.framework, folds, self._partitions, self.own)

    def _of_fold(self, fold: int) -> Batching | None:
        """Return the batching of the model of a fold, which does not train on the partitions of the fold."""
        return self.batching and self.batching.without(range(fold, self._partitions, self._folds))


class FoldedFramework(WrappedFramework):
    """The adapter of a task with a model for each fold: it opens sessions of several, and asks the task's own."""

    def __init__(self, inner: Framework, folds: Sequence[Framework], partitions: int, own: Sequence[Any]) -> None:
        super().__init__(inner)
        self._folds, self._partitions, self._own = folds, partitions, own

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> Session:
        cache = cache or EngineCache()
        sessions = [
            framework.open(config, seed=seed, placement=placement, threads=threads, cache=cache)
            for framework in self._folds
        ]
        return FoldedSession(self.inner, sessions, self._partitions, self._own)

    def model(self, config: Config, checkpoint: Path) -> NoReturn:
        raise NotImplementedError("a version with a model for each fold is read with checkpoints()")

    @property
    def fusion_blocker(self) -> str:
        return "the models of its folds train together"


class FoldedSession(Session):
    """The models of all folds of a trial, each with the bits that it has if it trains alone on its partitions."""

    def __init__(self, framework: Framework, sessions: Sequence[Session], partitions: int, own: Sequence[Any]) -> None:
        self._framework, self._sessions, self._own = framework, sessions, own
        folds = len(sessions)
        #: The number of units in an epoch of each model, and of those that it has trained in its current epoch.
        self._owed = [partitions - len(range(fold, partitions, folds)) for fold in range(folds)]
        self._units = [0] * folds
        #: The fold of the partition that the next batches come from.
        self._fold = 0

    def visit(self, partition: int) -> None:
        self._fold = partition % len(self._sessions)

    @property
    def guest(self) -> bool:
        return self._sessions[0].guest

    @guest.setter
    def guest(self, guest: bool) -> None:
        for session in self._sessions:
            session.guest = guest

    @property
    def size(self) -> int:
        return sum(session.size for session in self._sessions)

    @property
    def shared_size(self) -> int:
        return max(session.shared_size for session in self._sessions)

    @property
    def steady(self) -> bool:
        return all(session.steady for session in self._sessions)

    @property
    def parameters(self) -> int:
        return self._sessions[0].parameters

    def check_goal(self, metric: str, mode: str) -> None:
        for session in self._sessions:
            session.check_goal(metric, mode)

    def check_schedules(self) -> list[str]:
        return [text for session in self._sessions for text in session.check_schedules()]

    def observe(self, metric: float) -> None:
        for session in self._sessions:
            session.observe(metric)

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        return self._sessions[0].prepare(batch, dtypes)

    def pick(self, whole: Batch, order: np.ndarray[Any, Any] | None, batch_size: int, rows: int) -> Iterator[Batch]:
        return self._sessions[0].pick(whole, order, batch_size, rows)

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        others = [number for number in range(len(self._sessions)) if number != self._fold]
        # The epoch of a model ends with its last partition, which need not be the last one of the trial.
        closes = [self._units[number] + 1 == self._owed[number] for number in others]
        sums: list[dict[str, RowSum]] = []
        try:
            results = self._train(others, batches, closes)
        except IsolationError as error:
            raise TaskError(f"the models of its folds cannot train together: {error}") from error
        for number, ends, result in zip(others, closes, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            sums.append(result)
            self._units[number] = 0 if ends else self._units[number] + 1
        return add(sums)

    def _train(self, numbers: Sequence[int], batches: Batches, last: Sequence[bool]) -> Sequence[Result]:
        """Train some models: together if they share batches, or if those of each are on the device."""
        members = [self._sessions[number] for number in numbers]
        if not self._own:
            return self._flotilla(members).train(batches, last=last)
        stream = cast("Stream", batches)
        streams = [stream.of(self._own[number], session) for number, session in zip(numbers, members, strict=True)]
        if self._framework.mixes_batch_sizes and all(each.is_resident for each in streams):
            return self._flotilla(members).train_mixed(streams, range(len(streams)), last=last)
        parts = zip(members, streams, last, strict=True)
        return [session.train(each, last=over) for session, each, over in parts]

    def _flotilla(self, members: Sequence[Session]) -> Flotilla:
        flotilla = self._framework.flotilla(members)
        flotilla.repeats = False
        return flotilla

    def logged(self) -> StepValues | None:
        return averaged([session.logged() for session in self._sessions])

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        return self._sessions[self._fold].evaluate(batches, seed=seed)

    def unused(self) -> tuple[str, ...]:
        return self._sessions[0].unused()

    def absent(self) -> tuple[str, ...]:
        return self._sessions[0].absent()

    # ------------------------------------------------------------------------------------------ save and load

    def save(self, path: Path) -> None:
        _write(path, [session.save for session in self._sessions], self._units)

    def snapshot(self) -> Callable[[Path], None] | None:
        writers = [writer for session in self._sessions if (writer := session.snapshot()) is not None]
        units = list(self._units)
        return (lambda path: _write(path, writers, units)) if len(writers) == len(self._sessions) else None

    def load(self, path: Path) -> None:
        with self._parts(path) as parts:
            for session, part in zip(self._sessions, parts, strict=True):
                session.load(part)

    def inherit(self, path: Path, parent: Session) -> None:
        assert isinstance(parent, FoldedSession)
        with self._parts(path) as parts:
            for session, part, other in zip(self._sessions, parts, parent._sessions, strict=True):
                session.inherit(part, other)

    @contextlib.contextmanager
    def _parts(self, path: Path) -> Iterator[list[Path]]:
        """Yield a file for each model of a saved version, and take over the counts of units."""
        with _scratch() as folder:
            units = _unpack(path, folder)
            yield [_part(folder, number) for number in range(len(self._sessions))]
            self._units = units


def _write(path: Path, writers: Sequence[Callable[[Path], None]], units: Sequence[int]) -> None:
    """Write a version: an archive of the files that the models write, without compression."""
    with _scratch() as folder:
        for number, write in enumerate(writers):
            write(_part(folder, number))
        overwrite(folder / UNITS, [json.dumps(list(units)).encode()])
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                about = zipfile.ZipInfo(str(file.relative_to(folder)), EARLY)
                with archive.open(about, "w", force_zip64=True) as target, file.open("rb") as source:
                    shutil.copyfileobj(source, target)


def _unpack(path: Path, folder: Path) -> list[int]:
    """Write the files of a version to a folder; return the counts of units."""
    try:
        with open_plain(path, links=True) as file, zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
        return [int(count) for count in json.loads((folder / UNITS).read_bytes())]
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise CheckpointError(f"{path}: is damaged ({error})") from error


def _part(folder: Path, number: int) -> Path:
    return folder / "models" / str(number)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a temporary folder for the files of models. Without a folder for shared tensors, versions hold them."""
    with temporary_folder("hopfleet-folds-") as folder:
        create_folder(folder / "models")
        yield folder
