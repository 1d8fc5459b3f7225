"""FLEET's case in real runs: eight networks of unequal cost on two workers, or on one GPU.

Rows take twice as long to prepare as the cheapest network takes to train on them.

The baseline is one network per worker, each with its own preparation. FLEET shares the preparation; the policy
``fleet`` does, and so do trials that train together under the default policy. Rounds alternate, so other load on the
machine meets all alike. On CPUs, two more networks of unequal cost train on three workers, which may form teams: by
FLEET's rounds, and by the default policy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from benchmarks.row import Row
from benchmarks.runs import scratch
from benchmarks.tasks import Augmented
from hopfleet.data import Dataset
from hopfleet.domain.messages import WorkerJoined
from hopfleet.store.local import open_journal

LAYERS = (1, 1, 2, 2, 3, 4, 6, 8)
BATCH, PARTITIONS = 128, 4
DEVICE, WORKERS, PLACE = ("cuda:0", 1, "one GPU") if torch.cuda.is_available() else ("cpu", 2, "2 workers")
GOAL = 1.3

CONTENDERS = {
    "fleet": ("fleet", "exact", False),
    "auto": ("auto", "exact", False),
    "shared": ("auto", "off", False),
    "alone": ("auto", "off", True),
}
"""Policy, fusion, and whether each trial prepares its own batches."""

FEW, DEVICES = (2, 8), 3
"""Layers of the networks that may train on teams, and the number of processes for them."""


def measure(quick: bool = False) -> list[Row]:
    rows, epochs, repeats = (2_048, 1, 1) if quick else (8_192, 3, 3)
    rounds = 4 if quick else _rounds()
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((rows, 64), np.float32), "y": rng.integers(0, 10, rows)}
    taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with scratch() as folder:
        data = hop.partition(arrays, folder / "data", partitions=PARTITIONS)
        for turn in range(repeats):
            for name, (policy, fuse, alone) in CONTENDERS.items():
                where = folder / f"{name} {turn}"
                taken[name].append(_seconds(Augmented(rounds, alone=alone), data, where, policy, fuse, epochs))
        teams = list(_with_teams(Augmented(rounds, alone=False), data, folder, epochs, repeats))
    seconds = {name: median(times) for name, times in taken.items()}
    gains = {name: seconds["alone"] / each for name, each in seconds.items()}
    return [
        Row(
            "fleet_live",
            f"{len(LAYERS)} networks, {epochs} epochs, {PLACE}, preparation shared: policy fleet",
            f"{seconds['fleet']:.2f} s",
            f"{seconds['alone']:.2f} s: one network per worker, none shared",
            gains["fleet"],
            f"≥ {GOAL}",
            None if quick else gains["fleet"] >= GOAL,
        ),
        Row(
            "fleet_live",
            "the same: policy auto",
            f"{seconds['auto']:.2f} s",
            f"{seconds['shared']:.2f} s: one network per worker, batches shared ({gains['shared']:.2f})",
            gains["auto"],
        ),
        *teams,
    ]


def _with_teams(task: Augmented, data: Dataset, folder: Path, epochs: int, repeats: int) -> Iterator[Row]:
    """Yield how fast FLEET's rounds are by the default policy, if both may form teams; nothing on a GPU."""
    if DEVICE != "cpu":
        return
    taken: dict[str, list[float]] = {"fleet": [], "auto": []}
    for turn in range(repeats):
        for policy, times in taken.items():
            few: dict[str, Any] = {"layers": FEW, "workers": DEVICES, "parallelism": "auto"}
            times.append(_seconds(task, data, folder / f"teams {policy} {turn}", policy, "exact", epochs, **few))
    fleet, auto = (median(times) for times in taken.values())
    what = f"{len(FEW)} networks, {epochs} epochs, {DEVICES} processes that may form teams: policy fleet"
    yield Row("fleet_live", what, f"{fleet:.2f} s", f"{auto:.2f} s: policy auto", auto / fleet)


def _seconds(
    task: Augmented,
    data: Dataset,
    folder: Path,
    policy: str,
    fuse: Any,
    epochs: int,
    *,
    layers: Sequence[int] = LAYERS,
    workers: int = WORKERS,
    parallelism: str = "single",
) -> float:
    """Return the seconds from the first unit's start, or if teams may form, the first worker's, to the last end."""
    experiment = hop.Experiment(
        task,
        train=data,
        space={"layers": hop.grid_search(list(layers))},
        search=hop.Random(trials=len(layers), max_epochs=epochs),
        metric="train_loss",
        workers=workers,
        parallelism=parallelism,
        batch_size=BATCH,
        run_options=hop.RunOptions(folder=folder, policy=policy),
        worker_options=hop.WorkerOptions(device=DEVICE, fuse=fuse, transform_workers=0),
    )
    results = experiment.fit(quiet=True)
    spans = results.history.spans
    began = min(span.started for span in spans) if parallelism == "single" else _first_worker(results)
    return max(span.ended for span in spans) - began


def _first_worker(results: hop.Results) -> float:
    """Return when the first worker joined."""
    with contextlib.closing(open_journal(results.folder)) as journal:
        return next(when for _, when, message in journal.read() if isinstance(message, WorkerJoined))


def _rounds() -> int:
    """Return the products with which preparing a batch takes twice as long as the cheapest network's step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rng = np.random.default_rng(0)
        batch: Any = {"x": rng.standard_normal((BATCH, 64), np.float32), "y": rng.integers(0, 10, BATCH)}
        task = Augmented(20, alone=False)
        model, optimizer = task.build({"layers": 1})
        model.to(DEVICE)
        tensors = {name: torch.from_numpy(value).to(DEVICE) for name, value in batch.items()}

        def step() -> None:
            optimizer.zero_grad()
            loss = task.loss(model, tensors)
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device

        # The least of many, since other processes interrupt most.
        training = min(_timed(step) for _ in range(200))
        preparing = min(_timed(lambda: task.transform(batch, rng)) for _ in range(200))
    finally:
        torch.set_num_threads(threads)
    return max(1, round(2 * training / preparing * task.rounds))


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
