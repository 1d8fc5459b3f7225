"""The batches of one unit: read, transformed and prepared ahead of training by a background thread.

A partition that fits is kept on the device and its batches are picked there: then nothing is read or moved again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from hopfleet.data import Dataset, prefetch
from hopfleet.frameworks.base import Batch, Session, Task

Prepare = Callable[[Batch, Mapping[str, str]], Batch]

VALID_BATCH = 256
"""Rows evaluated at once, at least. Means are exact over rows, so this is a matter of speed alone."""

VALID_BYTES = 1 << 18
"""Small rows are evaluated more at once, up to so many bytes."""


ROOM = 0.25
"""The part of the free memory of a device that one partition may take."""


class Residence:
    """Partitions that are kept on the device, whole and in the order of their files."""

    def __init__(self, free: Callable[[], int]) -> None:
        self._free = free
        self._kept: dict[tuple[str, int], Batch] = {}

    def find(self, dataset: Dataset, partition: int, prepare: Prepare) -> Batch | None:
        """A partition on the device; None if it is better read piece by piece."""
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
    """One partition in the order of one epoch, or as stored for evaluation (``epoch=None``)."""

    def __init__(
        self,
        dataset: Dataset,
        partition: int,
        *,
        task: Task,
        session: Session,
        batch_size: int,
        residence: Residence | None = None,
        seed: int = 0,
        epoch: int | None = None,
        drop_last: bool = False,
    ) -> None:
        rows = dataset.partition_rows[partition]
        self._length = rows // batch_size if drop_last else math.ceil(rows / batch_size)
        self.rows = min(rows, self._length * batch_size)
        self._batch_size = batch_size
        self._session = session
        self._dtypes = _dtypes(dataset)
        self._resident = None
        if residence is not None and task.transform is None:
            self._resident = residence.find(dataset, partition, session.prepare)
        self._order = None if epoch is None else dataset.order(partition, seed=seed, epoch=epoch)
        self._batches = dataset.batches(
            partition,
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
            drop_last=drop_last,
            transform=_transform(task, training=epoch is not None),
        )

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        if self._resident is not None:
            return self._session.pick(self._resident, self._order, self._batch_size, self.rows)
        return prefetch(self._session.prepare(batch, self._dtypes) for batch in self._batches)


def valid_batch(dataset: Dataset) -> int:
    """How many rows of a data set are evaluated at once."""
    return max(VALID_BATCH, VALID_BYTES * dataset.rows // max(1, dataset.size))


def _dtypes(dataset: Dataset) -> dict[str, str]:
    return {name: column.dtype for name, column in dataset.columns.items()}


def _transform(task: Task, *, training: bool) -> Callable[[Batch, np.random.Generator], Batch] | None:
    transform = task.transform
    if transform is None or training:
        return transform
    return lambda batch, rng: transform(batch, None)
