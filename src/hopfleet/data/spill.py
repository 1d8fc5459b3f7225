"""Rows on their way into partitions: which partition each goes to, and where they wait until all have come.

One algorithm serves every source. Each block of as many rows as there are partitions is dealt out by a random
permutation of its own, so that sizes differ by at most one, a stream needs no second pass, and the outcome depends on
the rows, the seed and the number of partitions alone. Small data waits in memory, the rest in temporary files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopfleet.data.cells import Builder, Cells
from hopfleet.data.columns import Array, Column
from hopfleet.data.files import map_cells, write_cells
from hopfleet.domain.seeds import derive

MEMORY_BYTES = 64 << 20


class Dealer:
    """Deals rows to partitions, in any number of steps."""

    def __init__(self, partitions: int, seed: int) -> None:
        self._partitions = partitions
        self._random = np.random.Generator(np.random.PCG64(derive(seed, "partition", partitions)))
        self._rest: Array = np.empty(0, np.int64)

    def deal(self, rows: int) -> Array:
        """The partition of each of the next rows."""
        blocks = max(0, -(-(rows - len(self._rest)) // self._partitions))
        deck = np.tile(np.arange(self._partitions), (blocks, 1))  # (blocks, partitions)
        dealt = np.concatenate([self._rest, self._random.permuted(deck, axis=1).reshape(-1)])
        self._rest = dealt[rows:]
        return dealt[:rows]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one chunk sorted by partition: those of partition p are ``bounds[p]:bounds[p + 1]``."""

    columns: Mapping[str, Column]  #: as stored in this piece; a later chunk may widen the schema
    cells: Mapping[str, Cells] | Path
    bounds: Array

    def partition(self, index: int) -> Iterator[tuple[str, Cells]]:
        rows = int(self.bounds[-1])
        cells = map_cells(self.cells, self.columns, rows) if isinstance(self.cells, Path) else self.cells
        for name in self.columns:
            yield name, cells[name].slice(int(self.bounds[index]), int(self.bounds[index + 1]))


class Spill:
    """All rows of a source, ready to be gathered by partition. ``folder`` is made when memory does not suffice."""

    def __init__(self, folder: Path, partitions: int, seed: int) -> None:
        self._folder = folder
        self._partitions = partitions
        self._dealer = Dealer(partitions, seed)
        self._pieces: list[Piece] = []
        self._held = 0  #: bytes of the pieces in memory
        self.counts = np.zeros(partitions, np.int64)  #: rows of each partition

    def add(self, cells: Mapping[str, Cells]) -> None:
        targets = self._dealer.deal(len(next(iter(cells.values()))))
        order = np.argsort(targets, kind="stable")
        counts = np.bincount(targets, minlength=self._partitions)
        self.counts += counts
        taken = {name: column.take(order) for name, column in cells.items()}
        columns = {name: Column(name, column.kind, column.dtype, column.shape) for name, column in taken.items()}
        self._pieces.append(Piece(columns, taken, np.concatenate([[0], np.cumsum(counts)])))
        self._held += sum(column.nbytes for column in taken.values())
        if self._held > MEMORY_BYTES:
            self._write()

    def partition(self, index: int, columns: Mapping[str, Column]) -> dict[str, Cells]:
        """The rows of a partition, in the order in which they came."""
        builders = {name: Builder(column, int(self.counts[index])) for name, column in columns.items()}
        for piece in self._pieces:
            for name, cells in piece.partition(index):
                builders[name].append(cells)
        return {name: builder.cells() for name, builder in builders.items()}

    def _write(self) -> None:
        self._folder.mkdir(exist_ok=True)
        for i, piece in enumerate(self._pieces):
            if not isinstance(piece.cells, Path):
                path = self._folder / f"spill-{i:06d}.arrow"
                write_cells(path, piece.columns, piece.cells)
                self._pieces[i] = Piece(piece.columns, path, piece.bounds)
        self._held = 0
