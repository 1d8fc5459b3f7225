"""Predictions for a million rows, against a bare loop; an ensemble of eight; and eight trials with five folds each.

A bare loop reads the same batches, calls the model and writes one Arrow file, in a process of its own with one thread,
as a worker has: OMP_NUM_THREADS says so, because libraries below PyTorch have threads that torch.set_num_threads() does
not count. Two bare loops at once, with half of the rows each, show what a second core is worth. Workers are timed from
their first unit to their last; the whole call, with the start of the workers, is a row of its own. For folds, the data
grows: the memory of all processes and the run folder must grow as for one trial without folds. Memory is that of no
file, and of the files of the data, each the largest sample: pages of libraries also depend on other programs.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import torch

import hopfleet as hop
from benchmarks.processes import anonymous, descend, mapped
from benchmarks.row import Row, megabytes, milliseconds
from benchmarks.runs import scratch
from hopfleet.domain.messages import Message, UnitFinished
from hopfleet.store.journal import Journal

ROWS, COLUMNS, BATCH = 1_000_000, 20, 1024
MEMBERS, FOLDS, TRIALS, PARTITIONS = 8, 5, 8, 5
SAMPLE_SECONDS, FILES_EVERY = 0.01, 20
"""Seconds between samples of memory: less than a block of rows is in use. The pages of files are counted in some."""


class Perceptron(hop.TorchTask):
    def build(self, config: Any) -> Any:
        width = config["width"]
        layers = [torch.nn.Linear(COLUMNS, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def predict(self, model: Any, batch: Any) -> Any:
        with torch.inference_mode():
            return model(torch.as_tensor(batch["x"])).softmax(1)


def measure(quick: bool) -> list[Row]:
    with scratch() as folder, mock.patch.dict(os.environ, {"HOPFLEET_HOME": str(folder / "home")}):
        return [*_predictions(folder, quick), *_folds(folder, quick)]


# -------------------------------------------------------------------------------------------- predictions


def _predictions(folder: Path, quick: bool) -> list[Row]:
    rows = 70_000 if quick else ROWS
    results = _trained(folder, 16 if quick else 384)
    data = _data(folder / "new", rows, 1)
    half = _data(folder / "half", rows // 2, 1)
    loops, pairs, ones, twos = list[float](), list[float](), list[float](), list[float]()
    whole = 0.0
    for number in range(1 if quick else 2):
        loops.append(_bare_loops(data, folder / f"bare-{number}", 1))
        pairs.append(_bare_loops(half, folder / f"pair-{number}", 2))
        ones.append(_worked(results.best.predict, data, folder / f"one-{number}.arrow", 1)[0])
        pace, whole = _worked(results.best.predict, data, folder / f"two-{number}.arrow", 2)
        twos.append(pace)
    loop, pair, one, two = min(loops), min(pairs), min(ones), min(twos)
    some = _data(folder / "some", 70_000, 1)
    read = _rows_read(hop.Ensemble(results, top=MEMBERS, weights="uniform"), some, folder / "ensemble.arrow")
    what = f"{rows:,} rows"
    return [
        Row(
            "predict", f"{what}, one worker", milliseconds(one), f"{milliseconds(loop)}: a bare loop", loop / one,
            ">= 0.9 of its speed", loop / one >= 0.9,
        ),
        Row(
            "predict", f"{what}, two workers", milliseconds(two), f"{milliseconds(one)}: one worker", one / two,
            ">= 1.8 of its speed", one / two >= 1.8,
        ),
        Row(
            "predict", f"{what}, two workers", milliseconds(two), f"{milliseconds(pair)}: two bare loops at once",
            pair / two,
        ),
        Row(
            "predict", f"{what}, two workers, with their start", milliseconds(whole),
            f"{milliseconds(loop)}: a bare loop", loop / whole,
        ),
        Row(
            "predict", f"{some.rows:,} rows, an ensemble of {MEMBERS}", f"{read:,} rows read",
            f"{some.rows:,}: every row once", read / some.rows, "1", read == some.rows,
        ),
    ]  # fmt: skip


def _data(folder: Path, rows: int, partitions: int) -> hop.Dataset:
    random = np.random.default_rng(0)
    columns = {"x": random.random((rows, COLUMNS), np.float32), "y": random.integers(0, 10, rows)}
    return hop.partition(columns, folder, partitions=partitions)


def _trained(folder: Path, width: int) -> hop.Results:
    data = _data(folder / "train", 256, 1)
    return hop.Experiment(
        Perceptron(),
        train=data,
        valid=data,
        space={"width": width, "lr": hop.grid_search([0.01 * number for number in range(1, MEMBERS + 1)])},
        search=hop.Grid(max_epochs=1),
        name="predict",
        backend="inline",
        worker_options=hop.WorkerOptions(device="cpu", threads=1),
    ).fit(quiet=True)


def _bare_loops(data: hop.Dataset, path: Path, count: int) -> float:
    """Return the seconds that some loops take over the same rows, each in a process of its own, all at once."""
    context = multiprocessing.get_context("spawn")
    ready, spans = context.Barrier(count), context.SimpleQueue()
    loops = [
        context.Process(target=_bare_loop, args=(data.url, f"{path}-{number}.arrow", ready, spans))
        for number in range(count)
    ]
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):
        for loop in loops:
            loop.start()
    for loop in loops:
        loop.join()
        assert loop.exitcode == 0, "a bare loop failed"
    found = [spans.get() for _ in loops]
    return float(max(ended for _, ended in found) - min(started for started, _ in found))


def _bare_loop(url: str, path: str, ready: Any, spans: Any) -> None:
    task, data = Perceptron(), hop.open_dataset(url)
    model = hop.load("predict").best.model(task)
    ready.wait(timeout=60)
    start = time.monotonic()
    writer = None
    for batch in data.batches(0, batch_size=BATCH):
        made = task.predict(model, batch).numpy()
        column = pa.FixedSizeListArray.from_arrays(pa.array(made.reshape(-1)), made.shape[1])
        table = pa.RecordBatch.from_pydict({"prediction": column})
        writer = writer or pa.ipc.new_file(path, table.schema)
        writer.write_batch(table)
    assert writer is not None
    writer.close()
    spans.put((start, time.monotonic()))


def _worked(predict: Callable[..., Any], data: hop.Dataset, to: Path, workers: int) -> tuple[float, float]:
    """Return the seconds from the first unit to the end of the last, and those of the whole call."""
    spans: list[tuple[float, float]] = []
    append = Journal.append

    def noted(self: Journal, moment: float, messages: Sequence[Message]) -> None:
        spans.extend((each.started, each.ended) for each in messages if isinstance(each, UnitFinished))
        append(self, moment, messages)

    start = time.perf_counter()
    with mock.patch.object(Journal, "append", noted):
        predict(data, to=to, workers=workers, batch_size=BATCH)
    whole = time.perf_counter() - start
    return max(ended for _, ended in spans) - min(started for started, _ in spans), whole


def _rows_read(ensemble: hop.Ensemble, data: hop.Dataset, to: Path) -> int:
    read, batches = [0], hop.Dataset.batches

    def counted(self: hop.Dataset, partition: int, **options: Any) -> Any:
        for batch in batches(self, partition, **options):
            read[0] += len(batch["x"])
            yield batch

    with mock.patch.object(hop.Dataset, "batches", counted):
        ensemble.predict(data, to=to, backend="inline", workers=1, batch_size=BATCH)
    return read[0]


# -------------------------------------------------------------------------------------------------- folds


def _folds(folder: Path, quick: bool) -> list[Row]:
    # Partitions of both sizes are larger than the blocks that workers read, whose memory does not grow with the data.
    sizes = (20_480, 40_960) if quick else (ROWS // 2, 3 * ROWS // 2)
    sets = [_data(folder / f"folds-{rows}", rows, PARTITIONS) for rows in sizes]
    valid = _data(folder / "valid", 1_000, 1)
    one = [_largest(folder / f"one-{data.rows}", data, valid, 1) for data in sets]
    many = [_largest(folder / f"many-{data.rows}", data, f"kfold({FOLDS})", TRIALS) for data in sets]
    growth = float(sets[1].size - sets[0].size)
    what = f"{FOLDS} folds × {TRIALS} trials, {megabytes(growth)} more data"
    more, less = many[1][0] - many[0][0], one[1][0] - one[0][0]
    disk = many[1][1] - many[0][1]
    return [
        Row(
            "folds", f"{what}: growth of memory", megabytes(more), f"{megabytes(less)}: one trial without folds",
            more / growth, "one copy of the data (ratio <= 1.1)", more <= 1.1 * growth,
        ),
        Row(
            "folds", f"{what}: growth of the run folder", megabytes(disk), f"{megabytes(growth)}: a copy of the data",
            disk / growth, "none (ratio <= 0.02)", disk <= 0.02 * growth,
        ),
    ]  # fmt: skip


def _largest(folder: Path, data: hop.Dataset, valid: Any, trials: int) -> tuple[float, float]:
    """Return the largest memory of all processes of a run, and the bytes of its folder."""
    experiment = hop.Experiment(
        Perceptron(),
        train=data,
        valid=valid,
        space={"width": 8, "lr": hop.grid_search([0.01 * number for number in range(1, trials + 1)])},
        search=hop.Grid(max_epochs=1),
        batch_size=2048,
        workers=2,
        run_options=hop.RunOptions(folder=folder),
        worker_options=hop.WorkerOptions(device="cpu", threads=1),
    )
    own = files = 0
    ended, family = threading.Event(), {os.getpid()}

    def sample() -> None:
        nonlocal own, files
        for number in itertools.count():
            if ended.wait(SAMPLE_SECONDS):
                return
            if number % FILES_EVERY == 0:
                alive = descend(family)
                files = max(files, sum(mapped(pid, Path(data.url)) for pid in alive))
            own = max(own, sum(map(anonymous, alive)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        experiment.fit(quiet=True)
    finally:
        ended.set()
        sampler.join()
    return float(own + files), float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
