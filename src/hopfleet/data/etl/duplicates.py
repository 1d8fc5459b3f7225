"""Rows that occur in several splits, found by hashes of all rows; few of the hashes are in memory at a time."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.data.cells import Cells, FixedCells, as_bytes
from hopfleet.data.columns import Array

AT_ONCE = 1 << 21
"""Rows whose hashes are compared at a time, as far as hashes are evenly spread."""

WIDE = 256
"""Bytes of a row up to which rows are hashed all at once."""


class Hashes:
    """The hashes of the rows of a chunk, in order within each split; split s has ``bounds[s]:bounds[s + 1]``."""

    def __init__(self, hashes: Array, bounds: Iterable[int]) -> None:
        self._bounds = [int(bound) for bound in bounds]
        parts = [np.sort(hashes[first:last]) for first, last in itertools.pairwise(self._bounds)]
        self._array: Array | None = np.concatenate(parts)
        self._path: Path | None = None

    def spill(self, path: Path) -> None:
        """Move the hashes from memory into a file."""
        if self._array is not None:
            np.save(path, self._array)
            self._array, self._path = None, path

    def between(self, split: int, low: int, high: int) -> Array:
        """Return the hashes of a split from ``low`` on that are less than ``high``."""
        whole = self._array
        if whole is None:
            assert self._path is not None
            whole = np.load(self._path, mmap_mode="r")
        part = whole[self._bounds[split] : self._bounds[split + 1]]
        start = np.searchsorted(part, np.uint64(low))
        stop = len(part) if high > np.iinfo(np.uint64).max else np.searchsorted(part, np.uint64(high))
        found: Array = part[start:stop]
        return found


def leaks(names: Sequence[str], hashes: Sequence[Hashes], rows: int) -> dict[str, int]:
    """Count the rows of each split that an earlier split has too, among ``rows`` in all."""
    found, times = dict[str, int](), 1 + rows // AT_ONCE
    edges = [(1 << 64) * time // times for time in range(times + 1)]
    for low, high in itertools.pairwise(edges):
        seen = np.empty(0, np.uint64)
        for number, name in enumerate(names):
            mine = np.concatenate([seen[:0], *(each.between(number, low, high) for each in hashes)])
            if len(seen) and len(mine):
                places = np.minimum(np.searchsorted(seen, mine), len(seen) - 1)
                if count := int((seen[places] == mine).sum()):
                    found[name] = found.get(name, 0) + count
            seen = np.sort(np.concatenate([seen, mine]))
    return {name: found[name] for name in names if name in found}


def row_hashes(cells: Mapping[str, Cells]) -> Array:
    """Return a hash of each row, as uint64."""
    rows = len(next(iter(cells.values())))
    found = np.full(rows, 0xCBF29CE484222325, np.uint64)
    for column in cells.values():
        if isinstance(column, FixedCells) and column.array[:1].nbytes <= WIDE:
            width = column.array[:1].nbytes
            padded = np.zeros((rows, -(-width // 8) * 8), np.uint8)
            padded[:, :width] = as_bytes(column.array).reshape(rows, width)
            words: list[Array] = list(padded.view(np.uint64).T)
        else:
            values = column.values()
            texts = (
                value.encode() if isinstance(value, str) else bytes(memoryview(value).cast("B"))
                for value in map(_flat, values)
            )
            words = [
                np.array([int.from_bytes(hashlib.blake2b(t, digest_size=8).digest(), "big") for t in texts], np.uint64)
            ]
        for word in words:
            found = (found ^ word) * np.uint64(0x9E3779B97F4A7C15)
            found ^= found >> np.uint64(29)
    return found


def _flat(value: Any) -> Any:
    return np.ascontiguousarray(value).reshape(-1) if isinstance(value, np.ndarray) else value
