"""Helpers to run an experiment for its timings: a temporary folder, tiny data, and the journal read back."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.backends.local.backend import Local
from hopfleet.data import Dataset
from hopfleet.domain.messages import Event, UnitFinished, WorkerJoined
from hopfleet.frameworks.base import Task
from hopfleet.store.journal import Journal


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Create a temporary folder on disk."""
    with tempfile.TemporaryDirectory(prefix="hopfleet-bench-") as folder:
        yield Path(folder)


def tiny_data(folder: Path, partitions: int) -> Dataset:
    """Return a data set with 64 rows per partition, for tasks that do not read them."""
    return hop.partition({"x": np.zeros((64 * partitions, 4), np.float32)}, folder / "data", partitions=partitions)


class Pinned(Local):
    """Local workers that can read one partition each, as on a cluster: every epoch hops."""

    def receive(self, timeout: float) -> list[Event]:
        return [_pinned(event) if isinstance(event, WorkerJoined) else event for event in super().receive(timeout)]


def _pinned(joined: WorkerJoined) -> WorkerJoined:
    return WorkerJoined(joined.worker, joined.placement, (int(joined.worker[1:]) - 1,))


def units_of(
    task: Task,
    data: Dataset,
    configs: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    epochs: int,
    workers: int,
    backend: Any = "local",
) -> list[tuple[float, UnitFinished]]:
    """Train these configurations in a real experiment; return its units and when each was journaled."""
    space = {name: hop.grid_search([config[name] for config in configs]) for name in configs[0]}
    experiment = hop.Experiment(
        task,
        train=data,
        space=space,
        search=hop.Random(trials=len(configs), max_epochs=epochs),
        metric="train_loss",
        workers=workers,
        backend=backend,
        run_options=hop.RunOptions(folder=folder),
        worker_options=hop.WorkerOptions(device="cpu"),
    )
    experiment.fit(quiet=True)
    with contextlib.closing(Journal(experiment.folder.journal_file)) as journal:
        return [
            (heard, message)
            for _, heard, message in journal.read()
            if isinstance(message, UnitFinished) and message.unit.trains
        ]


def endless(task: Task, folder: Path, space: Mapping[str, Any]) -> tuple[hop.Experiment, threading.Thread]:
    """Start an experiment in ``folder / "run"`` that runs in the background until all its trials are stopped."""
    experiment = hop.Experiment(
        task,
        train=tiny_data(folder, 4),
        space=space,
        search=hop.Grid(max_epochs=10_000),
        metric="train_loss",
        workers=2,
        run_options=hop.RunOptions(folder=folder / "run"),
        worker_options=hop.WorkerOptions(device="cpu"),
    )
    run = threading.Thread(target=lambda: experiment.fit(quiet=True), daemon=True)
    run.start()
    return experiment, run
