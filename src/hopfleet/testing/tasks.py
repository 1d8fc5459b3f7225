"""A task without a framework, for suites that test everything around one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopfleet.extend import (
    Batch,
    Batches,
    CheckpointError,
    Config,
    EngineCache,
    Framework,
    Placement,
    RowSum,
    Session,
    Task,
    TrackedConfig,
)
from hopfleet.support.files import overwrite


class CountingTask(Task):
    """A task whose whole state is the number of units and rows that it has seen.

    ``fault`` in the configuration raises; units take ``seconds``.
    """

    @property
    def framework(self) -> Framework:
        return CountingFramework(self)

    def open(self, config: Config, *, seed: int, placement: Placement, threads: int) -> Session:
        """Return a new session. Override this to test with other sessions."""
        return CountingSession(config)


class CountingFramework(Framework):
    """The adapter of ``CountingTask``."""

    def __init__(self, task: CountingTask) -> None:
        self._task = task

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> Session:
        return self._task.open(config, seed=seed, placement=placement, threads=threads)

    def model(self, config: Config, checkpoint: Path) -> Any:
        return json.loads(checkpoint.read_text(encoding="utf-8"))

    def devices(self) -> tuple[str, int]:
        return "cpu", 1


class CountingSession(Session):
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = TrackedConfig(config)
        if self.config.get("fault"):
            raise ValueError("asked to fail")
        self.units = 0
        self.rows = 0

    @property
    def size(self) -> int:
        return 64

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        return batch

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        time.sleep(self.config.get("seconds", 0.0))
        self.rows += sum(len(batch["x"]) for batch in batches)
        self.units += 1
        return {"train_units": RowSum.of(float(self.units), 1), "train_loss": RowSum.of(1 / self.units, batches.rows)}

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        rows = sum(len(batch["x"]) for batch in batches)
        return {"loss": RowSum.of(1 / (1 + self.units), rows)}

    def save(self, path: Path) -> None:
        overwrite(path, [json.dumps([self.units, self.rows]).encode()])

    def load(self, path: Path) -> None:
        try:
            self.units, self.rows = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{path}: is damaged ({error})") from error

    def unused(self) -> tuple[str, ...]:
        return self.config.unused()
