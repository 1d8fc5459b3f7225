"""Statistics fold by fold: the training rows once more for each fold, with statistics of the rows of all other folds.

Partition n belongs to fold n modulo the number of folds. Each partition is fitted by itself, in the order of its rows,
and the statistics of a fold are those of the partitions of all others, merged in their order: the very statistics of a
preparation of these partitions alone. Types of columns are those of all rows. The prepared rows of a fold are a data
set of their own, in the folder ``fold_name`` of the one of all rows, with the same rows in the same partitions.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data import manifest
from hopfleet.data.columns import Array, Column
from hopfleet.data.convert import number_array
from hopfleet.data.etl.chunks import Chunk, ColumnTypes, Failure
from hopfleet.data.etl.dealing import Deal
from hopfleet.data.etl.objects import Unreachable
from hopfleet.data.etl.pool import Pool
from hopfleet.data.etl.progress import ProgressLine
from hopfleet.data.etl.recipe import SPLIT, Prepared, Recipe
from hopfleet.data.etl.statistics import merged
from hopfleet.data.etl.work import Made, PartitionRows, applied, first_odd, fitted, read_rows
from hopfleet.data.etl.workspace import Workspace
from hopfleet.data.files import write_cells
from hopfleet.data.manifest import Manifest, PartitionFile, fold_name, partition_name
from hopfleet.data.schema import Schema
from hopfleet.domain import bounds
from hopfleet.errors import DataError
from hopfleet.support.files import link_or_copy, make_folder, sync, write_atomically, write_text

LEAVE_OUT = "leave such rows out, or use fewer folds"


def check_folds(folds: Any, partitions: int, backend: str) -> int:
    """Return the number of folds, 0 for none. Raise DataError for a number that is not possible."""
    if folds == 0:
        return 0
    found = bounds.integer("folds", folds, least=2)
    if found > partitions:
        raise DataError(f"folds={found}: needs at least {found} partitions, not {partitions}; use more, or fewer folds")
    if backend == "ray":
        raise DataError(
            f"folds={found}: clusters do not prepare folds; use backend='local', on a folder that nodes see"
        )
    return found


@dataclass(frozen=True)
class Rows:
    """The rows of one split, chunk by chunk: raw, prepared with the statistics of all, and dealt to partitions."""

    chunks: Sequence[Chunk]
    mades: Sequence[Made]
    deals: Sequence[Deal]
    split: int
    name: str

    def raw(self, number: int) -> Array:
        """Return the places in a chunk of the raw rows that its prepared rows were made of."""
        made = self.mades[number]
        start, stop = made.bounds[self.split : self.split + 2]
        return made.origins()[start:stop] if start < stop else np.empty(0, np.int64)


class Folds:
    """The preparation of folds: statistics of each partition, and the rows of the training split once for each fold."""

    def __init__(self, space: Workspace, pool: Pool, progress: ProgressLine, count: int) -> None:
        self._space = space
        self._pool = pool
        self._progress = progress
        self._count = count

    def add(self, prepared: Prepared, rows: Rows, folder: Path, whole: Manifest) -> None:
        """Write the data sets of all folds into the folder of the split, and name them in its manifest."""
        parts = self._fit(prepared, rows, len(whole.partitions))
        made = []
        for fold in range(self._count):
            others = [part for number, part in enumerate(parts) if number % self._count != fold]
            statistics = functools.reduce(merged, itertools.chain.from_iterable(others))
            own = Prepared(prepared.recipe, prepared.layout, statistics)
            _check_labels(own, prepared, fold)
            place = folder / fold_name(fold)
            make_folder(place)
            if own.fingerprint == prepared.fingerprint:  # such as those of images, which are names of classes
                found = whole
                for part in whole.partitions:
                    link_or_copy(folder / part.name, place / part.name)
            else:
                found = self._made(own, rows, fold, place, whole)
            write_text(place / manifest.FILE, found.to_json(), durable=True)
            own.save(place)
            sync(place)
            made.append(found.fingerprint)
        write_text(folder / manifest.FILE, dataclasses.replace(whole, folds=tuple(made)).to_json(), durable=True)

    def _fit(self, prepared: Prepared, rows: Rows, partitions: int) -> list[list[Mapping[str, Any]]]:
        """Return the statistics of each partition, batch by batch."""
        self._progress.stage("fitting folds", partitions)
        tasks = ((rows, prepared.recipe, prepared.layout, index) for index in range(partitions))
        return self._space.do(
            self._pool, "fold-fit", fit_partition, tasks, lambda *_: self._progress.advance(0),
            threads=prepared.recipe.threads,
        )  # fmt: skip

    def _made(self, own: Prepared, rows: Rows, fold: int, folder: Path, whole: Manifest) -> Manifest:
        """Write the partitions of a fold, and return their manifest."""
        self._progress.stage(f"fold {fold + 1} of {self._count}", len(rows.chunks))
        kind = f"fold-{fold}"
        tasks = (
            (rows, number, own, fold, self._space.file(kind, number, ".arrow")) for number in range(len(rows.chunks))
        )
        mades: list[Made] = self._space.do(
            self._pool, kind, make_fold, tasks, lambda _, made: self._progress.advance(made.rows),
            threads=own.recipe.threads,
        )  # fmt: skip
        _check_columns([made.columns for made in mades if made.rows], whole.columns, fold)
        shares = [
            PartitionRows(0, index, rows.deals, folder / partition_name(index))
            for index in range(len(whole.partitions))
        ]
        function, shared = self._pool.gathering((), mades, shares, whole.columns)
        files: list[PartitionFile] = self._space.do(
            self._pool, f"{kind}-parts", function, shared, lambda number, _: sync(shares[number].path)
        )
        return Manifest(whole.columns, tuple(files), whole.seed)


def fit_partition(rows: Rows, recipe: Recipe, layout: ColumnTypes, index: int) -> list[Mapping[str, Any]]:
    """Return the statistics of the raw rows of a partition, in the order of its prepared rows."""
    tables = []
    for number, chunk in enumerate(rows.chunks):
        if len(every := rows.raw(number)):
            if not np.diff(every).all():
                raise DataError(f"{chunk.file}: the recipe makes several rows of one, which may be in several folds")
            if len(places := every[rows.deals[number].rows(index)]):
                tables.append(layout.cast(chunk.read(list(layout.types)).take(number_array(places))))
    return fitted(pa.concat_tables(tables), recipe, layout, f"the rows of partition {index}")


def make_fold(rows: Rows, number: int, own: Prepared, fold: int, path: Path) -> Made:
    """Prepare the rows of a chunk that were good with the statistics of all, with those of a fold."""
    places, chunk = rows.raw(number), rows.chunks[number]
    if not len(places):
        return Made(path, {}, (0, 0), ())
    table = read_rows(chunk, own.layout).take(number_array(places))
    if own.recipe.by_split and rows.name:
        table = table.append_column(SPLIT, pa.array([rows.name] * table.num_rows, pa.string()))
    try:
        cells, origins = applied(own, table)
    except Unreachable:
        raise
    except Exception as error:
        odd, words = first_odd(own, table, error)
        where = Failure(chunk.file, chunk.line_of(int(places[odd])), "").place
        raise DataError(f"{where}: with the statistics of all folds but {fold}: {words}; {LEAVE_OUT}") from error
    if not np.array_equal(origins, np.arange(len(places))):
        raise DataError(
            f"{chunk.file}: with the statistics of all folds but {fold}, the recipe makes other rows; leave out the "
            "same rows whatever the statistics are"
        )
    columns = {name: Column(name, column.kind, column.dtype, column.shape) for name, column in cells.items()}
    write_atomically(path, lambda beside: write_cells(beside, columns, cells), durable=False)
    return Made(path, columns, (0, len(places)), ())


def _check_labels(own: Prepared, whole: Prepared, fold: int) -> None:
    """Raise DataError if the rows outside of a fold make another kind of label, or lack a class."""
    outcomes = whole.outcomes
    for name, outcome in own.outcomes.items():
        if (outcome.names, outcome.many, outcome.log) != (
            outcomes[name].names,
            outcomes[name].many,
            outcomes[name].log,
        ):
            lost = [str(each) for each in outcomes[name].names if outcome.names and each not in outcome.names]
            only = f"; only fold {fold} has {lost[0]!r}" if lost else ""
            raise DataError(
                f"column {name!r}: the labels of all rows are {outcomes[name].kind}, and outside of fold {fold} "
                f"{outcome.kind}{only}; {LEAVE_OUT}, or say what they are with columns={{{name!r}: ...}}"
            )


def _check_columns(found: Sequence[Mapping[str, Column]], wanted: Mapping[str, Column], fold: int) -> None:
    """Raise DataError if the rows of a fold are not of the columns that all rows have."""
    schema = Schema()
    schema.extend(wanted, 1)
    for columns in found:
        schema.extend(columns, 1)
        for name, column in columns.items():
            if schema.columns[name] != wanted[name]:
                raise DataError(
                    f"column {name!r}: is {wanted[name]} with the statistics of all rows, and {column} with those of "
                    f"all folds but {fold}, as if a category of one_hot=True is in fold {fold} alone; give categories "
                    f"an at_most=, or {LEAVE_OUT}"
                )
