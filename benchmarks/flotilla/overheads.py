"""The cost of forming a flotilla, and the time that a worker is idle between two of them.

    python -m benchmarks.flotilla.overheads [--quick]

Real experiments with two local workers train small perceptrons in flotillas with units of about a second. In one
experiment every worker can read all partitions, so flotillas stay where they are. In the other each worker can read one
partition, so after each unit all models of both workers change places: each is written by one and read by the other.

*Forming* begins when a worker starts a unit and ends with the first loss of the unit: models are found, built or
loaded, random streams, output files and the stream of batches are prepared, and the first batch arrives. *Between
units* runs from the end of one unit to the start of the next: reports, decisions, two commits of the journal, commands,
copies of models for saving and, if models hop, the time until the other worker has saved its own. The first unit of
each worker, which builds its models, is left out, and so are flotillas with less than half of the members, which form
when trials differ in their progress.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from benchmarks.__main__ import conclude
from benchmarks.row import Row, milliseconds
from benchmarks.runs import Pinned, scratch
from hopfleet.domain.messages import TrialAdded, UnitFinished
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch.task import TorchTask
from hopfleet.store.journal import Journal
from hopfleet.support import clock

FORMING, BETWEEN = 0.02, 0.01
"""Maximum share of a unit of one second for forming, and between units."""

WHEN = ("within an epoch", "at its end, when all are saved")

WORKERS = 2
WIDTH, CLASSES, BATCH = 64, 10, 32
MARK_SECONDS = 1e-3
"""Seconds below which two losses count as one."""


class Marked(TorchTask):
    """A perceptron that writes the times of its losses to a file of its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = 0.0

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, CLASSES))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Batch) -> Any:
        now = clock.now()
        if now - self.last > MARK_SECONDS:
            with (self.folder / str(os.getpid())).open("a") as file:
                file.write(f"{now!r} {self.config['lr']!r}\n")
        self.last = now
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


@dataclass(frozen=True, slots=True)
class Sailing:
    """One unit of a flotilla."""

    worker: str
    started: float
    ended: float
    epoch: int
    members: int
    #: Time of its first loss.
    underway: float


def measure(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for members in (2,) if quick else (8, 16):
        batches = 8 if quick else _batches(members)
        for stays in (True, False):
            rows += _told(members, _sailed(members, batches, stays, epochs=2 if quick else 6), stays)
    return rows


def _batches(members: int) -> int:
    """Return the number of batches that a flotilla trains on in about a second."""
    count = 20
    x, y = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, dtype=torch.int64)
    with scratch() as folder:
        task = Marked(folder)
        sessions = [task.framework.open({"lr": 1e-3}, seed=n, placement=CPU, threads=1) for n in range(members)]
        batches: Any = _Batches({"x": x, "y": y} for _ in range(count))
        flotilla = task.framework.flotilla(sessions)
        flotilla.train(batches, last=[False] * members)
        began = time.perf_counter()
        flotilla.train(batches, last=[False] * members)
        return max(1, round(count / (time.perf_counter() - began)))


class _Batches(list[Any]):
    @property
    def rows(self) -> int:
        return BATCH * len(self)


def _sailed(members: int, batches: int, stays: bool, epochs: int) -> list[Sailing]:
    """Return all units of an experiment."""
    rng = np.random.default_rng(0)
    with scratch() as folder:
        rows = WORKERS * batches * BATCH
        arrays = {"x": rng.standard_normal((rows, WIDTH), np.float32), "y": rng.integers(0, CLASSES, rows)}
        (folder / "marks").mkdir()
        experiment = hop.Experiment(
            Marked(folder / "marks"),
            train=hop.partition(arrays, folder / "data", partitions=WORKERS),
            space={"lr": hop.loguniform(1e-4, 1e-2)},
            search=hop.Random(trials=WORKERS * members, max_epochs=epochs),
            metric="train_loss",
            batch_size=BATCH,
            workers=WORKERS,
            backend="local" if stays else Pinned(),
            run_options=hop.RunOptions(folder=folder / "run"),
            worker_options=hop.WorkerOptions(device="cpu"),
        )
        experiment.fit(quiet=True)
        with contextlib.closing(Journal(experiment.folder.journal_file)) as journal:
            messages = [message for _, _, message in journal.read()]
        lines = [line.split() for file in (folder / "marks").iterdir() for line in file.read_text().splitlines()]
    rates = {message.trial: message.config["lr"] for message in messages if isinstance(message, TrialAdded)}
    marks = sorted((float(when), float(rate)) for when, rate in lines)
    flotillas: dict[tuple[str, float], list[UnitFinished]] = defaultdict(list)
    for message in messages:
        if isinstance(message, UnitFinished) and message.unit.trains:
            flotillas[message.worker, message.started].append(message)
    units = []
    for (worker, started), finished in sorted(flotillas.items(), key=lambda item: item[0][1]):
        theirs = {rates[unit.trial] for unit in finished}
        underway = next(when for when, rate in marks if when >= started and rate in theirs)
        units.append(
            Sailing(
                worker, started, max(unit.ended for unit in finished), finished[0].unit.epoch, len(finished), underway
            )
        )
    return units


def _told(members: int, units: Sequence[Sailing], stays: bool) -> list[Row]:
    way = "that stay" if stays else "that change places"
    by_worker = [[unit for unit in units if unit.worker == worker] for worker in {unit.worker for unit in units}]
    pairs = [pair for mine in by_worker for pair in pairwise(mine) if min(u.members for u in pair) > members // 2]
    if not pairs:
        return [Row("overheads", f"flotillas {way}", "none", "", None, "", False)]
    length = fmean(unit.ended - unit.started for _, unit in pairs)
    forming = fmean(unit.underway - unit.started for _, unit in pairs)
    gaps = {over: [b.started - a.ended for a, b in pairs if (a.epoch != b.epoch) is over] for over in (False, True)}
    between = fmean([*gaps[False], *gaps[True]])
    parts = [f"{milliseconds(fmean(some))} {when}" for when, some in zip(WHEN, gaps.values(), strict=True) if some]
    what = f"flotillas of {members} {way}, {len(pairs)} units of {milliseconds(length)}"
    bars = (FORMING, BETWEEN if stays else None)
    told = []
    for name, seconds, detail, bar in zip(
        ("forming", "between units"), (forming, between), ("", ", ".join(parts)), bars, strict=True
    ):
        judged = ("", None) if bar is None else (f"≤ {bar:.0%} of the unit", seconds <= bar * length)
        share = f"{milliseconds(seconds)}, {seconds / length:.1%}"
        told.append(Row("overheads", f"{name}: {what}, mean", share, detail, None, *judged))
    return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flotilla.overheads", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny units: a functional check only")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    status = conclude(measure(options.quick), load, None)
    return 0 if options.quick else status


if __name__ == "__main__":
    sys.exit(main())
