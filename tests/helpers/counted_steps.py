"""A trial on partitions of different sizes, whose steps tests count in each framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.domain.batching import Batching

EPOCHS, SIZE = 2, 4


def trained(folder: Path, task: hop.Task, **more: Any) -> tuple[Any, Batching]:
    """Train a trial on partitions of different sizes; return it, and how its rows become steps."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(29, 2)).astype("float32"), "y": rng.integers(0, 2, 29)}
    train = hop.partition(columns, folder / "data", capacities=[3, 2, 1])
    results = hop.Experiment(
        task, train=train, valid={name: column[:5] for name, column in columns.items()}, batch_size=SIZE,
        search=hop.Grid(max_epochs=EPOCHS), seed=1, backend="inline", workers=1, name=folder.name,
        **{"space": {"lr": 0.1}, "metric": "loss", "mode": "min", **more},
    ).fit(quiet=True)  # fmt: skip
    return results.best, Batching(train.partition_rows, SIZE, False, EPOCHS)
