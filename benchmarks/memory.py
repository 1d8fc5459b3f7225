"""Memory: of workers, as the data set grows; of the controller, as trials go by.

Four workers each read a whole data set several times. Their own memory (anonymous pages, and all pages that are not
shared) must not depend on its size, and the file pages that they map must exist once for all four.

The controller runs 10,000 trials of one unit, with journal and loop, on simulated workers in its own process. Python
objects are counted after 1,000 trials and after nearly all of them.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import tracemalloc
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from benchmarks.row import Row, megabytes
from benchmarks.runs import scratch, tiny_data
from benchmarks.tasks import NoWork, Reader
from hopfleet.backends.local.backend import Local
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted, RunUnit, UnitFailed, UnitFinished, WorkerJoined
from hopfleet.domain.trial import Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.runtime.loop import Loop
from hopfleet.scheduler.policies import DEFAULT, POLICIES
from hopfleet.search.base import Goal
from hopfleet.simulation.backend import Simulated
from hopfleet.store.journal import Journal
from hopfleet.store.versions.local import Versions
from hopfleet.worker.spec import WorkerSpec

WORKERS = 4
PARTITIONS = 8
EPOCHS = 2

Held = tuple[float, float]
"""Return the bytes of Python objects, and of resident memory."""


def measure(quick: bool) -> list[Row]:
    return [*_workers(quick), *_histories(quick)]


# ----------------------------------------------------------------------------------------------- workers


def _workers(quick: bool) -> list[Row]:
    small, large = (8, 32) if quick else (100, 800)
    few, many = _pages(small), _pages(large)
    growth = (large - small) * 1e6
    anonymous = max(many["Anonymous"]) - max(few["Anonymous"])
    private = max(_private(many)) - max(_private(few))
    shared = sum(many["Pss_File"]) - sum(few["Pss_File"])
    what = f"data set of {large} MB instead of {small} MB"
    return [
        Row(
            "memory",
            f"{what}: growth of a worker's own memory (the largest of {WORKERS})",
            f"{megabytes(anonymous)} anonymous, {megabytes(private)} private",
            f"{megabytes(max(_private(few)))} private before, {megabytes(growth)} more data",
            max(anonymous, private) / growth,
            "none (ratio ≤ 0.02)",
            max(anonymous, private) <= 0.02 * growth,
        ),
        Row(
            "memory",
            f"{what}: growth of file pages of {WORKERS} workers, each page counted once (PSS)",
            megabytes(shared),
            f"{megabytes(growth)}: one copy of the data added",
            shared / growth,
            "one copy (ratio ≤ 1.1)",
            shared <= 1.1 * growth,
        ),
    ]


def _private(pages: dict[str, list[float]]) -> list[float]:
    return [sum(pair) for pair in zip(pages["Private_Clean"], pages["Private_Dirty"], strict=True)]


def _pages(size: int) -> dict[str, list[float]]:
    """Return the smaps_rollup of four workers, in bytes, after each has read ``size`` megabytes several times."""
    with scratch() as folder:
        rows = size * 1_000_000 // 4096
        data = hop.partition({"x": np.zeros((rows, 1024), np.float32)}, folder / "data", partitions=PARTITIONS)
        spec = WorkerSpec(
            task=Reader(),
            train=data,
            valid=None,
            checkpoints=folder / "checkpoints",
            logs=folder / "logs",
            seed=0,
            device="cpu",
            threads=1,
            batch_size=32,
            drop_last=False,
        )
        backend = Local()
        try:
            backend.start(spec, WORKERS)
            joined: list[str] = []
            while len(joined) < WORKERS:
                joined += [event.worker for event in backend.receive(1.0) if isinstance(event, WorkerJoined)]
            for version in range(EPOCHS * PARTITIONS):
                _round(backend, joined, version)
            pids = [handle.pid for handle in backend._workers.values()]
            found = [_rollup(pid) for pid in pids]
            backend.close()
        except BaseException:
            backend.close(kill=True)
            raise
        finally:
            Versions(spec.checkpoints).release()
    return {name: [pages[name] for pages in found] for name in found[0]}


def _round(backend: Local, workers: list[str], version: int) -> None:
    """Run one unit on every worker, each with its own trial and partition."""
    for number, worker in enumerate(workers):
        trial = Trial(f"t{number}", number, {}, number, EPOCHS)
        partition = (version + number) % PARTITIONS
        epoch = version // PARTITIONS + 1
        backend.send(
            RunUnit(worker, Unit(trial.id, epoch, partition), version, VersionRef(trial.id, version, None)), trial
        )
    left = len(workers)
    while left:
        for event in backend.receive(1.0):
            if isinstance(event, UnitFailed):
                raise RuntimeError(event.traceback)
            left -= isinstance(event, UnitFinished) and event.unit.trains


def _rollup(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    return {line.partition(":")[0]: float(line.split()[1]) * 1024 for line in lines}


# -------------------------------------------------------------------------------------------- controller


def _histories(quick: bool) -> list[Row]:
    early, late = (100, 600) if quick else (1_000, 10_000)
    rows = []
    for what, run in (("controller, loop and journal", _controller), ("`fit()`, with the view", _fit)):
        (first, resident), (last, later) = _apart(run, early, late)
        growth = last - first
        rows.append(
            Row(
                "memory",
                f"{what}: growth from {early:,} to {late:,} trials",
                f"{megabytes(growth)} of Python objects, {megabytes(later - resident)} resident",
                f"{megabytes(first)} of objects held at {early:,}",
                last / first,
                "flat (≤ 1 MB of objects)",
                growth <= 1e6,
            )
        )
    return rows


def _apart(run: Callable[[Any, int], None], early: int, late: int) -> tuple[Held, Held]:
    """Return the memory of a fresh process after ``early`` and near the end of ``late`` trials."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, run, early, late))
    process.start()
    theirs.close()
    first, last = mine.recv(), mine.recv()
    process.join()
    return first, last


def _child(connection: Connection, run: Callable[[Any, int], None], early: int, late: int) -> None:
    tracemalloc.start()

    def seconds(command: RunUnit, trial: Trial) -> float:
        # Leave out the last 300 trials, because the number of live trials drops then.
        if command.unit.trains and trial.number in (early - 1, max(early, late - 300)):
            gc.collect()
            connection.send((float(tracemalloc.get_traced_memory()[0]), _rollup(os.getpid())["Rss"]))
        return 1.0

    run(Simulated(seconds, lambda trial, epoch: {"loss": float(trial.number)}), late)


def _controller(backend: Simulated, trials: int) -> None:
    search = hop.Random(trials=trials, max_epochs=1)
    search.setup({"lr": hop.uniform(0, 1)}, seed=0, goal=Goal("loss", "min"))
    controller = Controller(search, POLICIES[DEFAULT](), partitions=1, valid_partitions=1)
    with scratch() as folder:
        (folder / "checkpoints").mkdir()
        with contextlib.closing(Journal(folder / "journal.sqlite", writable=True)) as journal:
            backend.start(None, 16)
            Loop(controller, backend, journal, Versions(folder / "checkpoints")).run([RunStarted("benchmark")])


def _fit(backend: Simulated, trials: int) -> None:
    with scratch() as folder:
        data = tiny_data(folder, 1)
        hop.Experiment(
            NoWork(),
            train=data,
            valid=data,
            space={"lr": hop.uniform(0, 1)},
            search=hop.Random(trials=trials, max_epochs=1),
            workers=16,
            backend=backend,
            run_options=hop.RunOptions(folder=folder / "run"),
            worker_options=hop.WorkerOptions(device="cpu"),
        ).fit(quiet=True)
