"""Experiments in which each trial changes workers after every unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.extend import Assignment, Unit

ROWS = 230
RNG = np.random.default_rng(2)
COLUMNS = {"x": RNG.normal(size=(ROWS, 6)).astype("float32"), "y": RNG.integers(0, 3, ROWS)}
RATES = hop.grid_search([0.1, 0.03, 0.01])

SEED, SIZE = 5, 13
"""The seed of the experiment, and the rows of a batch: partitions end with short ones."""


def elsewhere(schedule: Any, rng: Any) -> Any:
    """A policy that lets each trial change workers after every unit."""
    for progress in schedule.ready.values():
        for slot in schedule.idle.values():
            if slot.worker != progress.holder and (partitions := schedule.options(progress, slot)):
                return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch, rng.choice(sorted(partitions))))
    return None


def hopped(
    task: Any, columns: Mapping[str, Any], space: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Train three configurations for two epochs on three partitions; return results and the data set."""
    monkeypatch.setattr("hopfleet.experiment.arguments.POLICIES", {"random": lambda: elsewhere})
    dataset = hop.partition(dict(columns), folder / "data", partitions=3, seed=1)
    results = hop.Experiment(
        task, train=dataset, valid=dict(columns), space=space, search=hop.Grid(max_epochs=2), seed=SEED,
        batch_size=SIZE, workers=2, backend="inline", worker_options=hop.WorkerOptions(fuse="off"),
        run_options=hop.RunOptions(folder=folder / "run", policy="random"), **options,
    ).fit(quiet=True)  # fmt: skip
    assert [trial.error for trial in results.trials] == [None] * 3
    assert results.history.hops == 3 * (2 * 3 - 1)
    return results, dataset


def visited(dataset: Any, trial: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the batches of each unit, in the order in which a trial has visited the partitions."""
    for epoch, partitions in enumerate(trial.visits, 1):
        for partition in partitions:
            found = dataset.batches(partition, batch_size=SIZE, seed=SEED, epoch=epoch)
            yield [{name: value.copy() for name, value in batch.items()} for batch in found]


def same_tensors(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two state dicts of PyTorch have the same bits."""
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
