"""Which rows go to which partition: each chunk is dealt when it and all chunks before it are prepared.

Rows that fail are not dealt, so the rows of a chunk depend on those before. Chunks are dealt while others are prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopfleet.data.columns import Array
from hopfleet.data.spill import Evenly
from hopfleet.support.files import make_folder

DEALT = np.dtype(np.int32)
"""The type of the numbers of rows in the file of a ``Deal``."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Which rows of a chunk each partition gets: those that the file ``path`` lists from one bound to the next."""

    path: Path
    bounds: tuple[int, ...]

    def count(self, partition: int) -> int:
        start, stop = self.bounds[partition : partition + 2]
        return stop - start

    def rows(self, partition: int) -> Array:
        start, stop = self.bounds[partition : partition + 2]
        return np.fromfile(self.path, DEALT, stop - start, offset=start * DEALT.itemsize)


def deal(targets: Array, partitions: int, path: Path) -> Deal:
    """Write down which rows go to which of the partitions; ``targets`` has the partition of each row."""
    small = targets.astype(np.uint8 if partitions <= 256 else np.uint16 if partitions <= 65_536 else np.int64)
    np.argsort(small, kind="stable").astype(DEALT).tofile(path)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=partitions))])
    return Deal(path, tuple(bounds.tolist()))


class Dealing:
    """The deals of all chunks, for each split."""

    def __init__(self, folder: Path, splits: int, partitions: int, seed: int) -> None:
        self._folder = folder
        self._dealers = [Evenly(partitions, seed) for _ in range(splits)]
        self._waiting: dict[int, Sequence[int]] = {}  # the bounds of chunks that come before their turn
        self.deals: list[list[Deal]] = [[] for _ in range(splits)]
        make_folder(folder)

    def add(self, chunk: int, bounds: Sequence[int]) -> None:
        """Deal the rows of a chunk, and of later ones that wait for it; split s has ``bounds[s]:bounds[s + 1]``."""
        self._waiting[chunk] = bounds
        while (number := len(self.deals[0])) in self._waiting:
            edges = self._waiting.pop(number)
            for split, dealer in enumerate(self._dealers):
                path = self._folder / f"{split:03d}-{number:06d}.rows"
                targets = dealer.deal(edges[split + 1] - edges[split])
                self.deals[split].append(deal(targets, dealer.partitions, path))
