"""Preparing data: raw files are parsed, fitted, transformed and dealt to partitions, by several workers.

The stages are: read (pieces of text become chunks of typed columns), fit (statistics of training rows), apply (the
recipe), gather (one partition each). Chunks depend on the files alone, and results are put together in the order of the
rows, so the data set is the same, byte for byte, for any number of workers. Without a split, it is the data set that
``hop.partition`` makes of the same rows. Where threads share the work, the rows of a small source stay in memory
between stages. Without a split, threads fit as they read.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data import manifest
from hopfleet.data.columns import Array, NoRows
from hopfleet.data.dataset import Dataset
from hopfleet.data.etl.chunks import Chunk, ColumnTypes, Failure, divided, lacking, layout_of, save_table
from hopfleet.data.etl.csv_rows import Expected
from hopfleet.data.etl.dealing import Deal, Dealing
from hopfleet.data.etl.duplicates import leaks
from hopfleet.data.etl.folds import Folds, Rows
from hopfleet.data.etl.images import image_tables
from hopfleet.data.etl.memory import Memory
from hopfleet.data.etl.opening import Opened, check_columns
from hopfleet.data.etl.pool import Pool
from hopfleet.data.etl.progress import ProgressLine
from hopfleet.data.etl.reading import cut_pieces, expected_pieces, parse, stored_chunks
from hopfleet.data.etl.recipe import (
    Prepared,
    Recipe,
    copy_recipe,
)
from hopfleet.data.etl.splitting import Split, assign, training
from hopfleet.data.etl.statistics import merged
from hopfleet.data.etl.target import PREPARED
from hopfleet.data.etl.whole_files import WHOLE, Whole, file_tables, follow
from hopfleet.data.etl.work import Made, PartitionRows, TooManyFailures, fit_chunk, fitted_early, make_chunk
from hopfleet.data.etl.workspace import Workspace
from hopfleet.data.manifest import Manifest, PartitionFile, partition_name
from hopfleet.data.schema import Schema
from hopfleet.errors import DataError
from hopfleet.support.files import json_text, make_folder, sync, write_text

FAILED = "failed.jsonl"
"""The rows that failed in a preparation."""


class Preparation:
    """One preparation: its stages in order."""

    def __init__(
        self, space: Workspace, pool: Pool, progress: ProgressLine, recipe: Recipe, split: Split | None,
        job: Mapping[str, Any], limit: int, memory: Memory | None, expected: Expected, folds: int = 0,
    ) -> None:  # fmt: skip
        self._space = space
        self._pool = pool
        self._progress = progress
        self._recipe = recipe
        self._split = split
        self._job = job
        self._limit = limit
        #: The number of folds with statistics of their own, for which rows are made again from files.
        self._folds = folds if recipe.fits else 0
        self._memory = None if self._folds else memory
        self._expected = expected

    def run(self, opened: Opened) -> Path:
        """Return the folder with the finished data sets."""
        if not self._recipe.threads:
            self._pool.start()
        wanted = self._wanted()
        chunks = [chunk for chunk in self._read(opened, wanted) if chunk.rows or chunk.failures]
        if not self._recipe.threads:
            chunks = divided(chunks, self._pool.nodes)
        if not sum(chunk.rows for chunk in chunks):
            failures = [failure for chunk in chunks for failure in chunk.failures]
            if len(failures) > self._limit:
                raise TooManyFailures(failures)
            if failures:
                failed = f"{failures[0].place}: {failures[0].error}"
                raise NoRows(f"all {len(failures):,} rows of the source failed, the first: {failed}", failures)
            raise NoRows("the source has no rows; it must have at least one per partition")
        layout = (
            layout_of(chunks) if opened.dataset is None else ColumnTypes({n: pa.null() for n in opened.dataset.columns})
        )
        if not layout.types:
            raise DataError("the source has rows without columns; give each row at least one value")
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
        manifests = self._gather(makes, mades, names, dealing.deals)
        built, train = self._space.path / "built", training(names)
        if self._folds:
            rows = Rows(chunks, mades, dealing.deals[train], train, names[train])
            folds = Folds(self._space, self._pool, self._progress, self._folds)
            folds.add(prepared, rows, built / names[train], manifests[train])
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
            return [*self._saved(follow(opened.tables))]
        if opened.found[0].format == "images":
            return [*self._saved(follow(image_tables(opened.files, opened.found)))]
        if opened.found[0].format in WHOLE:
            return [*self._saved(file_tables(opened.found))]
        if opened.found[0].format in ("parquet", "arrow"):
            stored = (chunk for file in opened.found for chunk in stored_chunks(file))
            return [dataclasses.replace(chunk, home=number) for number, chunk in enumerate(stored)]
        pieces = cut_pieces(opened.files, opened.found, dataclasses.replace(self._expected, columns=wanted))
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

    def _saved(self, tables: Iterable[Whole]) -> Iterator[Chunk]:
        make_folder(self._space.path / "raw")
        for number, (table, file, row) in enumerate(tables):
            path = self._space.file("raw", number, ".arrow")
            held = None if self._memory is None else self._memory.hold(table, table.nbytes)
            if held is None:
                save_table(table, path)
            about = (table.num_rows, table.schema, lacking(table), file, row)
            yield Chunk("arrow", str(path), 0, *about, table=self._pool.carried(table), home=number, held=held)

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
        waiting: dict[int, Sequence[Failure]] = {}  # those of chunks behind others that are not done
        failures: list[Failure] = []
        following = 0

        def done(number: int, made: Made) -> None:
            nonlocal following
            waiting[number] = made.failures
            while following in waiting:
                failures.extend(waiting.pop(following))
                following += 1
            if len(failures) > self._limit:
                raise TooManyFailures(failures)
            self._progress.advance(made.rows, len(made.failures))
            if made.hashes is not None:
                made.hashes.spill(self._space.file("hashes", number, ".npy"))
            dealing.add(number, made.bounds)

        make_folder(self._space.path / "hashes")
        how = (self._memory, bool(self._folds))
        tasks = ((chunk, prepared, _load(path), *rest, *how) for chunk, prepared, path, *rest in makes)
        return self._space.do(
            self._pool, "made", make_chunk, tasks, done, threads=self._recipe.threads, homes=homes,
            lasting=lambda made: made.held is None,
        )  # fmt: skip

    def _gather(
        self, makes: Sequence[tuple[Any, ...]], mades: Sequence[Made], names: Sequence[str],
        deals: Sequence[Sequence[Deal]],
    ) -> list[Manifest]:  # fmt: skip
        """Write the partitions of all splits; return the manifests."""
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
                failures = _placed(mades)
                if failures:
                    text += f"; {len(failures):,} rows failed, the first: {failures[0].place}: {failures[0].error}"
                raise DataError(text) if rows else NoRows(text, failures)
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
        manifests = []
        for split, name in enumerate(names):
            own = tuple(files[split * partitions : (split + 1) * partitions])
            manifests.append(Manifest(schema.columns, own, seed))
            write_text(built / name / manifest.FILE, manifests[-1].to_json(), durable=True)
        return manifests

    def _finish(self, built: Path, names: Sequence[str], mades: Sequence[Made], prepared: Prepared | Dataset) -> None:
        """Add the recipe, the failed rows and the description, and warn of rows that leak."""
        failures, found = _placed(mades), dict[str, int]()
        if self._split is not None:
            hashes = [made.hashes for made in mades if made.hashes is not None]
            found = leaks(names, hashes, sum(made.rows for made in mades))
        if found:
            listed = ", ".join(f"{count:,} rows of {name}" for name, count in found.items())
            warnings.warn(
                f"{listed} occur in earlier splits too, so metrics on them flatter; drop duplicates, or keep equal "
                "rows together with hop.Split(..., group=column)",
                stacklevel=6,
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


def _placed(mades: Sequence[Made]) -> list[Failure]:
    """Return the rows that failed, each with the number of good rows of the source before it."""
    failures, before = list[Failure](), 0
    for made in mades:
        failures += [dataclasses.replace(failure, before=failure.before + before) for failure in made.failures]
        before += made.rows
    return failures


def _load(splits: Path) -> Array | None:
    """Return the split of each row of a chunk; None if there are no splits."""
    return np.load(splits) if splits.name else None
