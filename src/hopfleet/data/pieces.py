"""A data set in smaller partitions: pieces of the partitions of another one, without a copy of any row."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from hopfleet.data.cells import Cells
from hopfleet.data.dataset import Dataset


class Pieces(Dataset):
    """The rows of a data set in the same order, in partitions of at most ``rows`` rows that share its files."""

    def __init__(self, whole: Dataset, rows: int) -> None:
        super().__init__(whole._folder, whole.manifest, whole._items)
        self._whole = whole
        self._rows = rows
        #: Partition of the whole, first row and end of each piece.
        self._bounds = [
            (partition, start, min(start + rows, count))
            for partition, count in enumerate(whole.partition_rows)
            for start in range(0, count, rows)
        ]
        self.partition_rows = tuple(stop - start for _, start, stop in self._bounds)

    @property
    def wholes(self) -> list[int]:
        """The partition of the whole that each piece belongs to."""
        return [partition for partition, _, _ in self._bounds]

    def of(self, whole: Dataset) -> Pieces:
        """Return the same pieces of another data set, whose partitions have the same rows."""
        return Pieces(whole, self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Pieces, (self._whole, self._rows)

    @functools.cached_property
    def stored(self) -> Dataset:
        return Pieces(self._whole.stored, self._rows) if self.is_live else self

    def fetch(self, partition: int) -> None:
        self._whole.fetch(self._bounds[self._index(partition)][0])

    def file(self, partition: int) -> Path:
        return self._whole.file(self._bounds[self._index(partition)][0])

    def _open(self, partition: int) -> dict[str, Cells]:
        whole, start, stop = self._bounds[partition]
        return {name: cells.slice(start, stop) for name, cells in self._whole._open(whole).items()}
