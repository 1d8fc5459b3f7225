"""From CSV to shuffled partitions: numbers, categories and dates of flights, against pipelines written by hand.

Each pipeline reads the same file, scales eight numbers, encodes four categories by frequency, takes a date apart, and
writes eight shuffled Arrow files. The pipelines take turns; the best time of each counts.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

import hopfleet as hop
from benchmarks.row import Row, milliseconds

NUMBERS = ("month", "day", "sched_dep_time", "dep_delay", "air_time", "distance", "hour", "minute")
CATEGORIES = ("carrier", "origin", "dest", "tailnum")
DATE = "time_hour"
PARTITIONS, WORKERS = 8, 2
ROWS = 1_000_000
BAR = 0.8


def measure(quick: bool) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="etl-"))
    try:
        rows = 2_000 if quick else ROWS
        source = _write(folder / "flights.csv", rows)
        pipelines: dict[str, Callable[[Path, Path], None]] = {"ours": _ours, "pyarrow": _pyarrow}
        if importlib.util.find_spec("polars"):
            pipelines["polars"] = _polars
        times: dict[str, list[float]] = {name: [] for name in pipelines}
        for number in range(1 if quick else 3):
            for name, run in pipelines.items():
                target = folder / f"{name}-{number}"
                start = time.perf_counter()
                run(source, target)
                times[name].append(time.perf_counter() - start)
                shutil.rmtree(target)
        best = {name: min(some) for name, some in times.items()}
        size = source.stat().st_size / 1e6
        what = f"{rows:,} rows, {size:.0f} MB of CSV to {PARTITIONS} partitions, {WORKERS} workers"
        return [
            Row(
                "etl",
                what,
                milliseconds(best["ours"]),
                f"{milliseconds(best[name])}: {name} by hand",
                best[name] / best["ours"],
                f">= {BAR} of its speed",
                best[name] >= BAR * best["ours"],
            )
            for name in pipelines
            if name != "ours"
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, rows: int) -> Path:
    """Write a table like that of the flights from New York: some numbers are missing."""
    random = np.random.default_rng(0)

    def names(count: int, letters: int) -> Any:
        known = ["".join(word) for word in random.choice(list("ABCDEFGHKLMNPQRS"), (count, letters))]
        return pa.array(random.choice(known, rows))

    most = (12, 28, 2359, 300, 600, 5000, 23, 59)
    columns: dict[str, Any] = {}
    for name, bound in zip(NUMBERS, most, strict=True):
        missing = random.random(rows) < 0.02 if name in ("dep_delay", "air_time") else np.zeros(rows, bool)
        columns[name] = pa.array(random.integers(0, bound, rows), mask=missing)
    for name, (count, letters) in zip(CATEGORIES, ((16, 2), (3, 3), (105, 3), (4000, 6)), strict=True):
        columns[name] = names(count, letters)
    hours = pa.array(random.integers(15_706 * 24, 16_071 * 24, rows) * 3600)
    columns[DATE] = pc.strftime(hours.cast(pa.timestamp("s")), format="%Y-%m-%d %H:%M:%S")
    for number in range(6):
        columns[f"unused{number}"] = pa.array(random.integers(0, 10_000, rows))
    csv.write_csv(pa.table(columns), path)
    return path


def _ours(source: Path, target: Path) -> None:
    steps: dict[str, Any] = {name: hop.Number(missing="mean") for name in NUMBERS}
    steps |= {name: hop.Category() for name in CATEGORIES} | {DATE: hop.Date()}
    hop.prepare(source, target, hop.Tabular(steps), partitions=PARTITIONS, workers=WORKERS, quiet=True)


def _pyarrow(source: Path, target: Path) -> None:
    table = csv.read_csv(source, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    made: dict[str, Any] = {}
    for name in NUMBERS:
        values = table.column(name).cast(pa.float64())
        mean, deviation = pc.mean(values), pc.stddev(values)
        made[name] = pc.divide(pc.subtract(pc.fill_null(values, mean), mean), deviation).cast(pa.float32())
    for name in CATEGORIES:
        counts = pc.value_counts(table.column(name).drop_null())
        order = pc.array_sort_indices(counts.field("counts"), order="descending")
        codes = pc.index_in(table.column(name), value_set=counts.field("values").take(order))
        made[name] = pc.add(pc.fill_null(codes, -1).cast(pa.int64()), 1)
    for part in ("year", "month", "day", "day_of_week", "hour"):
        made[f"date_{part}"] = getattr(pc, part)(table.column(DATE)).cast(pa.float32())
    whole = pa.table(made)
    shuffled = np.random.default_rng(0).permutation(whole.num_rows)
    target.mkdir()
    for number in range(PARTITIONS):
        some = whole.take(pa.array(np.sort(shuffled[number::PARTITIONS])))
        with pa.OSFile(str(target / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, some.schema) as writer:
            writer.write_table(some)


def _polars(source: Path, target: Path) -> None:
    import polars as pl

    table = pl.read_csv(source, try_parse_dates=True)
    columns = []
    for name in NUMBERS:
        column = pl.col(name)
        columns.append(((column.fill_null(column.mean()) - column.mean()) / column.std()).cast(pl.Float32))
    for name in CATEGORIES:
        known = table[name].drop_nulls().value_counts(sort=True)[name]
        columns.append(pl.col(name).replace_strict(known, range(1, len(known) + 1), default=0, return_dtype=pl.Int64))
    date = pl.col(DATE).dt
    parts = {"year": date.year(), "month": date.month(), "day": date.day(), "weekday": date.weekday(), "h": date.hour()}
    columns += [part.cast(pl.Float32).alias(f"date_{name}") for name, part in parts.items()]
    whole = table.select(columns)
    homes = pl.Series(np.random.default_rng(0).permutation(len(whole)) % PARTITIONS)
    target.mkdir()
    for number in range(PARTITIONS):
        whole.filter(homes == number).write_ipc(target / f"{number}.arrow")
