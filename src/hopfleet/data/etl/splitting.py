"""Splits: which rows are for training, which for validation, which for the test; and rows that leak between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import Array
from hopfleet.data.etl.chunks import Chunk, ColumnTypes
from hopfleet.data.spill import Sized
from hopfleet.domain.seeds import derive
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError
from hopfleet.phrases import did_you_mean, listed


@explained
@dataclass(frozen=True, slots=True)
class Split:
    """How rows are divided. The first split is the one for training, whose rows alone give statistics.

    ``fractions`` maps the names of splits to their shares of the rows. ``stratify`` names a column whose values have
    the same shares in every split; ``group`` one whose equal values stay together; ``time`` one by which earlier rows
    come into earlier splits. ``column`` names a column that holds the names of splits itself.
    """

    fractions: Mapping[str, float] = field(default_factory=dict)
    stratify: str = ""
    group: str = ""
    time: str = ""
    column: str = ""

    def __post_init__(self) -> None:
        chosen = [name for name in ("stratify", "group", "time", "column") if getattr(self, name)]
        if len(chosen) > 1:
            raise DataError(f"{chosen[0]}= and {chosen[1]}=: only one can decide about the split")
        if self.column and self.fractions:
            raise DataError(f"column={self.column!r}: names the split of each row, so leave out fractions")
        if self.column:
            return
        for name, share in self.fractions.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise DataError(f"split {name!r}: must be a name such as 'train', which becomes a folder")
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                raise DataError(f"split {name!r}: {share!r} must be a fraction above 0 and at most 1")
        total = sum(self.fractions.values())
        if len(self.fractions) < 2 or abs(total - 1) > 1e-9:
            raise DataError(
                f"split={dict(self.fractions)}: must have two fractions or more that sum to 1, not {total:g}, as in "
                "{'train': 0.8, 'valid': 0.1, 'test': 0.1}"
            )

    @property
    def by(self) -> str:
        """The column that decides, if there is one."""
        return self.stratify or self.group or self.time or self.column

    def describe(self) -> dict[str, Any]:
        names = ("stratify", "group", "time", "column")
        return {
            "fractions": dict(self.fractions),
            **{name: getattr(self, name) for name in names if getattr(self, name)},
        }


def as_split(split: Split | Mapping[str, float] | None) -> Split | None:
    if split is None or isinstance(split, Split):
        return split
    if not isinstance(split, Mapping):
        raise DataError(f"split={split!r}: must be a dict of fractions, or hop.Split(...)")
    return Split(split)


def assign(split: Split, chunks: Sequence[Chunk], layout: ColumnTypes, seed: int, paths: Sequence[Path]) -> list[str]:
    """Write the split of each row, a file per chunk, and return the names of the splits."""
    if split.by and split.by not in layout.types:
        near = did_you_mean(split.by, layout.types)
        raise DataError(f"{split.by!r}: the rows have no such column; {near}there are {listed(split.by, layout.types)}")
    rows = sum(chunk.rows for chunk in chunks)
    names = list(split.fractions)
    if split.column:
        names = _names(split, chunks)
    elif rows < len(names):
        raise DataError(f"split={dict(split.fractions)}: {rows} rows are too few; every split needs one row at least")
    makers = {"stratify": _stratified, "group": _grouped, "time": _by_time, "column": _named}
    make = next((makers[name] for name in makers if getattr(split, name)), _dealt)
    for number, targets in enumerate(make(split, chunks, layout, seed)):
        np.save(paths[number], targets.astype(np.int16))
    return names


def sizes(rows: int, fractions: Sequence[float]) -> list[int]:
    """Return whole numbers of rows in proportion to fractions; they sum to all rows."""
    edges = np.round(np.concatenate([[0.0], np.cumsum(fractions)]) / sum(fractions) * rows).astype(int)
    found = np.diff(edges)
    while rows >= len(found) and (found == 0).any():  # every split has a row if there are enough
        found[found.argmax()] -= 1
        found[found.argmin()] += 1
    return [int(size) for size in found]


def _dealt(split: Split, chunks: Sequence[Chunk], layout: ColumnTypes, seed: int) -> Any:
    rows = sum(chunk.rows for chunk in chunks)
    dealer = Sized(sizes(rows, list(split.fractions.values())), derive(seed, "split"))
    return (dealer.deal(chunk.rows) for chunk in chunks)


def _column(chunk: Chunk, name: str) -> pa.ChunkedArray:
    if chunk.dataset is not None:
        (batch,) = chunk.dataset.batches(chunk.part, batch_size=max(1, chunk.rows))
        return pa.chunked_array([pa.array(batch[name])])
    return chunk.read([name]).column(name)


def _texts(chunk: Chunk, name: str) -> list[str | None]:
    texts: list[str | None] = pc.cast(_column(chunk, name), pa.large_string()).to_pylist()
    return texts


def _stratified(split: Split, chunks: Sequence[Chunk], layout: ColumnTypes, seed: int) -> Any:
    counts: dict[str | None, int] = {}
    for chunk in chunks:
        for value in _texts(chunk, split.stratify):
            counts[value] = counts.get(value, 0) + 1
    # The remainders of small strata are dealt together, so that the splits as a whole have their sizes.
    fractions, dealers = list(split.fractions.values()), {}
    edges, before = np.concatenate([[0.0], np.cumsum(fractions)]), 0
    for value in sorted(counts, key=lambda value: (value is None, value or "")):
        last = np.floor(edges * before + 0.5)
        before += counts[value]
        found = np.diff(np.floor(edges * before + 0.5) - last).astype(int)
        dealers[value] = Sized(found.tolist(), derive(seed, "split", value))
    for chunk in chunks:
        places: dict[str | None, list[int]] = {}
        for row, value in enumerate(_texts(chunk, split.stratify)):
            places.setdefault(value, []).append(row)
        targets = np.empty(chunk.rows, np.int64)
        for value, rows in places.items():
            targets[rows] = dealers[value].deal(len(rows))
        yield targets


def _grouped(split: Split, chunks: Sequence[Chunk], layout: ColumnTypes, seed: int) -> Any:
    counts: dict[str | None, int] = {}
    for chunk in chunks:
        for value in _texts(chunk, split.group):
            counts[value] = counts.get(value, 0) + 1
    groups = sorted(counts, key=lambda value: (value is None, value or ""))
    if len(groups) < len(split.fractions):
        raise DataError(
            f"group={split.group!r}: has {len(groups)} values, fewer than the {len(split.fractions)} splits"
        )
    random = np.random.Generator(np.random.PCG64(derive(seed, "split")))
    order = [groups[place] for place in random.permutation(len(groups))]
    order.sort(key=lambda value: -counts[value])  # large groups first, so that small ones fill the gaps
    wanted = np.array(list(split.fractions.values())) * sum(counts.values())
    held, homes = np.zeros(len(wanted)), {}
    for value in order:
        home = int(np.argmax((wanted - held) / wanted))
        homes[value], held[home] = home, held[home] + counts[value]
    for chunk in chunks:
        yield np.array([homes[value] for value in _texts(chunk, split.group)])


def _by_time(split: Split, chunks: Sequence[Chunk], layout: ColumnTypes, seed: int) -> Any:
    def times(chunk: Chunk) -> Array:
        column = _column(chunk, split.time)
        if column.null_count:
            raise DataError(
                f"{chunk.file}: {column.null_count} rows lack {split.time!r}, so they have no place in time"
            )
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return np.asarray(column.to_pylist(), object)  # ISO 8601 sorts as text
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        return np.asarray(column.combine_chunks())

    every = np.sort(np.concatenate([times(chunk) for chunk in chunks]), kind="stable")
    edges = np.cumsum(sizes(len(every), list(split.fractions.values())))[:-1]
    cuts = [every[edge] for edge in edges]
    for chunk in chunks:
        # Equal times stay together, in the later split.
        yield np.sum([times(chunk) >= cut for cut in cuts], axis=0)


def _names(split: Split, chunks: Sequence[Chunk]) -> list[str]:
    names: dict[str | None, None] = {}
    for chunk in chunks:
        names.update(dict.fromkeys(_texts(chunk, split.column)))
    if None in names:
        raise DataError(f"column={split.column!r}: some rows lack the name of their split; fill it in")
    found = sorted(map(str, names), key=lambda name: (name != "train", name != "valid", name))
    if len(found) > 20 or not all(name.isidentifier() for name in found):
        raise DataError(
            f"column={split.column!r}: {listed('train', found)} cannot name splits; use names such as 'train'"
        )
    return found


def _named(split: Split, chunks: Sequence[Chunk], layout: ColumnTypes, seed: int) -> Any:
    homes = {name: number for number, name in enumerate(_names(split, chunks))}
    for chunk in chunks:
        yield np.array([homes[str(value)] for value in _texts(chunk, split.column)])


def leaks(names: Sequence[str], hashes: Mapping[int, Array]) -> dict[str, int]:
    """Count the rows of each split that an earlier split has too, by hashes of all rows."""
    found, seen = {}, np.empty(0, np.uint64)
    for number, name in enumerate(names):
        mine = hashes[number]
        if number and (count := int(np.isin(mine, seen).sum())):
            found[name] = count
        seen = np.concatenate([seen, mine])
    return found
