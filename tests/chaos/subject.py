"""The experiment that is attacked: a task without a framework, whose models remember every row that they have seen.

A model is a chain of hashes, so that one row too many, too few or out of order shows in its bits. The order of visits
is fixed beforehand; then a run that was disturbed must end with the very files of one that was not.

    python -m tests.chaos.subject FOLDER '{"epochs": 3}'
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import CheckpointError
from hopfleet.frameworks.base import Batch, Batches, Framework, Session, Task
from hopfleet.frameworks.tracked_config import TrackedConfig
from tests.chaos import points

MAGIC = b"chain of hashes\n"


class Chain(Task):
    """Units take ``config["seconds"]``; saved models have ``config["blocks"]`` blocks of 4 KiB."""

    preload = ("tests.chaos.subject",)

    @property
    def framework(self) -> Framework:
        return ChainFramework()


class ChainFramework(Framework):
    def open(self, config: Mapping[str, Any], *, seed: int, **rest: Any) -> Session:
        return ChainSession(config, seed)

    def model(self, config: Mapping[str, Any], checkpoint: Path) -> bytes:
        return checkpoint.read_bytes()

    def devices(self) -> tuple[str, int]:
        return "cpu", 1


class ChainSession(Session):
    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self.config = TrackedConfig(config)
        self._take(hashlib.sha256(f"{config['number']} {seed}".encode()).digest())

    def _take(self, link: bytes) -> None:
        """The next link of the chain, and a body that takes room; all of it goes into the link after it."""
        self.link = link
        self.body = b"".join(
            hashlib.sha256(link + number.to_bytes(2, "big")).digest() * 128 for number in range(self.blocks)
        )

    @property
    def size(self) -> int:
        return 4096 * int(self.config["blocks"]) + 64

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        return batch

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        pause = self.config["seconds"] / len(batches)
        for batch in batches:
            points.reach("in a unit")
            time.sleep(pause)
            self._take(hashlib.sha256(self.link + self.body + batch["x"].tobytes()).digest())
        return {"train_loss": RowSum.of(self.number, batches.rows)}

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        points.reach("in an evaluation")
        return {"loss": RowSum.of(self.number, sum(len(batch["x"]) for batch in batches))}

    @property
    def number(self) -> float:
        return int.from_bytes(self.link[:6], "big") / 2**48

    def save(self, path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            file.write(MAGIC + self.link)
            for start in range(0, len(self.body), 4096):
                points.reach("in a write")
                file.write(self.body[start : start + 4096])

    def load(self, path: Path) -> None:
        points.reach("before a load")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error
        if not content.startswith(MAGIC) or len(content) != len(MAGIC) + 32 + 4096 * self.blocks:
            raise CheckpointError(f"{path}: is damaged")
        self.link, self.body = content[len(MAGIC) :][:32], content[len(MAGIC) + 32 :]

    @property
    def blocks(self) -> int:
        return int(self.config["blocks"])

    def unused(self) -> tuple[str, ...]:
        return ()


def rows(count: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).integers(0, 1 << 30, (count, 4))}


def experiment(folder: Path, **asked: Any) -> hop.Experiment:
    told = {"trials": 3, "epochs": 2, "partitions": 3, "workers": 2, "backend": "local", "seconds": 0.0, "blocks": 1}
    told |= asked
    return hop.Experiment(
        Chain(),
        train=rows(24 * told["partitions"], seed=1),
        valid=rows(12, seed=2),
        space={
            "number": hop.grid_search(list(range(told["trials"]))),
            "seconds": told["seconds"],
            "blocks": told["blocks"],
        },
        search=hop.Grid(max_epochs=told["epochs"]),
        metric="loss",
        seed=5,
        run_options=hop.RunOptions(folder=folder, order="fixed"),
        backend=told["backend"],
        workers=told["workers"],
        batch_size=8,
        partitions=told["partitions"],
    )


if __name__ == "__main__":
    points.install()
    experiment(Path(sys.argv[1]), **json.loads(sys.argv[2])).fit(quiet=True)
else:
    points.install_in_workers()
