"""Transformed batches, for a stream: made here, taken from the shared batch cache, or made by other processes.

At first a worker transforms in the thread that reads ahead, and measures the time. If a batch takes much longer to make
than to pass on, batches go into the shared batch cache, where every other unit over the same rows finds them, on any
worker. If training still waits for batches and there are cores to spare, transform workers make them: as many as it
takes to deliver one batch in the time of one training step.

The origin of a batch does not change its content: a transform draws from a random stream that belongs to the batch, and
reads of the configuration are tracked. A batch whose transform read the configuration belongs to one trial and is not
shared.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.data import Dataset
from hopfleet.data.convert import same
from hopfleet.data.dataset import transform_random
from hopfleet.domain import batching
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, IsolationError, Task
from hopfleet.frameworks.folds import FoldedTask
from hopfleet.support.logging import BATCHES, messages
from hopfleet.worker.feeding.shared_batch_cache import SharedBatchCache
from hopfleet.worker.feeding.transform_workers import Make, TransformServer, TransformWorkers
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.surroundings.isolation import Isolation
from hopfleet.worker.surroundings.table import shared_settings

CONFIG = "transform() reads self.config, so each trial needs batches of its own"

TRIED = 3
"""Batches to time before the time of a batch counts as known."""

PASSING, PASSING_RATE = 1e-4, 1e9
"""Approximate seconds to pass on a batch, and bytes per additional second."""

WORTH = 10
"""Share a batch if making it takes this many times as long as passing it on."""

IDLE = 0.1
"""Share of a unit that training may wait for batches before transform workers help."""

REFUSALS = 3
"""Failed batches, although the transform works, after which a worker stops using transform workers."""

AGAIN = 16
"""Batches between two decisions about the number of transform workers, and in each mean."""


@dataclass(frozen=True)
class UnitBatches:
    """The batches of a unit; without an ``epoch``, of an evaluation."""

    dataset: Dataset
    partition: int
    batch_size: int
    seed: int = 0
    epoch: int | None = None
    drop_last: bool = False

    def __len__(self) -> int:
        rows = self.dataset.partition_rows[self.partition]
        return batching.batches(rows, self.batch_size, drop_last=self.drop_last)

    @property
    def name(self) -> str:
        """Return the name of these batches, the same on all workers of the run."""
        return f"{self.dataset.fingerprint[:16]}-{self.epoch or 0}-{self.partition}-{self.batch_size}"

    def batches(self) -> Iterator[Batch]:
        """Yield the batches as stored, without the transform."""
        return self.dataset.stored.batches(
            self.partition,
            batch_size=self.batch_size,
            seed=self.seed,
            epoch=self.epoch,
            drop_last=self.drop_last,
        )

    def picker(self) -> Callable[[int], Batch]:
        """Return a function that returns a batch as stored by its number."""
        return self.dataset.stored.picker(self.partition, batch_size=self.batch_size, seed=self.seed, epoch=self.epoch)

    def items(self, batch: Batch) -> Batch:
        """Return a stored batch as the task sees it: with the items of a live data set made."""
        return self.dataset.items(batch, seed=self.seed, epoch=self.epoch)

    def random(self, number: int) -> np.random.Generator | None:
        return None if self.epoch is None else transform_random(self.seed, self.epoch, self.partition, number)


@dataclass
class Mean:
    """A running mean that favours the latest values."""

    total: float = 0.0
    count: float = 0.0

    def add(self, value: float) -> None:
        if self.count >= AGAIN:
            self.total, self.count = self.total * (1 - 1 / self.count), self.count - 1
        self.total, self.count = self.total + value, self.count + 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass
class Pace:
    """Seconds to make a batch, to use it and to wait for it; and its bytes."""

    making: Mean = field(default_factory=Mean)
    using: Mean = field(default_factory=Mean)
    waiting: Mean = field(default_factory=Mean)
    size: Mean = field(default_factory=Mean)

    def made(self, seconds: float, batch: Batch) -> None:
        self.making.add(seconds)
        self.size.add(sum(getattr(value, "nbytes", 0) for value in batch.values()))

    @property
    def heavy(self) -> bool:
        """Whether passing on a batch is worth more than making it again."""
        passing = PASSING + self.size.value / PASSING_RATE
        return self.making.count >= TRIED and self.making.value > WORTH * passing

    def helpers(self, present: int, most: int) -> int:
        """Return how many processes should make batches, given ``present`` ones and at most ``most``."""
        use, idle = self.using.value, self.waiting.value
        if not use or (idle < IDLE * (use + idle) and not present):
            return present
        return min(most, math.ceil(self.making.value / use))


class Feed:
    """The transformed batches of one worker."""

    def __init__(
        self,
        task: Task,
        *,
        batch_cache: SharedBatchCache | None = None,
        transform_workers: TransformWorkers | None = None,
        most: int = 0,
    ) -> None:
        self._glimpse = Glimpse()
        self._transform = None if task.transform is None else _watched(task, self._glimpse)
        self._batch_cache = batch_cache
        self._transform_workers = transform_workers
        self._most = most
        #: Whether the transform was seen to change the number of rows.
        self._resized = False
        #: The pace of evaluation and of training.
        self._paces = (Pace(), Pace())

    @property
    def passes_on(self) -> bool:
        """Whether batches take so long to make that they should be shared."""
        return any(pace.heavy for pace in self._paces)

    def pace(self, source: UnitBatches) -> Pace:
        return self._paces[source.epoch is not None]

    def batches(self, source: UnitBatches, config: Mapping[str, Any] | None) -> Iterator[Batch]:
        """Yield the batches of a unit, for a trial with ``config``, or for several trials (None)."""
        with contextlib.closing(self._batches(source, config)) as batches:
            for number, batch in enumerate(batches):
                self._compare_rows(source, number, batch)
                yield batch

    def _compare_rows(self, source: UnitBatches, number: int, batch: Batch) -> None:
        """Warn, once per worker, of a transform that changes the number of rows."""
        given = min(source.batch_size, source.dataset.partition_rows[source.partition] - number * source.batch_size)
        name, column = next(iter(batch.items()), ("", None))
        rows = getattr(column, "shape", ())[:1]
        if self._resized or self._transform is None or rows in ((), (given,)):
            return
        self._resized = True
        messages(BATCHES).warning(
            "transform() turned a batch of %d rows into one of %d (by its first column, %r): losses and metrics are "
            "means over the rows that it returns; to leave rows out, filter the data before the experiment",
            given, *rows, name,
        )  # fmt: skip

    def _batches(self, source: UnitBatches, config: Mapping[str, Any] | None) -> Generator[Batch]:
        self._glimpse.config = config
        pace = self.pace(source)
        begun = 0
        if self._batch_cache is None or not pace.heavy:
            for number, batch in enumerate(source.batches()):
                yield self._timed(source, number, batch)
                begun = number + 1
                if self._batch_cache is not None and pace.heavy:
                    break
        if self._batch_cache is not None and begun < len(source):
            yield from self._shared(source, range(begun, len(source)), self._batch_cache)

    def serves(self, dataset: Dataset) -> bool:
        """Whether the batches of a data set are other than those stored."""
        return self._transform is not None or dataset.is_live

    def make(self, source: UnitBatches, number: int, batch: Batch) -> Batch:
        batch = source.items(batch)
        return batch if self._transform is None else _checked(self._transform(batch, source.random(number)))

    def again(self, source: UnitBatches, number: int, batch: Batch, config: Mapping[str, Any]) -> Batch:
        """Transform a batch of a unit once more, for a trial with ``config``."""
        self._glimpse.config = config
        return self.make(source, number, batch)

    def unsteady(self, source: UnitBatches, config: Mapping[str, Any]) -> str:
        """Transform the first batch twice; return the first column that differs, or an empty string."""
        self._glimpse.config = config
        pick = source.picker()
        one, other = (self.make(source, 0, pick(0)) for _ in range(2))
        missing = object()
        names = dict.fromkeys([*one, *other])
        return next((name for name in names if not same(one.get(name, missing), other.get(name, missing))), "")

    def _timed(self, source: UnitBatches, number: int, batch: Batch) -> Batch:
        began = time.perf_counter()
        batch = self.make(source, number, batch)
        self.pace(source).made(time.perf_counter() - began, batch)
        return batch

    def _shared(self, source: UnitBatches, numbers: range, batch_cache: SharedBatchCache) -> Iterator[Batch]:
        pace, unit = self.pace(source), source.name
        stays = batch_cache.reserve(unit, round(pace.size.value * len(numbers)))
        pick = source.picker()

        def own(number: int) -> Batch:
            if (found := batch_cache.get(unit, number)) is not None:
                return found
            self._glimpse.seen = False
            batch = self._timed(source, number, pick(number))
            if stays and not self._glimpse.seen:
                batch_cache.put(unit, number, batch)
            return batch

        while numbers:
            if self._transform_workers is not None and self._transform_workers.staff(self._helpers(pace)):
                yield from self._fed(source, numbers, batch_cache, stays, own)
                return
            now, numbers = numbers[:AGAIN], numbers[AGAIN:]
            yield from map(own, now)

    def _helpers(self, pace: Pace) -> int:
        assert self._transform_workers is not None
        of_no_use = self._glimpse.known or self._transform_workers.refused >= REFUSALS
        return 0 if of_no_use else pace.helpers(len(self._transform_workers), self._most)

    def _fed(
        self,
        source: UnitBatches,
        numbers: range,
        batch_cache: SharedBatchCache,
        stays: bool,
        own: Callable[[int], Batch],
    ) -> Iterator[Batch]:
        assert self._transform_workers is not None
        pace, unit = self.pace(source), source.name
        for number, seconds in self._transform_workers.make(
            [source.epoch, source.partition, source.batch_size, source.dataset.fingerprint], numbers
        ):
            batch = None if seconds is None else batch_cache.get(unit, number)
            if batch is None:
                batch = own(number)
            elif seconds:
                pace.made(seconds, batch)
            if not stays:
                batch_cache.drop(unit, number)
            yield batch


def needs_feed(spec: WorkerSpec) -> bool:
    """Whether batches are made from those stored, by a transform or by a live data set."""
    return spec.task.transform is not None or any(
        data is not None and data.is_live for data in (spec.train, spec.valid)
    )


def open_feed(spec: WorkerSpec, folder: Path | None, private: Sequence[int]) -> Feed | None:
    """Return the feed of a worker process; None if batches are used as stored.

    ``folder`` is where batches are shared. Call this before the process has threads; see ``TransformServer``.
    """
    if not needs_feed(spec):
        return None
    if folder is None:
        return Feed(spec.task)
    batch_cache, transform_workers = SharedBatchCache(folder, spec.shared_bytes), None
    if spec.transform_workers:
        transform_server = TransformServer(
            batch_maker(spec, batch_cache), private, str(spec.logs / "transform-workers.log")
        )
        transform_workers = TransformWorkers(transform_server.fork)
    return Feed(spec.task, batch_cache=batch_cache, transform_workers=transform_workers, most=spec.transform_workers)


def batch_maker(spec: WorkerSpec, batch_cache: SharedBatchCache) -> Make:
    """Return the function that a transform worker runs for each batch.

    What the transform changes in the process is put back, or batches would depend on which others the process has made.
    Names in the user's code stay: a transform may keep there what takes long to load.
    """
    feed = Feed(spec.task)
    isolation = Isolation(shared_settings(spec.task), guest=False)
    latest: tuple[Any, Any] = (None, None)
    known = [spec.train, spec.valid, *(spec.task.own if isinstance(spec.task, FoldedTask) else ())]
    datasets = {dataset.fingerprint: dataset for dataset in known if dataset is not None}

    def make(unit: Any, number: int) -> float:
        nonlocal latest
        epoch, partition, batch_size, fingerprint = unit
        source = UnitBatches(datasets[fingerprint], partition, batch_size, spec.seed, epoch)
        if batch_cache.has(source.name, number):
            return 0.0
        if latest[0] != source:
            latest = source, source.picker()
        began = time.perf_counter()
        with isolation.around({}):
            batch = feed.make(source, number, latest[1](number))
        seconds = time.perf_counter() - began
        if not batch_cache.put(source.name, number, batch):
            raise OSError("the batch could not be put into shared memory")
        return seconds

    return make


class Glimpse(Mapping[str, Any]):
    """A trial's configuration as its transform sees it: records reads, and refuses them if they are forbidden."""

    def __init__(self) -> None:
        self.config: Mapping[str, Any] | None = None
        #: Whether the configuration was read since the last reset, and whether it was ever read.
        self.seen = False
        self.known = False

    def _look(self) -> Mapping[str, Any]:
        self.seen = self.known = True
        if self.config is None:
            raise IsolationError(CONFIG)
        return self.config

    def __getitem__(self, key: str) -> Any:
        return self._look()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())


def _checked(batch: Any) -> Batch:
    """Return what a transform returned, if it is a batch."""
    if not isinstance(batch, dict):
        raise TaskError(
            f"transform() returned {'None' if batch is None else f'a {type(batch).__name__}'}; return the batch, "
            "a dict of arrays"
        )
    return batch


def _watched(task: Task, glimpse: Glimpse) -> Callable[[Batch, np.random.Generator | None], Batch]:
    """Return the transform of a task with ``glimpse`` as its configuration and all other attributes unchanged."""
    kind = type(type(task).__name__, (type(task),), {"config": property(lambda self: glimpse)})
    other: Any = object.__new__(kind)
    other.__dict__ = task.__dict__
    transform = other.transform
    assert transform is not None
    return transform  # type: ignore[no-any-return]
