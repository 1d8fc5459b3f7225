"""Preparing data: raw files are parsed, fitted, transformed and dealt to partitions, by several workers.

The stages are: read (pieces of text become chunks of typed columns), fit (statistics of training rows), apply (the
recipe), gather (one partition each). Chunks depend on the files alone, and results are put together in the order of the
rows, so the data set is the same, byte for byte, for any number of workers. Without a split, it is the data set that
``hop.partition`` makes of the same rows. Where threads share the work, the rows of a small source stay in memory
between stages. Without a split, threads fit as they read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import pyarrow as pa

from hopfleet.data import manifest
from hopfleet.data.columns import Array, NoRows
from hopfleet.data.dataset import Dataset
from hopfleet.data.etl.blocks import BLOCK_BYTES
from hopfleet.data.etl.chunks import Chunk, ColumnTypes, Failure, divided, lacking, layout_of, save_table
from hopfleet.data.etl.dealing import Deal, Dealing
from hopfleet.data.etl.images import Images, image_tables
from hopfleet.data.etl.memory import Memory
from hopfleet.data.etl.opening import Opened, as_recipe, check_columns
from hopfleet.data.etl.pool import POOLS, Pool, sensible_workers
from hopfleet.data.etl.progress import ProgressLine
from hopfleet.data.etl.reading import cut_pieces, expected_pieces, parse, stored_chunks
from hopfleet.data.etl.recipe import (
    Prepared,
    Recipe,
    copy_recipe,
    fingerprint,
    has_statistics,
    stored_recipe,
)
from hopfleet.data.etl.splitting import Split, as_split, assign, leaks, training
from hopfleet.data.etl.statistics import merged
from hopfleet.data.etl.target import PREPARED, find_existing, open_prepared, put_in_place
from hopfleet.data.etl.work import Made, PartitionRows, TooManyFailures, fit_chunk, fitted_early, make_chunk
from hopfleet.data.etl.workspace import Workspace, workspace_for
from hopfleet.data.folders import open_folder
from hopfleet.data.manifest import Manifest, PartitionFile, partition_name
from hopfleet.data.schema import Schema
from hopfleet.domain import bounds
from hopfleet.domain.choices import Auto
from hopfleet.domain.signatures import checked
from hopfleet.errors import DataError, UsageError
from hopfleet.phrases import did_you_mean, shown
from hopfleet.safe_text import masked_parts
from hopfleet.support.files import json_text, make_folder, sync, write_text

FAILED = "failed.jsonl"
"""The rows that failed in a preparation."""

OnError = Literal["raise", "skip", "keep"]
Backend = Literal["local", "inline", "ray"]
ON_ERROR, BACKENDS = get_args(OnError), get_args(Backend)


@overload
def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    recipe: Any = None,
    *,
    partitions: int = 8,
    seed: int = 0,
    workers: int | Auto = "auto",
    backend: Backend = "local",
    split: None = None,
    on_error: OnError = "raise",
    error_limit: int = 1000,
    overwrite: bool = False,
    quiet: bool = False,
) -> Dataset: ...
@overload
def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    recipe: Any = None,
    *,
    partitions: int = 8,
    seed: int = 0,
    workers: int | Auto = "auto",
    backend: Backend = "local",
    split: Mapping[str, float] | Split,
    on_error: OnError = "raise",
    error_limit: int = 1000,
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Dataset]: ...
@checked
def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    recipe: Any = None,
    *,
    partitions: int = 8,
    seed: int = 0,
    workers: int | str = "auto",
    backend: str = "local",
    split: Mapping[str, float] | Split | None = None,
    on_error: str = "raise",
    error_limit: int = 1000,
    overwrite: bool = False,
    quiet: bool = False,
) -> Any:
    """Prepare raw data for training: read ``source``, apply ``recipe``, and write a data set to ``folder``.

    ``source`` is the path, glob or fsspec URL of CSV, TSV, JSON Lines, Parquet, Arrow or text files, WebDataset tars, a
    folder of images or of a saved Hugging Face data set; ``hop.Files`` or ``hop.Query``; a data set; or a table in
    memory. ``recipe`` is a function of a row, a function whose parameter is called ``batch``, or a ``hop.Recipe`` such
    as ``hop.Tabular``. The recipe and its statistics travel with the data set: see ``hop.load_recipe``.

    With ``split``, such as ``{"train": 0.8, "valid": 0.1, "test": 0.1}`` or ``hop.Split(...)``, return a dict of data
    sets, in folders of these names. Statistics are those of the first split alone, and a warning counts the rows that
    occur in several splits.

    ``workers`` threads or processes share the work, or, with ``backend="ray"``, that many tasks on the nodes of a Ray
    cluster; the data set does not depend on their number, and "inline" is for a single thread. A row that fails raises
    an error that names file and line; with ``on_error="skip"`` it is left out, and with "keep" also written to
    failed.jsonl with its file, line and traceback, up to ``error_limit`` rows. A call that is killed goes on where it
    was when it is made again. If ``folder`` holds the result of the same call, it is returned at once; if it holds any
    other, DataChanged says how they differ, and ``overwrite=True`` replaces it.
    """
    if on_error not in ON_ERROR:
        raise DataError(
            f"on_error={on_error!r}: unknown; {did_you_mean(on_error, ON_ERROR)}there are {', '.join(ON_ERROR)}"
        )
    if not 1 <= partitions <= bounds.MOST:
        raise DataError(
            f"partitions={shown(partitions)}: must be an integer of at least 1, and at most {bounds.MOST:,}"
        )
    if error_limit < 0:
        raise DataError(f"error_limit={error_limit!r}: must be a number of rows, at least 0")
    if backend not in BACKENDS:
        near = did_you_mean(backend, BACKENDS)
        raise DataError(f"backend={backend!r}: unknown; {near}there are {', '.join(BACKENDS)}")
    opened, divide, target = Opened(source), as_split(split), open_folder(folder)
    if recipe is None and opened.found and opened.found[0].format == "images":
        recipe = Images()
    made = as_recipe(recipe)
    if opened.dataset is not None:
        _check_prepared(opened.dataset, recipe, divide)
    job = {
        "version": 1,
        "source": masked_parts(opened.identity),
        "recipe": fingerprint(made),
        "partitions": operator.index(partitions),
        "seed": operator.index(seed),
        "split": None if divide is None else divide.describe(),
        # Where "train" is not the first split, statistics were those of another one before.
        **({"fitted": "train"} if divide is not None and training(list(divide.fractions)) else {}),
        "on_error": on_error,
    }
    if (existing := find_existing(target, job, overwrite)) is not None:
        return existing
    count = 1 if backend == "inline" else sensible_workers(workers, opened.size)
    with (
        workspace_for(target, {**job, "block": BLOCK_BYTES}) as space,
        ProgressLine(quiet) as progress,
        contextlib.ExitStack() as stack,
    ):
        asked = None if workers == "auto" else count
        pool: Pool = POOLS[backend](asked, target, space.path) if backend in POOLS else Pool(count)
        opened.found = pool.shared(opened.found)
        stack.enter_context(pool)
        limit = 0 if on_error == "raise" else error_limit
        memory = pool.memory(opened.size) if made.threads else None
        preparation = _Preparation(space, pool, progress, made, divide, job, limit, memory)
        try:
            built = preparation.run(opened)
        except TooManyFailures as error:
            raise DataError(error.explained(limit)) from None
        put_in_place(built, target, overwrite)
    return open_prepared(target)


def _check_prepared(data: Dataset, recipe: Any, divide: Split | None) -> None:
    """Raise DataError for what cannot be done to the rows of a data set."""
    if recipe is not None:
        raise DataError(f"recipe={shown(recipe)}: {data.url} is a data set, prepared already; give raw files or tables")
    if divide is not None and has_statistics(stored_recipe(data)):
        raise DataError(
            f"{data.url}: was prepared with statistics of all its rows, which would leak from each split into the "
            "others; split raw rows: hop.prepare(source, folder, recipe, split=...)"
        )


@checked
def split(
    source: Any,
    folder: str | os.PathLike[str] | None = None,
    fractions: Mapping[str, float] | None = None,
    *,
    stratify: str = "",
    group: str = "",
    time: str = "",
    column: str = "",
    time_format: str = "",
    partitions: int = 8,
    seed: int = 0,
    overwrite: bool = False,
    quiet: bool = False,
) -> dict[str, Dataset]:
    """Divide a data set, or any source of ``hop.prepare``, into data sets in folders named after ``fractions``.

    By default, rows are dealt at random. The values of the column ``stratify`` get the same shares in every split; rows
    with equal values of ``group`` stay together; by ``time``, earlier rows come into earlier splits, see ``hop.Split``;
    and ``column`` holds the names of the splits itself. Rows that occur in several splits are counted in a warning.
    """
    usage = "e.g. data = hop.split(source, 'data', {'train': 0.8, 'valid': 0.2}), then train=data['train']"
    if not isinstance(folder, str | os.PathLike):
        raise UsageError(f"folder={shown(folder)}: must be the folder for the data sets of all splits, {usage}")
    if not fractions and not column:
        raise UsageError(f"fractions={shown(fractions)}: must be the share of the rows for each split, {usage}")
    divide = Split(fractions or {}, stratify, group, time, column, time_format)
    options: dict[str, Any] = {"partitions": partitions, "seed": seed, "overwrite": overwrite, "quiet": quiet}
    made: dict[str, Dataset] = prepare(source, folder, split=divide, **options)
    return made


class _Preparation:
    """One preparation: its stages in order."""

    def __init__(
        self, space: Workspace, pool: Pool, progress: ProgressLine, recipe: Recipe, split: Split | None,
        job: Mapping[str, Any], limit: int, memory: Memory | None,
    ) -> None:  # fmt: skip
        self._space = space
        self._pool = pool
        self._progress = progress
        self._recipe = recipe
        self._split = split
        self._job = job
        self._limit = limit
        self._memory = memory

    def run(self, opened: Opened) -> Path:
        """Return the folder with the finished data sets."""
        if not self._recipe.threads:
            self._pool.start()
        wanted = self._wanted()
        chunks = [chunk for chunk in self._read(opened, wanted) if chunk.rows or chunk.failures]
        if not self._recipe.threads:
            chunks = divided(chunks, self._pool.nodes)
        if not sum(chunk.rows for chunk in chunks):
            raise NoRows("the source has no rows; it must have at least one per partition")
        layout = (
            layout_of(chunks) if opened.dataset is None else ColumnTypes({n: pa.null() for n in opened.dataset.columns})
        )
        check_columns(self._recipe, opened, layout)
        names, paths = [""], [Path() for _ in chunks]
        if self._split is not None:
            make_folder(self._space.path / "splits")
            paths = [self._space.file("splits", number, ".npy") for number in range(len(chunks))]
            names = assign(self._split, self._pool.at_hand(chunks, self._split.by), layout, self._job["seed"], paths)
        layout = layout.only(self._recipe.inputs)
        prepared = Prepared(self._recipe, layout, self._fit(chunks, layout, paths, training(names)))
        place = self._pool.workplace(self._space.path) / "made"
        makes = [
            (chunk, prepared, path, names, self._limit, place / f"{number:06d}.arrow")
            for number, (chunk, path) in enumerate(zip(chunks, paths, strict=True))
        ]
        dealing = Dealing(self._space.path / "deals", len(names), self._job["partitions"], self._job["seed"])
        mades = self._make(makes, [chunk.home for chunk in chunks], dealing)
        built = self._gather(makes, mades, names, dealing.deals)
        self._finish(built, names, mades, opened.dataset or prepared)
        return built

    def _wanted(self) -> frozenset[str] | None:
        """Return the columns that the recipe and the split need; None for all."""
        by = [] if self._split is None else self._split.by
        return None if self._recipe.inputs is None else frozenset([*self._recipe.inputs, *by])

    def _read(self, opened: Opened, wanted: frozenset[str] | None) -> list[Chunk]:
        if opened.dataset is not None:
            data = opened.dataset
            schema = pa.schema([(name, pa.null()) for name in data.columns])
            return [
                Chunk("dataset", data.url, part, rows, schema, (), data.url, 1, dataset=data, home=part)
                for part, rows in enumerate(data.partition_rows)
            ]
        if opened.files is None:
            return [*self._saved(opened.tables)]
        if opened.found[0].format == "images":
            return [*self._saved(image_tables(opened.files, opened.found))]
        if opened.found[0].format in ("parquet", "arrow"):
            stored = (chunk for file in opened.found for chunk in stored_chunks(file))
            return [dataclasses.replace(chunk, home=number) for number, chunk in enumerate(stored)]
        pieces = cut_pieces(opened.files, opened.found, wanted, frozenset(self._recipe.texts))
        self._progress.stage("reading", expected_pieces(opened.found))
        raw = self._pool.workplace(self._space.path) / "raw"
        threads = opened.found[0].format in ("csv", "tsv", "json")
        early = self._recipe.threads and self._recipe.fits and self._split is None
        rest = (self._memory if threads else None, self._recipe if early else None)
        tasks = ((piece, raw, f"{number:06d}", *rest) for number, piece in enumerate(pieces))
        parsed = self._space.do(
            self._pool, "read", parse, tasks, self._count_read, threads=threads,
            lasting=lambda chunks: all(chunk.held is None for chunk in chunks),
        )  # fmt: skip
        return [chunk for each in parsed for chunk in each]

    def _saved(self, tables: Sequence[pa.Table] | Iterator[pa.Table]) -> Iterator[Chunk]:
        make_folder(self._space.path / "raw")
        row = 1
        for number, table in enumerate(tables):
            path = self._space.file("raw", number, ".arrow")
            held = None if self._memory is None else self._memory.hold(table, table.nbytes)
            if held is None:
                save_table(table, path)
            about = (table.num_rows, table.schema, lacking(table), "the source", row)
            yield Chunk("arrow", str(path), 0, *about, table=self._pool.carried(table), home=number, held=held)
            row += table.num_rows

    def _count_read(self, _: int, chunks: list[Chunk]) -> None:
        self._progress.advance(sum(chunk.rows for chunk in chunks), sum(len(chunk.failures) for chunk in chunks))

    def _fit(
        self, chunks: Sequence[Chunk], layout: ColumnTypes, splits: Sequence[Path], train: int
    ) -> Mapping[str, Any]:
        if not self._recipe.fits:
            return {}
        parts = [fitted_early(chunk, self._recipe, layout) for chunk in chunks]
        if any(part is None for part in parts):
            self._progress.stage("fitting", len(chunks))
            places = zip(chunks, splits, strict=True)
            tasks = ((chunk, self._recipe, layout, _load(path), train) for chunk, path in places)
            parts = self._space.do(
                self._pool, "fit", fit_chunk, tasks, lambda number, _: self._progress.advance(chunks[number].rows),
                threads=self._recipe.threads, homes=[chunk.home for chunk in chunks],
            )  # fmt: skip
        each = [statistics for part in parts for statistics in part]
        return functools.reduce(merged, each) if each else {}

    def _make(self, makes: Sequence[tuple[Any, ...]], homes: Sequence[int], dealing: Dealing) -> list[Made]:
        self._progress.stage("applying", len(makes))
        failures: list[Failure] = []

        def done(number: int, made: Made) -> None:
            failures.extend(made.failures)
            if len(failures) > self._limit:
                raise TooManyFailures(failures)
            self._progress.advance(made.rows, len(made.failures))
            dealing.add(number, made.bounds)

        tasks = ((chunk, prepared, _load(path), *rest, self._memory) for chunk, prepared, path, *rest in makes)
        return self._space.do(
            self._pool, "made", make_chunk, tasks, done, threads=self._recipe.threads, homes=homes,
            lasting=lambda made: made.held is None,
        )  # fmt: skip

    def _gather(
        self, makes: Sequence[tuple[Any, ...]], mades: Sequence[Made], names: Sequence[str],
        deals: Sequence[Sequence[Deal]],
    ) -> Path:  # fmt: skip
        schema = Schema()
        for made in mades:
            if made.rows:
                schema.extend(made.columns, made.rows)
        built, partitions, seed = self._space.path / "built", self._job["partitions"], self._job["seed"]
        shares: list[PartitionRows] = []
        for split, name in enumerate(names):
            rows = sum(made.bounds[split + 1] - made.bounds[split] for made in mades)
            if rows < partitions:
                which = f" of split {name!r}" if name else ""
                text = f"partitions={partitions}: must be at most the number of rows{which}, {rows}"
                failures = [failure for made in mades for failure in made.failures]
                if failures:
                    text += f"; {len(failures):,} rows failed, the first: {failures[0].place}: {failures[0].error}"
                raise DataError(text)
            make_folder(built / name)
            paths = [built / name / partition_name(index) for index in range(partitions)]
            shares += [PartitionRows(split, index, deals[split], path) for index, path in enumerate(paths)]
        self._progress.stage("gathering", len(shares))
        function, tasks = self._pool.gathering(makes, mades, shares, schema.columns)
        with ThreadPoolExecutor(1) as beside:  # a partition becomes durable while others are gathered
            waiting: list[Future[None]] = []

            def done(number: int, part: PartitionFile) -> None:
                if shares[number].path.exists():  # nodes of a cluster may have uploaded it
                    waiting.append(beside.submit(sync, shares[number].path))
                self._progress.advance(part.rows)

            homes = [share.index for share in shares]
            files: list[PartitionFile] = self._space.do(self._pool, "parts", function, tasks, done, homes=homes)
            for each in waiting:
                each.result()
        for split, name in enumerate(names):
            own = tuple(files[split * partitions : (split + 1) * partitions])
            write_text(built / name / manifest.FILE, Manifest(schema.columns, own, seed).to_json(), durable=True)
        return built

    def _finish(self, built: Path, names: Sequence[str], mades: Sequence[Made], prepared: Prepared | Dataset) -> None:
        """Add the recipe, the failed rows and the description, and warn of rows that leak."""
        failures = [failure for made in mades for failure in made.failures]
        found: dict[str, int] = {}
        if self._split is not None:
            found = leaks(
                names,
                {split: np.concatenate([made.hashes_of(split) for made in mades]) for split in range(len(names))},
            )
        if found:
            listed = ", ".join(f"{count:,} rows of {name}" for name, count in found.items())
            warnings.warn(
                f"{listed} occur in earlier splits too, so metrics on them flatter; drop duplicates, or keep equal "
                "rows together with hop.Split(..., group=column)",
                stacklevel=4,
            )
        for name in names:
            if isinstance(prepared, Prepared):
                prepared.save(built / name)
            else:
                copy_recipe(prepared, built / name)
        if self._job["on_error"] == "keep" and failures:
            text = "".join(f"{failure.to_json()}\n" for failure in failures)
            write_text(built / FAILED, text, durable=True)
        content = {
            "format": "hopfleet-prepared",
            **self._job,
            "splits": None if self._split is None else list(names),
            "rows": sum(made.rows for made in mades),
            "failed": len(failures),
            "duplicates": found,
            "fingerprint": prepared.fingerprint,
        }
        write_text(built / PREPARED, json_text(dict(sorted(content.items()))), durable=True)
        sync(built)


def _load(splits: Path) -> Array | None:
    """Return the split of each row of a chunk; None if there are no splits."""
    return np.load(splits) if splits.name else None
