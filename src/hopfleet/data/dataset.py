"""Reading a data set: columns, partitions, the row order of a unit, and batches.

A Dataset is a small handle. Files are mapped on first use, and only the handle is sent between processes.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hopfleet.data.cells import Cells, FixedCells, Values
from hopfleet.data.columns import Column
from hopfleet.data.files import map_cells
from hopfleet.data.folders import Folder, LocalFolder, RemoteFolder, open_folder
from hopfleet.data.live import ROW, Live
from hopfleet.data.manifest import FILE, Manifest, fold_name, read_manifest
from hopfleet.domain.seeds import derive
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataChanged, DataError
from hopfleet.safe_text import masked

Batch = dict[str, Any]
"""Columns by name, in order: arrays of shape (rows, *shape), or lists for columns of other kinds."""

Transform = Callable[[Batch, np.random.Generator], Batch]

#: Bytes of a block of rows that is gathered at once: large enough to make tiny batches cheap, small enough for caches.
BLOCK_BYTES = 4 << 20
#: Rows whose numbers fit into 32 bits.
INT32_ROWS = 1 << 31
#: Number of mapped files kept open; each holds a file descriptor.
MAPPINGS = 64


@explained
def open_dataset(folder: str | os.PathLike[str] | Dataset) -> Dataset:
    """Open the data set in a folder, given as a local path or an fsspec URL. A Dataset is returned unchanged."""
    if isinstance(folder, Dataset):
        return folder
    place = open_folder(folder)
    return Dataset(place, read_manifest(place.manifest(), f"{place.url}/{FILE}"))


class Dataset:
    """A partitioned data set: immutable, safe to share between threads, and cheap to pickle."""

    def __init__(self, folder: Folder, manifest: Manifest, items: Live | None = None) -> None:
        self._folder = folder
        #: the description of the columns and files
        self.manifest = manifest
        self._items = items
        self._mapped: dict[int, dict[str, Cells]] = {}
        #: partitions whose files this process has validated
        self._validated: set[int] = set()
        #: the absolute path or the URL of the folder
        self.url: str = folder.url
        #: the columns by name, in order
        self.columns: Mapping[str, Column] = MappingProxyType(
            dict(manifest.columns if manifest.live is None else manifest.live.columns)
        )
        #: whether items are made for each batch; see ``hop.live``
        self.is_live: bool = manifest.live is not None
        self.rows: int = manifest.rows
        #: bytes of all partition files; for a live data set, of its row numbers
        self.size: int = sum(part.size for part in manifest.partitions)
        self.partition_rows: tuple[int, ...] = tuple(part.rows for part in manifest.partitions)
        #: the seed of the shuffle
        self.seed: int = manifest.seed
        #: a SHA-256 of columns and partitions; equal for equal data, independent of the folder
        self.fingerprint: str = manifest.fingerprint

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self.partition_rows)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.columns.items())
        rows = "live rows" if self.is_live else "rows"
        return f"Dataset({masked(self.url)!r}, {self.rows:,} {rows} in {len(self)} partitions, {columns})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.url, self.manifest, self._items)

    def check(self, *, checksums: bool = False) -> None:
        """Raise DataError for the first file that is missing, has the wrong size, or cannot be read.

        ``checksums=True`` also compares the contents, which fetches every partition of a remote data set.
        """
        for index, part in enumerate(self.manifest.partitions):
            self._folder.probe(part)
            if checksums:
                self._folder.verify(part)
            if checksums or isinstance(self._folder, LocalFolder):
                self._open(index)

    def probe(self) -> None:
        """Raise DataError for the first file that is missing or has the wrong size, without fetching any."""
        for part in self.manifest.partitions:
            self._folder.probe(part)

    def fetch(self, partition: int) -> None:
        """Fetch a partition to this host and verify its checksum. A partition of a local data set is only verified."""
        self._folder.verify(self.manifest.partitions[self._index(partition)])

    def file(self, partition: int) -> Path:
        """Return the file of a partition on this host; the file of a remote data set is fetched first."""
        return self._folder.file(self.manifest.partitions[self._index(partition)])

    def copied(self) -> Dataset:
        """Return the same data set, read from copies that this host makes on first use. A remote one returns itself."""
        if isinstance(self._folder, RemoteFolder):
            return self
        return Dataset(RemoteFolder(f"file://{self.url}"), self.manifest, self._items)

    @functools.cached_property
    def stored(self) -> Dataset:
        """The rows as stored in files: those of a live data set are the numbers of its items."""
        return Dataset(self._folder, replace(self.manifest, live=None)) if self.is_live else self

    @functools.cached_property
    def folds(self) -> tuple[Dataset, ...]:
        """The same rows for each fold, prepared with statistics of the rows of all other folds.

        There are none if the data was prepared without folds, or if all of them have the same values. Raise DataError
        if one is missing or is another than was prepared.
        """
        found = [open_dataset(f"{self.url}/{fold_name(number)}") for number in range(len(self.manifest.folds))]
        for fold, fingerprint in zip(found, self.manifest.folds, strict=True):
            if fold.fingerprint != fingerprint:
                raise DataError(f"{fold.url}: differs from what was prepared; prepare the data again")
        own = self.manifest.partitions
        return () if all(fold.manifest.partitions == own for fold in found) else tuple(found)

    def made_by(self, items: Live) -> Dataset:
        """Return this live data set with the object that makes its items. Raise DataChanged if it makes others."""
        made = replace(self.manifest, live=items.describe())
        changes = self.manifest.changes(made)
        if len(items) != self.rows:
            changes.insert(0, f"rows {self.rows:,} → {len(items):,}")
        if changes:
            raise DataChanged(f"{items!r}: makes other items than those of {self.url} ({', '.join(changes)})", changes)
        return Dataset(self._folder, self.manifest, items)

    def items(self, stored: Batch, *, seed: int, epoch: int | None) -> Batch:
        """Return the items of a live data set for a batch of ``stored``; for any other data set, the batch itself."""
        if not self.is_live:
            return stored
        self.require_items()
        assert self._items is not None
        return self._items.batch(stored[ROW], seed=seed, epoch=epoch, columns=self.columns)

    def require_items(self) -> None:
        """Raise DataError if this is a live data set without the object that makes its items."""
        if self.is_live and self._items is None:
            raise DataError(
                f"{self.url}: is a live data set, and the object that makes its items is not stored; open it with "
                f"hop.partition(hop.live(dataset), folder, partitions={len(self)}, seed={self.seed})"
            )

    def order(self, partition: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the row order of a unit, which depends only on seed, epoch and partition."""
        return self._order(self._index(partition), seed, epoch).astype(np.int64, copy=False)

    def _order(self, partition: int, seed: int, epoch: int) -> npt.NDArray[Any]:
        """Return the order with four bytes a row where they suffice: each worker holds one while it trains."""
        rows = self.partition_rows[partition]
        random = np.random.Generator(np.random.PCG64(derive(seed, "order", epoch, partition)))
        order: npt.NDArray[Any] = np.arange(rows, dtype=np.int32 if rows <= INT32_ROWS else np.int64)
        random.shuffle(order)  # the swaps depend on the number of rows alone, as those of random.permutation
        return order

    def batches(
        self,
        partition: int,
        *,
        batch_size: int,
        seed: int = 0,
        epoch: int | None = None,
        drop_last: bool = False,
        transform: Transform | None = None,
    ) -> Iterator[Batch]:
        """Return the batches of a partition: in stored order, or in ``order(...)`` if ``epoch`` is given.

        A batch maps every column to an array (FIXED; bfloat16 as the uint16 of its bits) or to a list of arrays, str or
        bytes. The caller may write to the arrays; this changes neither the file nor any other pass. The last batch may
        be short; ``drop_last`` leaves out a short one. ``transform(batch, rng)`` replaces each batch; ``rng`` depends
        only on seed, epoch, partition and the batch's index.
        """
        partition = self._index(partition)
        if (batch_size := operator.index(batch_size)) < 1:
            raise DataError(f"batch_size={batch_size}: must be at least 1")
        stored = self._batches(partition, batch_size, seed, epoch, drop_last)
        plain = (self.items(batch, seed=seed, epoch=epoch) for batch in stored) if self.is_live else stored
        if transform is None:
            return plain
        return (transform(batch, transform_random(seed, epoch, partition, index)) for index, batch in enumerate(plain))

    def picker(
        self, partition: int, *, batch_size: int, seed: int = 0, epoch: int | None = None
    ) -> Callable[[int], Batch]:
        """Return a function that returns a batch by its index, equal to that of ``batches`` without a transform."""
        rows = self.partition_rows[partition := self._index(partition)]
        order = np.arange(rows) if epoch is None else self.order(partition, seed=seed, epoch=epoch)
        cells = self._map(partition)

        def pick(index: int) -> Batch:
            some = order[index * batch_size : (index + 1) * batch_size]
            stored = {name: column.take(some).values() for name, column in cells.items()}
            return self.items(stored, seed=seed, epoch=epoch)

        return pick

    def partition_bytes(self, partition: int) -> int | None:
        """Return the bytes of a partition in memory as arrays, or None if a column is not of the kind FIXED."""
        cells = self._map(self._index(partition)).values()
        return sum(column.nbytes for column in cells) if all(isinstance(c, FixedCells) for c in cells) else None

    def head(self, rows: int = 5) -> Batch:
        """Return the first rows as one batch."""
        parts: list[Batch] = []
        for partition in range(len(self)):
            if rows > 0 or not parts:
                cells = self._map(partition)
                count = max(0, min(rows, self.partition_rows[partition]))
                parts.append({name: column.take(np.arange(count)).values() for name, column in cells.items()})
                rows -= count
        stored = {name: _joined([part[name] for part in parts]) for name in self.manifest.columns}
        return self.items(stored, seed=0, epoch=None)

    def _batches(
        self, partition: int, batch_size: int, seed: int, epoch: int | None, drop_last: bool
    ) -> Iterator[Batch]:
        rows = self.partition_rows[partition]
        end = rows - rows % batch_size if drop_last else rows
        if epoch is None:
            # Slices are writable views, so each pass needs a mapping of its own: the next pass must not see writes.
            cells, order = self._open(partition), None
        else:
            cells, order = self._map(partition), self._order(partition, seed, epoch)
        row_bytes = max(1, sum(_row_bytes(column, rows) for column in cells.values()))
        block_rows = batch_size * max(1, BLOCK_BYTES // (row_bytes * batch_size))
        for start in range(0, end, block_rows):
            stop = min(start + block_rows, end)
            block: dict[str, Values]
            if order is None:
                block = {name: column.slice(start, stop).values() for name, column in cells.items()}
            else:
                block = {name: column.take(order[start:stop]).values() for name, column in cells.items()}
            for first in range(0, stop - start, batch_size):
                yield {name: values[first : first + batch_size] for name, values in block.items()}
            block.clear()  # before the next is gathered, so that only batches in use keep its memory

    def _index(self, partition: int) -> int:
        index = operator.index(partition)
        if not 0 <= index < len(self):
            raise DataError(f"partition={partition}: must be from 0 to {len(self) - 1}")
        return index

    def _map(self, partition: int) -> dict[str, Cells]:
        """Return the cached mapping of a partition, which must not be written to."""
        cells = self._mapped.get(partition)
        if cells is None:
            cells = self._open(partition)
            while len(self._mapped) >= MAPPINGS:
                self._mapped.pop(next(iter(self._mapped), partition), None)
            self._mapped[partition] = cells
        return cells

    def _open(self, partition: int) -> dict[str, Cells]:
        part = self.manifest.partitions[partition]
        path = self.file(partition)
        cells = map_cells(path, self.manifest.columns, part.rows, validate=partition not in self._validated)
        self._validated.add(partition)
        return cells


def _reopened(url: str, manifest: Manifest, items: Live | None = None) -> Dataset:
    return Dataset(open_folder(url), manifest, items)


def _row_bytes(column: Cells, rows: int) -> int:
    """Estimate the bytes of one row in a block, including the overhead of Python objects."""
    return column.nbytes // rows + (0 if isinstance(column, FixedCells) else 128)


def _joined(parts: list[Values]) -> Values:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def transform_random(seed: int, epoch: int | None, partition: int, index: int) -> np.random.Generator:
    """Return the random generator of a transform for one batch."""
    return np.random.default_rng(derive(seed, "transform", epoch or 0, partition, index))
