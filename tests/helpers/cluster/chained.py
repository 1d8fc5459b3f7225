"""A task without a framework whose state depends on every row and their order: to compare bits at little cost."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import CheckpointError
from hopfleet.frameworks.base import Batches, Session
from hopfleet.testing.tasks import CountingSession, CountingTask

LENGTH = 32


class Chain(CountingTask):
    def open(self, config: Mapping[str, Any], *, seed: int, placement: Placement, threads: int) -> Session:
        return ChainSession(config, seed)


class ChainSession(CountingSession):
    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        super().__init__(config)
        self.state = hashlib.sha256(str(seed).encode()).digest()

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        time.sleep(self.config["seconds"])
        for batch in batches:
            self.state = hashlib.sha256(self.state + batch["x"].tobytes()).digest()
        self.units += 1
        return {}

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        rows = sum(len(batch["x"]) for batch in batches)
        return {"loss": RowSum.of(self.state[0] / 256, rows)}

    def save(self, path: Path) -> None:
        path.write_bytes(self.state + self.units.to_bytes(4))

    def load(self, path: Path) -> None:
        saved = path.read_bytes()
        if len(saved) != LENGTH + 4:
            raise CheckpointError(f"{path}: is damaged")
        self.state, self.units = saved[:LENGTH], int.from_bytes(saved[LENGTH:])


def chained(name: str, backend: Any, *, workers: int = 3, epochs: int = 3, seconds: float = 0.03) -> hop.Experiment:
    """Return an experiment with short units without a framework, whose workers start in a second."""
    return hop.Experiment(
        Chain(),
        train={"x": np.arange(320, dtype="float32")},
        valid={"x": np.arange(32, dtype="float32")},
        space={"seconds": seconds},
        search=hop.Random(trials=6, max_epochs=epochs),
        metric="loss",
        partitions=4,
        name=name,
        backend=backend,
        workers=workers,
        run_options=hop.RunOptions(order="fixed"),
        worker_options=hop.WorkerOptions(device="cpu"),
    )
