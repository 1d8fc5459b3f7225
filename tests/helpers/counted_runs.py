"""Short runs that count in place of training, and what is in their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.testing.tasks import CountingTask


def experiment(**more: Any) -> hop.Experiment:
    asked: dict[str, Any] = {"search": hop.Grid(max_epochs=1), "partitions": 2, "batch_size": 8, "backend": "inline"}
    asked |= {"space": {"number": hop.grid_search([1, 2])}, "name": "mine", **more}
    return hop.Experiment(CountingTask(), train={"x": np.arange(40.0)}, **asked)


def content(folder: Path) -> dict[str, bytes]:
    """Return all files of a run except the lock, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock" and not path.name.endswith(("-wal", "-shm"))
    }
