"""Reading a data set: its columns and partitions, the row order of a unit, and its batches.

A Dataset is a small handle. Files are mapped when they are first used, and only the handle travels between processes.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hopfleet.data.cells import Cells, FixedCells, Values
from hopfleet.data.columns import Column
from hopfleet.data.files import map_cells
from hopfleet.data.folders import Folder, LocalFolder, RemoteFolder, open_folder
from hopfleet.data.manifest import FILE, Manifest, read_manifest
from hopfleet.domain.seeds import derive
from hopfleet.errors import DataError

Batch = dict[str, Any]
"""Column names, in their order, to arrays of shape (rows, *shape), or to lists for the other kinds of columns."""

Transform = Callable[[Batch, np.random.Generator], Batch]

#: Rows are gathered in blocks of about this size: large enough to make tiny batches cheap, small enough for the caches.
BLOCK_BYTES = 4 << 20
#: Mappings kept open, each of which holds a file descriptor.
MAPPINGS = 64


def open_dataset(folder: str | os.PathLike[str] | Dataset) -> Dataset:
    """The data set in a folder: a local path, an fsspec URL, or a Dataset, which is returned as it is."""
    if isinstance(folder, Dataset):
        return folder
    place = open_folder(folder)
    return Dataset(place, read_manifest(place.manifest(), f"{place.url}/{FILE}"))


class Dataset:
    """A partitioned data set. It is immutable, may be shared between threads, and is cheap to pickle."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._mapped: dict[int, dict[str, Cells]] = {}
        #: where it is: an absolute path or a URL
        self.url: str = folder.url
        #: the columns by name, in their order
        self.columns: Mapping[str, Column] = MappingProxyType(dict(manifest.columns))
        self.rows: int = manifest.rows
        #: bytes of all partition files
        self.size: int = sum(part.size for part in manifest.partitions)
        self.partition_rows: tuple[int, ...] = tuple(part.rows for part in manifest.partitions)
        #: the seed it was partitioned with
        self.seed: int = manifest.seed
        #: a sha256 of columns and partitions: equal for equal data, wherever it is
        self.fingerprint: str = manifest.fingerprint

    def __len__(self) -> int:
        """The number of partitions."""
        return len(self.partition_rows)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.columns.items())
        return f"Dataset({self.url!r}, {self.rows:,} rows in {len(self)} partitions, {columns})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.url, self._manifest)

    def check(self, *, checksums: bool = False) -> None:
        """Raises a DataError naming the first file that is missing, has the wrong size, or cannot be read.

        ``checksums=True`` compares the contents too. Of a remote data set this fetches every partition.
        """
        for index, part in enumerate(self._manifest.partitions):
            self._folder.probe(part)
            if checksums:
                self._folder.verify(part)
            if checksums or isinstance(self._folder, LocalFolder):
                self._open(index)

    def probe(self) -> None:
        """Raises a DataError naming the first file that is missing or has the wrong size. Nothing is fetched."""
        for part in self._manifest.partitions:
            self._folder.probe(part)

    def fetch(self, partition: int) -> None:
        """Have a partition on this host, as it was made; of a local data set this reads it."""
        self._folder.verify(self._manifest.partitions[self._index(partition)])

    def copied(self) -> Dataset:
        """The same data set, of which this host reads its own copies, made on first use. For a remote one: itself."""
        if isinstance(self._folder, RemoteFolder):
            return self
        return Dataset(RemoteFolder(f"file://{self.url}"), self._manifest)

    def order(self, partition: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """The order of the rows of a unit. It depends on seed, epoch and partition only."""
        partition = self._index(partition)
        random = np.random.Generator(np.random.PCG64(derive(seed, "order", epoch, partition)))
        return random.permutation(self.partition_rows[partition])

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
        """The batches of a partition: in stored order, or in ``order(...)`` with an ``epoch``.

        A batch maps every column to an array (FIXED; bfloat16 as the uint16 of its bits) or to a list of arrays, str or
        bytes. Its arrays are the caller's: they may be written to, which changes neither the file nor any other pass.
        The last batch may be short, or is left out with ``drop_last``. ``transform(batch, rng)`` replaces each batch,
        with a generator that depends on seed, epoch, partition and the batch's index only.
        """
        partition = self._index(partition)
        if (batch_size := operator.index(batch_size)) < 1:
            raise DataError(f"batch_size={batch_size}: must be at least 1")
        plain = self._batches(partition, batch_size, seed, epoch, drop_last)
        if transform is None:
            return plain
        return (transform(batch, transform_random(seed, epoch, partition, index)) for index, batch in enumerate(plain))

    def picker(
        self, partition: int, *, batch_size: int, seed: int = 0, epoch: int | None = None
    ) -> Callable[[int], Batch]:
        """What gives a batch by its number, as ``batches`` has it without a transform."""
        rows = self.partition_rows[partition := self._index(partition)]
        order = np.arange(rows) if epoch is None else self.order(partition, seed=seed, epoch=epoch)
        cells = self._map(partition)

        def pick(index: int) -> Batch:
            some = order[index * batch_size : (index + 1) * batch_size]
            return {name: column.take(some).values() for name, column in cells.items()}

        return pick

    def partition_bytes(self, partition: int) -> int | None:
        """The memory that a partition takes as arrays; None if a column has rows of different shapes, or texts."""
        cells = self._map(self._index(partition)).values()
        return sum(column.nbytes for column in cells) if all(isinstance(c, FixedCells) for c in cells) else None

    def head(self, rows: int = 5) -> Batch:
        """The first rows, as one batch."""
        parts: list[Batch] = []
        for partition in range(len(self)):
            if rows > 0 or not parts:
                cells = self._map(partition)
                count = max(0, min(rows, self.partition_rows[partition]))
                parts.append({name: column.take(np.arange(count)).values() for name, column in cells.items()})
                rows -= count
        return {name: _joined([part[name] for part in parts]) for name in self.columns}

    def _batches(
        self, partition: int, batch_size: int, seed: int, epoch: int | None, drop_last: bool
    ) -> Iterator[Batch]:
        rows = self.partition_rows[partition]
        end = rows - rows % batch_size if drop_last else rows
        if epoch is None:
            # A mapping of its own: the slices can be written to, and the next pass must not see that.
            cells, order = self._open(partition), None
        else:
            cells, order = self._map(partition), self.order(partition, seed=seed, epoch=epoch)
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

    def _index(self, partition: int) -> int:
        index = operator.index(partition)
        if not 0 <= index < len(self):
            raise DataError(f"partition={partition}: must be from 0 to {len(self) - 1}")
        return index

    def _map(self, partition: int) -> dict[str, Cells]:
        """The cached mapping of a partition, which nobody writes to."""
        cells = self._mapped.get(partition)
        if cells is None:
            cells = self._open(partition)
            while len(self._mapped) >= MAPPINGS:
                self._mapped.pop(next(iter(self._mapped), partition), None)
            self._mapped[partition] = cells
        return cells

    def _open(self, partition: int) -> dict[str, Cells]:
        part = self._manifest.partitions[partition]
        return map_cells(self._folder.file(part), self._manifest.columns, part.rows)


def _reopened(url: str, manifest: Manifest) -> Dataset:
    return Dataset(open_folder(url), manifest)


def _row_bytes(column: Cells, rows: int) -> int:
    """About the memory of one row in a block; a Python object takes some beside its data."""
    return column.nbytes // rows + (0 if isinstance(column, FixedCells) else 128)


def _joined(parts: list[Values]) -> Values:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def transform_random(seed: int, epoch: int | None, partition: int, index: int) -> np.random.Generator:
    """The random stream of a transform, for one batch."""
    return np.random.default_rng(derive(seed, "transform", epoch or 0, partition, index))
