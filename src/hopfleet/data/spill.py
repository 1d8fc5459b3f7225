"""Rows on their way into partitions: the partition of each row, and the storage of rows until all have been read.

With P partitions, each block of P rows is dealt out by a random permutation of its own. So sizes differ by at most one,
a stream needs no second pass, and the outcome depends only on the rows, the seed and P. With given sizes, longer blocks
are dealt in proportion to these sizes. Small data is held in memory, larger data in temporary files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from hopfleet.data.cells import Builder, Cells
from hopfleet.data.columns import Array, Column
from hopfleet.data.files import map_cells, write_cells
from hopfleet.domain.seeds import derive
from hopfleet.support.files import make_folder

MEMORY_BYTES = 64 << 20
"""Bytes of rows held in memory; above this, rows are written to temporary files."""

BLOCK = 1024
"""Rows dealt together if partitions have given sizes."""


class Dealer(Protocol):
    """A dealer of rows to partitions. The result does not depend on how the rows are divided among calls."""

    partitions: int

    def deal(self, rows: int) -> Array:
        """Return the partition of each of the next rows."""


class Evenly:
    """A dealer of any number of rows to partitions whose sizes differ by at most one."""

    def __init__(self, partitions: int, seed: int) -> None:
        self.partitions = partitions
        self._random = np.random.Generator(np.random.PCG64(derive(seed, "partition", partitions)))
        self._rest: Array = np.empty(0, np.int64)

    def deal(self, rows: int) -> Array:
        blocks = max(0, -(-(rows - len(self._rest)) // self.partitions))
        deck = np.tile(np.arange(self.partitions), (blocks, 1))  # (blocks, partitions)
        dealt = np.concatenate([self._rest, self._random.permuted(deck, axis=1).reshape(-1)])
        self._rest = dealt[rows:]
        return dealt[:rows]


class Sized:
    """A dealer of rows to partitions of given sizes; the number of rows is the sum of the sizes."""

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self.partitions = len(sizes)
        self._left = np.array(sizes, np.int64)
        self._random = np.random.Generator(np.random.PCG64(derive(seed, "sizes", *sizes)))
        self._rest: Array = np.empty(0, np.int64)

    def deal(self, rows: int) -> Array:
        dealt = [self._rest]
        missing = rows - len(self._rest)
        while missing > 0:
            dealt.append(self._block())
            missing -= len(dealt[-1])
        deck = np.concatenate(dealt)
        self._rest = deck[rows:]
        return deck[:rows]

    def _block(self) -> Array:
        """Deal a block in proportion to what each partition still lacks.

        A random offset decides which counts are rounded up, so that every row of the source is equally likely to end in
        a small partition.
        """
        total = int(self._left.sum())
        block = min(BLOCK, total)
        edges = (block * np.concatenate([[0], np.cumsum(self._left)]) + self._random.integers(total)) // total
        counts = np.diff(edges)
        self._left -= counts
        return self._random.permutation(np.repeat(np.arange(self.partitions), counts))


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one chunk, sorted by partition: partition p has the rows ``bounds[p]:bounds[p + 1]``."""

    columns: Mapping[str, Column]  #: as stored in this piece; a later chunk may widen the schema
    cells: Mapping[str, Cells] | Path
    bounds: Array

    def all(self) -> Iterator[tuple[str, Cells]]:
        return self._slices(0, int(self.bounds[-1]))

    def partition(self, index: int) -> Iterator[tuple[str, Cells]]:
        return self._slices(int(self.bounds[index]), int(self.bounds[index + 1]))

    def _slices(self, start: int, end: int) -> Iterator[tuple[str, Cells]]:
        rows = int(self.bounds[-1])
        cells = (
            map_cells(self.cells, self.columns, rows, validate=False) if isinstance(self.cells, Path) else self.cells
        )
        for name in self.columns:
            yield name, cells[name].slice(start, end)


class Spill:
    """All rows of a source, ready to be gathered by partition. ``folder`` is created when memory is exceeded."""

    def __init__(self, folder: Path, dealer: Dealer) -> None:
        self._folder = folder
        self._dealer = dealer
        self._pieces: list[Piece] = []
        self._held = 0  #: bytes of the pieces in memory
        self.counts = np.zeros(dealer.partitions, np.int64)  #: rows of each partition

    def add(self, cells: Mapping[str, Cells]) -> None:
        targets = self._dealer.deal(len(next(iter(cells.values()))))
        order = np.argsort(targets, kind="stable")
        counts = np.bincount(targets, minlength=self._dealer.partitions)
        self.counts += counts
        taken = {name: column.take(order) for name, column in cells.items()}
        columns = {name: Column(name, column.kind, column.dtype, column.shape) for name, column in taken.items()}
        self._pieces.append(Piece(columns, taken, np.concatenate([[0], np.cumsum(counts)])))
        self._held += sum(column.nbytes for column in taken.values())
        if self._held > MEMORY_BYTES:
            self._write()

    def partition(self, index: int, columns: Mapping[str, Column]) -> dict[str, Cells]:
        """Return the rows of a partition, in the order in which they were added."""
        builders = {name: Builder(column, int(self.counts[index])) for name, column in columns.items()}
        for piece in self._pieces:
            for name, cells in piece.partition(index):
                builders[name].append(cells)
        return {name: builder.cells() for name, builder in builders.items()}

    def chunks(self) -> Iterator[dict[str, Cells]]:
        """Yield all rows piece by piece. With one partition, the order is that in which they were added."""
        for piece in self._pieces:
            yield dict(piece.all())

    def _write(self) -> None:
        make_folder(self._folder)
        for i, piece in enumerate(self._pieces):
            if not isinstance(piece.cells, Path):
                path = self._folder / f"spill-{i:06d}.arrow"
                write_cells(path, piece.columns, piece.cells)
                self._pieces[i] = Piece(piece.columns, path, piece.bounds)
        self._held = 0
