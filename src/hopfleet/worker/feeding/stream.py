"""The batches of one unit: read, transformed and prepared ahead of training by a background thread.

A partition that fits is kept on the device and its batches are selected there, so nothing is read or moved again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from hopfleet.data import Dataset, prefetch
from hopfleet.domain.placement import CPU, Placement
from hopfleet.frameworks.base import Batch, Session
from hopfleet.worker.feeding.feed import Feed, Pace, UnitBatches

Prepare = Callable[[Batch, Mapping[str, str]], Batch]

VALID_BATCH = 256
"""Minimum rows evaluated at once. Means are exact over rows, so this affects speed alone."""

VALID_BYTES = 1 << 18
"""Bytes up to which more small rows are evaluated at once."""

VALID_ROWS = 1024
"""Rows evaluated at once on devices other than a CPU, up to 32 times ``VALID_BYTES``."""


ROOM = 0.25
"""Share of a device's free memory that one partition may take."""


class DeviceCache:
    """Partitions kept on the device, whole and in file order."""

    def __init__(self, free: Callable[[], int]) -> None:
        self._free = free
        self._kept: dict[tuple[str, int], Batch] = {}

    def find(self, dataset: Dataset, partition: int, prepare: Prepare) -> Batch | None:
        """Return a partition on the device; None if it should be read batch by batch."""
        key = (dataset.fingerprint, partition)
        if key not in self._kept:
            size = dataset.partition_bytes(partition)
            if size is None or size > ROOM * self._free():
                return None
            rows = dataset.partition_rows[partition]
            whole = next(dataset.batches(partition, batch_size=rows), None) if rows else None
            if whole is None:
                return None
            self._kept[key] = prepare(whole, _dtypes(dataset))
        return self._kept[key]

    def clear(self) -> None:
        self._kept.clear()


class Stream:
    """Yield one partition in the order of one epoch, or as stored for evaluation (``epoch=None``).

    ``feed``, if given, transforms the batches, for one trial or for several that train ``together``. A stream of the
    same rows ``beside`` this one, with batches of another size, shares their order.
    """

    def __init__(
        self,
        dataset: Dataset,
        partition: int,
        *,
        session: Session,
        batch_size: int,
        feed: Feed | None = None,
        together: bool = False,
        device_cache: DeviceCache | None = None,
        seed: int = 0,
        epoch: int | None = None,
        drop_last: bool = False,
        beside: Stream | None = None,
    ) -> None:
        self._source = UnitBatches(dataset, partition, batch_size, seed, epoch, drop_last)
        self._length = len(self._source)
        self.rows = min(dataset.partition_rows[partition], self._length * batch_size)
        self._session = session
        self._dtypes = _dtypes(dataset)
        self._feed = feed if feed is not None and feed.serves(dataset) else None
        self._together = together
        self._device_cache = device_cache
        if beside is not None:
            self.order = beside.order

    def __len__(self) -> int:
        return self._length

    @property
    def is_resident(self) -> bool:
        """Whether batches are selected from a partition on the device."""
        return self._resident is not None

    @functools.cached_property
    def _resident(self) -> Batch | None:
        """The partition on the device; None if batches are read one by one."""
        if self._device_cache is None or self._feed is not None:
            return None
        return self._device_cache.find(self._source.dataset, self._source.partition, self._session.prepare)

    def of(self, dataset: Dataset, session: Session) -> Stream:
        """Return the stream of another session, with the rows that another data set has in the same places."""
        source = self._source
        return Stream(
            dataset,
            source.partition,
            session=session,
            batch_size=source.batch_size,
            feed=self._feed,
            together=self._together,
            device_cache=self._device_cache,
            seed=source.seed,
            epoch=source.epoch,
            drop_last=source.drop_last,
        )

    @functools.cached_property
    def order(self) -> np.ndarray[Any, Any] | None:
        """The order of the rows; None as stored."""
        source = self._source
        if source.epoch is None:
            return None
        return source.dataset.order(source.partition, seed=source.seed, epoch=source.epoch)

    def __iter__(self) -> Iterator[Batch]:
        source, feed, session = self._source, self._feed, self._session
        if self._resident is not None:
            return session.pick(self._resident, self.order, source.batch_size, self.rows)
        if feed is None:
            return prefetch(session.prepare(batch, self._dtypes) for batch in source.batches())
        config = None if self._together else getattr(session, "config", {})
        batches = (session.prepare(batch, self._dtypes) for batch in feed.batches(source, config))
        # Live items draw from the generators of the process, which training uses, too: they are made in its thread.
        return _timed(batches if source.dataset.is_live else prefetch(batches), feed.pace(source))


class FirstBatches:
    """A stream cut after its first batches."""

    def __init__(self, count: int, stream: Stream, batch_size: int) -> None:
        self._count = min(count, len(stream))
        self._stream = stream
        self._batch_size = batch_size
        self.rows = min(stream.rows, self._count * batch_size)

    @property
    def is_resident(self) -> bool:
        return self._stream.is_resident

    def of(self, dataset: Dataset, session: Session) -> FirstBatches:
        return FirstBatches(self._count, self._stream.of(dataset, session), self._batch_size)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._stream)
        with contextlib.closing(batches):  # type: ignore[type-var]
            yield from itertools.islice(batches, self._count)


def _timed(batches: Generator[Batch], pace: Pace) -> Iterator[Batch]:
    """Yield the same batches; record the time to use each one and to get the next."""
    began = 0.0
    with contextlib.closing(batches):
        for batch in batches:
            given = time.perf_counter()
            if began:
                pace.waiting.add(given - began)
            yield batch
            began = time.perf_counter()
            pace.using.add(began - given)


def valid_batch(dataset: Dataset, placement: Placement = CPU) -> int:
    """Return how many rows of a data set are evaluated at once."""
    if dataset.is_live:
        return VALID_BATCH
    size = max(1, dataset.size)
    more = 0 if placement.kind == "cpu" else min(VALID_ROWS, 32 * VALID_BYTES * dataset.rows // size)
    return max(VALID_BATCH, VALID_BYTES * dataset.rows // size, more)


def _dtypes(dataset: Dataset) -> dict[str, str]:
    return {name: column.dtype for name, column in dataset.columns.items()}
