"""The batches of one unit: read, transformed and prepared ahead of training by a background thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from hopfleet.data import Dataset, prefetch
from hopfleet.frameworks.base import Batch, Task

VALID_BATCH = 256
"""Rows evaluated at once. Means are exact over rows, so this is a matter of speed alone."""


class Stream:
    """One partition in the order of one epoch, or as stored for evaluation (``epoch=None``)."""

    def __init__(
        self,
        dataset: Dataset,
        partition: int,
        *,
        task: Task,
        prepare: Callable[[Batch, Mapping[str, str]], Batch],
        batch_size: int,
        seed: int = 0,
        epoch: int | None = None,
        drop_last: bool = False,
    ) -> None:
        rows = dataset.partition_rows[partition]
        self._length = rows // batch_size if drop_last else math.ceil(rows / batch_size)
        self.rows = min(rows, self._length * batch_size)
        self._batches = dataset.batches(
            partition,
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
            drop_last=drop_last,
            transform=_transform(task, training=epoch is not None),
        )
        self._dtypes = {name: column.dtype for name, column in dataset.columns.items()}
        self._prepare = prepare

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return prefetch(self._prepare(batch, self._dtypes) for batch in self._batches)


def _transform(task: Task, *, training: bool) -> Callable[[Batch, np.random.Generator], Batch] | None:
    transform = task.transform
    if transform is None or training:
        return transform
    return lambda batch, rng: transform(batch, None)
