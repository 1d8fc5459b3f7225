"""Splits: which rows are for training, which for validation, which for the test; and rows that leak between them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import Array
from hopfleet.data.etl.chunks import Chunk, ColumnTypes
from hopfleet.data.etl.statistics import is_coded_text
from hopfleet.data.spill import Sized
from hopfleet.domain.seeds import derive
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError
from hopfleet.phrases import did_you_mean, listed


@explained
@dataclass(frozen=True, slots=True)
class Split:
    """How rows are divided. Statistics are those of the rows of "train", or of the first split if none has that name.

    ``fractions`` maps the names of splits to their shares of the rows. ``stratify`` names a column whose values have
    the same shares in every split; ``group`` one whose equal values stay together, which goes along with ``stratify``;
    ``time`` one by which earlier rows come into earlier splits. Its texts are dates as in ISO 8601, numbers, or as
    ``time_format`` says in the letters of ``strptime``. ``column`` names one that holds the names of splits itself.
    """

    fractions: Mapping[str, float] = field(default_factory=dict)
    stratify: str = ""
    group: str = ""
    time: str = ""
    column: str = ""
    time_format: str = ""

    def __post_init__(self) -> None:
        chosen = [name for name in ("stratify", "group", "time", "column") if getattr(self, name)]
        if len(chosen) > 1 and chosen != ["stratify", "group"]:
            raise DataError(
                f"{chosen[0]}= and {chosen[1]}=: only one can decide about the split, or stratify= and group= together"
            )
        if self.time_format and not self.time:
            raise DataError(
                f"time_format={self.time_format!r}: tells how to read the column of time=, which is missing"
            )
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
    def by(self) -> list[str]:
        """The columns that decide."""
        return [name for name in (self.stratify, self.group, self.time, self.column) if name]

    def describe(self) -> dict[str, Any]:
        names = ("stratify", "group", "time", "column", "time_format")
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
    for name in split.by:
        if name not in layout.types:
            near = did_you_mean(name, layout.types)
            raise DataError(f"{name!r}: the rows have no such column; {near}there are {listed(name, layout.types)}")
    rows = sum(chunk.rows for chunk in chunks)
    names = list(split.fractions)
    if split.column:
        names = _names(split, chunks)
    elif rows < len(names):
        raise DataError(f"split={dict(split.fractions)}: {rows} rows are too few; every split needs one row at least")
    makers = {"group": _grouped, "stratify": _stratified, "time": _by_time, "column": _named}
    make = next((makers[name] for name in makers if getattr(split, name)), _dealt)
    for number, targets in enumerate(make(split, chunks, layout, seed)):
        np.save(paths[number], targets.astype(np.int16))
    return names


def training(names: Sequence[str]) -> int:
    """Return the place of the split whose rows give statistics."""
    return names.index("train") if "train" in names else 0


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
    counts: dict[str | None, dict[str | None, int]] = {}  # of each group, by stratum
    for chunk in chunks:
        names = _texts(chunk, split.group)
        strata = _texts(chunk, split.stratify) if split.stratify else itertools.repeat("")
        for value, stratum in zip(names, strata, strict=False):
            inside = counts.setdefault(value, {})
            inside[stratum] = inside.get(stratum, 0) + 1
    groups = sorted(counts, key=lambda value: (value is None, value or ""))
    if len(groups) < len(split.fractions):
        raise DataError(
            f"group={split.group!r}: has {len(groups)} values, fewer than the {len(split.fractions)} splits"
        )
    places = {
        stratum: place for place, stratum in enumerate(dict.fromkeys(s for each in counts.values() for s in each))
    }
    rows = np.zeros((len(groups), len(places)))
    for number, value in enumerate(groups):
        for stratum, count in counts[value].items():
            rows[number, places[stratum]] = count
    random = np.random.Generator(np.random.PCG64(derive(seed, "split")))
    order = random.permutation(len(groups))
    # Large groups first, so that small ones fill the gaps.
    order = order[np.argsort(-rows.sum(axis=1)[order], kind="stable")]
    wanted = np.outer(list(split.fractions.values()), rows.sum(axis=0))
    held, homes = np.zeros(wanted.shape), {}
    for number in order:
        # The split that lacks most of the rows of these strata, weighted by the strata of the group.
        gaps = ((wanted - held) / wanted) @ (rows[number] / rows[number].sum())
        home = int(np.argmax(gaps))
        homes[groups[number]] = home
        held[home] += rows[number]
    for chunk in chunks:
        yield np.array([homes[value] for value in _texts(chunk, split.group)])


def _by_time(split: Split, chunks: Sequence[Chunk], layout: ColumnTypes, seed: int) -> Any:
    columns = [_column(chunk, split.time) for chunk in chunks]
    columns = [column.cast(pa.string()) if is_coded_text(column.type) else column for column in columns]
    for chunk, column in zip(chunks, columns, strict=True):
        if column.null_count:
            raise DataError(
                f"{chunk.file}: {column.null_count} rows lack {split.time!r}, so they have no place in time"
            )
    if any(pa.types.is_string(column.type) or pa.types.is_large_string(column.type) for column in columns):
        times = _read_times(split, chunks, columns)
    else:
        times = [
            _numbers(column.cast(pa.timestamp("us")).cast(pa.int64()) if pa.types.is_temporal(column.type) else column)
            for column in columns
        ]
    every = np.sort(np.concatenate(times), kind="stable")
    edges = np.cumsum(sizes(len(every), list(split.fractions.values())))[:-1]
    cuts = [every[edge] for edge in edges]
    for each in times:
        # Equal times stay together, in the later split.
        yield np.sum([each >= cut for cut in cuts], axis=0)


def _read_times(split: Split, chunks: Sequence[Chunk], columns: Sequence[pa.ChunkedArray]) -> list[Array]:
    """Return the times that texts stand for; all are of one kind, since texts of several would not be in order."""

    def stamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
        if split.time_format:
            return pc.strptime(column, format=split.time_format, unit="us").cast(pa.int64())
        return column.cast(pa.timestamp("us")).cast(pa.int64())

    def zoned(column: pa.ChunkedArray) -> pa.ChunkedArray:
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())

    kinds = [stamps] if split.time_format else [stamps, zoned, *(_as(kind) for kind in (pa.int64(), pa.float64()))]
    for read in kinds:
        with contextlib.suppress(pa.ArrowInvalid):
            return [_numbers(read(column)) for column in columns]
    for chunk, column in zip(chunks, columns, strict=True):
        for row, text in enumerate(column.to_pylist()):
            if not _readable(text, kinds[:1] if split.time_format else kinds[:2]):
                place = f"{chunk.file}, line {chunk.line_of(row)}"
                kind = f"a date of the format {split.time_format!r}" if split.time_format else "a date as in 2024-05-31"
                remedy = "correct it" if split.time_format else "tell how to read it, as in time_format='%m/%d/%Y'"
                raise DataError(f"time={split.time!r}: {place}: {text!r} is not {kind}; {remedy}")
    raise DataError(
        f"time={split.time!r}: some rows have a time zone and others have none, so they have no order; give "
        "all of them one"
    )


def _as(kind: pa.DataType) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    return lambda column: column.cast(kind)


def _readable(text: str, kinds: Sequence[Callable[[pa.ChunkedArray], pa.ChunkedArray]]) -> bool:
    """Whether a text can be read as one of several kinds."""
    for read in kinds:
        with contextlib.suppress(pa.ArrowInvalid):
            read(pa.chunked_array([[text]]))
            return True
    return False


def _numbers(column: pa.ChunkedArray) -> Array:
    return np.asarray(column.combine_chunks())


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
