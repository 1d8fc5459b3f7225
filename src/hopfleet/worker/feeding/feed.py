"""Transformed batches, for a stream: made here, taken from the larder, or made by other processes.

At first a worker transforms in the thread that reads ahead, and takes the time. If a batch takes much longer to make
than to pass on, the batches go into the larder, where every other unit over the same rows finds them, whichever worker
runs it. If training then still waits for batches and there are processors to spare, feeders make them: as many as
bring a batch in the time that training takes for one.

Where a batch comes from changes nothing about it: a transform draws from a stream that belongs to the batch, and what
it reads of a configuration is watched. One that reads it belongs to its trial: it is shared with nobody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.data import Dataset
from hopfleet.data.dataset import transform_random
from hopfleet.frameworks.base import Batch, Entangled, Task
from hopfleet.worker.feeding.shared_batch_cache import Larder
from hopfleet.worker.feeding.transform_workers import Feeders, Make, Nursery
from hopfleet.worker.spec import Job

CONFIG = "transform() reads self.config, so each trial needs batches of its own"

TRIED = 3
"""Batches after which it is known what one takes."""

PASSING, PASSING_RATE = 1e-4, 1e9
"""About the seconds that it takes to pass on a batch, and how many bytes go in one more second."""

WORTH = 10
"""A batch is passed on if it takes so many times longer to make it."""

IDLE = 0.1
"""The part of a unit that training may wait for batches before others help."""

REFUSALS = 3
"""Batches that feeders may fail to make, although it can be done, before a worker does without them."""

AGAIN = 16
"""Batches after which it is considered again who makes them, and of which the means are made."""


@dataclass(frozen=True)
class Portion:
    """The batches of a unit; without an ``epoch``, of an evaluation."""

    dataset: Dataset
    partition: int
    batch_size: int
    seed: int = 0
    epoch: int | None = None
    drop_last: bool = False

    def __len__(self) -> int:
        rows = self.dataset.partition_rows[self.partition]
        return rows // self.batch_size if self.drop_last else math.ceil(rows / self.batch_size)

    @property
    def name(self) -> str:
        """What other workers of the same run know these batches by."""
        return f"{self.dataset.fingerprint[:16]}-{self.epoch or 0}-{self.partition}-{self.batch_size}"

    def batches(self) -> Iterator[Batch]:
        """As they are stored."""
        return self.dataset.batches(
            self.partition,
            batch_size=self.batch_size,
            seed=self.seed,
            epoch=self.epoch,
            drop_last=self.drop_last,
        )

    def picker(self) -> Callable[[int], Batch]:
        return self.dataset.picker(self.partition, batch_size=self.batch_size, seed=self.seed, epoch=self.epoch)

    def random(self, number: int) -> np.random.Generator | None:
        return None if self.epoch is None else transform_random(self.seed, self.epoch, self.partition, number)


@dataclass
class Mean:
    """A mean in which the latest values count most."""

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
    """Seconds per batch: to make one, to use it, and in between, when nobody had one. And its bytes."""

    making: Mean = field(default_factory=Mean)
    using: Mean = field(default_factory=Mean)
    waiting: Mean = field(default_factory=Mean)
    size: Mean = field(default_factory=Mean)

    def made(self, seconds: float, batch: Batch) -> None:
        self.making.add(seconds)
        self.size.add(sum(getattr(value, "nbytes", 0) for value in batch.values()))

    @property
    def heavy(self) -> bool:
        """Whether it pays to pass on a batch rather than to make it again."""
        passing = PASSING + self.size.value / PASSING_RATE
        return self.making.count >= TRIED and self.making.value > WORTH * passing

    def helpers(self, present: int, most: int) -> int:
        """How many processes should make batches, if ``present`` do so now and there may be ``most``."""
        use, idle = self.using.value, self.waiting.value
        if not use or (idle < IDLE * (use + idle) and not present):
            return present
        return min(most, math.ceil(self.making.value / use))


class Feed:
    """The transformed batches of one worker."""

    def __init__(
        self, task: Task, *, larder: Larder | None = None, feeders: Feeders | None = None, most: int = 0
    ) -> None:
        self._glimpse = Glimpse()
        self._transform = _watched(task, self._glimpse)
        self._larder = larder
        self._feeders = feeders
        self._most = most
        #: Of evaluation and of training.
        self._paces = (Pace(), Pace())

    @property
    def passes_on(self) -> bool:
        """Whether batches take so long to make that others should have them too."""
        return any(pace.heavy for pace in self._paces)

    def pace(self, portion: Portion) -> Pace:
        return self._paces[portion.epoch is not None]

    def batches(self, portion: Portion, config: Mapping[str, Any] | None) -> Iterator[Batch]:
        """The batches of a portion, for a trial with ``config``, or for several (None)."""
        self._glimpse.config = config
        pace = self.pace(portion)
        begun = 0
        if self._larder is None or not pace.heavy:
            for number, batch in enumerate(portion.batches()):
                yield self._timed(portion, number, batch)
                begun = number + 1
                if self._larder is not None and pace.heavy:
                    break
        if self._larder is not None and begun < len(portion):
            yield from self._shared(portion, range(begun, len(portion)), self._larder)

    def make(self, portion: Portion, number: int, batch: Batch) -> Batch:
        return self._transform(batch, portion.random(number))

    def unsteady(self, portion: Portion, config: Mapping[str, Any]) -> str:
        """The first column that differs if the first batch is transformed twice; nothing if none does."""
        self._glimpse.config = config
        pick = portion.picker()
        one, other = (self.make(portion, 0, pick(0)) for _ in range(2))
        missing = object()
        names = dict.fromkeys([*one, *other])
        return next((name for name in names if not _same(one.get(name, missing), other.get(name, missing))), "")

    def _timed(self, portion: Portion, number: int, batch: Batch) -> Batch:
        began = time.perf_counter()
        batch = self.make(portion, number, batch)
        self.pace(portion).made(time.perf_counter() - began, batch)
        return batch

    def _shared(self, portion: Portion, numbers: range, larder: Larder) -> Iterator[Batch]:
        pace, unit = self.pace(portion), portion.name
        stays = larder.reserve(unit, round(pace.size.value * len(numbers)))
        pick = portion.picker()

        def own(number: int) -> Batch:
            if (found := larder.get(unit, number)) is not None:
                return found
            self._glimpse.seen = False
            batch = self._timed(portion, number, pick(number))
            if stays and not self._glimpse.seen:
                larder.put(unit, number, batch)
            return batch

        while numbers:
            if self._feeders is not None and self._feeders.staff(self._helpers(pace)):
                yield from self._fed(portion, numbers, larder, stays, own)
                return
            now, numbers = numbers[:AGAIN], numbers[AGAIN:]
            yield from map(own, now)

    def _helpers(self, pace: Pace) -> int:
        assert self._feeders is not None
        of_no_use = self._glimpse.known or self._feeders.refused >= REFUSALS
        return 0 if of_no_use else pace.helpers(len(self._feeders), self._most)

    def _fed(
        self, portion: Portion, numbers: range, larder: Larder, stays: bool, own: Callable[[int], Batch]
    ) -> Iterator[Batch]:
        assert self._feeders is not None
        pace, unit = self.pace(portion), portion.name
        for number, seconds in self._feeders.make([portion.epoch, portion.partition, portion.batch_size], numbers):
            batch = None if seconds is None else larder.get(unit, number)
            if batch is None:
                batch = own(number)
            elif seconds:
                pace.made(seconds, batch)
            if not stays:
                larder.drop(unit, number)
            yield batch


def open_feed(job: Job, folder: Path | None, private: Sequence[int]) -> Feed | None:
    """The feed of a worker in a process of its own; None if there is nothing to transform.

    ``folder`` is where batches are shared. To be called before there are threads; see ``Nursery``.
    """
    if job.task.transform is None:
        return None
    if folder is None:
        return Feed(job.task)
    larder, feeders = Larder(folder, job.shared_bytes), None
    if job.feeders:
        nursery = Nursery(feeder(job, larder), private, str(job.logs / "feeders.log"))
        feeders = Feeders(nursery.feeder)
    return Feed(job.task, larder=larder, feeders=feeders, most=job.feeders)


def feeder(job: Job, larder: Larder) -> Make:
    """What a feeder does."""
    feed = Feed(job.task)
    latest: tuple[Any, Any] = (None, None)

    def make(unit: Any, number: int) -> float:
        nonlocal latest
        epoch, partition, batch_size = unit
        dataset = job.valid if epoch is None else job.train
        assert dataset is not None
        portion = Portion(dataset, partition, batch_size, job.seed, epoch)
        if larder.has(portion.name, number):
            return 0.0
        if latest[0] != portion:
            latest = portion, portion.picker()
        began = time.perf_counter()
        batch = feed.make(portion, number, latest[1](number))
        seconds = time.perf_counter() - began
        if not larder.put(portion.name, number, batch):
            raise OSError("the batch could not be put into shared memory")
        return seconds

    return make


class Glimpse(Mapping[str, Any]):
    """What a transform sees of its trial's configuration. That it looked is noted; if it must not, it cannot."""

    def __init__(self) -> None:
        self.config: Mapping[str, Any] | None = None
        #: Whether it looked since this was last reset, and whether it ever did.
        self.seen = False
        self.known = False

    def _look(self) -> Mapping[str, Any]:
        self.seen = self.known = True
        if self.config is None:
            raise Entangled(CONFIG)
        return self.config

    def __getitem__(self, key: str) -> Any:
        return self._look()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) is not type(other):
        return False
    if not hasattr(one, "__array__"):
        return bool(one == other)
    mine, theirs = np.asarray(one), np.asarray(other)
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return False
    return _same(mine.tolist(), theirs.tolist()) if mine.dtype == object else mine.tobytes() == theirs.tobytes()


def _watched(task: Task, glimpse: Glimpse) -> Callable[[Batch, np.random.Generator | None], Batch]:
    """The transform of a task with ``glimpse`` for its configuration. All other attributes are those of the task."""
    kind = type(type(task).__name__, (type(task),), {"config": property(lambda self: glimpse)})
    other: Any = object.__new__(kind)
    other.__dict__ = task.__dict__
    transform = other.transform
    assert transform is not None
    return transform  # type: ignore[no-any-return]
