"""Hopfleet's training loop against a hand-written one, for a network so small that overhead shows.

Ours reads shuffled batches from mapped files in a background thread; theirs gathers them from tensors in memory. Both
shuffle, both take the same steps on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

import hopfleet as hop
from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch
from benchmarks.tasks import Perceptron
from hopfleet.data import Dataset
from hopfleet.domain.placement import CPU
from hopfleet.worker.feeding.stream import Stream

GOAL = 0.9


def measure(quick: bool) -> list[Row]:
    rows, repeats = (2_000, 1) if quick else (50_000, 7)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((rows, 64), np.float32), "y": rng.integers(0, 10, rows)}
    result: list[Row] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with scratch() as folder:
            data = hop.partition(arrays, folder / "data", partitions=1)
            for size in (32, 256):
                result += _compare(arrays, data, size, repeats)
    finally:
        torch.set_num_threads(threads)
    return result


def _compare(arrays: dict[str, Any], data: Dataset, size: int, repeats: int) -> list[Row]:
    task = Perceptron()
    session = task.framework.open({}, seed=0, placement=CPU, threads=1)
    by_hand = _hand_written(task, arrays, size)

    def stream(epoch: int) -> Stream:
        return Stream(data, 0, session=session, batch_size=size, epoch=epoch)

    # They take turns; the first round warms up.
    rounds = [
        (_seconds(lambda: session.train(stream(1), last=True)), _seconds(by_hand), _seconds(lambda: _drain(stream(1))))
        for _ in range(repeats + 1)
    ]
    ours, theirs, alone = (median(times) for times in zip(*rounds[1:], strict=True))
    batches, rows = len(stream(1)), data.rows
    return [
        Row(
            "throughput",
            f"MLP 64-128-10, batches of {size}, median of {repeats} epochs",
            f"{rows / ours:,.0f} rows/s",
            f"{rows / theirs:,.0f} rows/s: plain PyTorch on tensors in memory",
            theirs / ours,
            "ratio ≥ 0.9",
            theirs / ours >= GOAL,
        ),
        Row(
            "throughput",
            f"batches of {size}: the stream alone, per batch",
            milliseconds(alone / batches),
            f"{milliseconds(theirs / batches)}: a step by hand",
            alone / theirs,
        ),
    ]


def _drain(stream: Stream) -> None:
    for _ in stream:
        pass


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _hand_written(task: Perceptron, arrays: dict[str, Any], size: int) -> Callable[[], None]:
    torch.manual_seed(0)
    model, optimizer = task.build({})
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    order: Any = torch.randperm

    def epoch() -> None:
        total = 0.0
        for rows in order(len(x)).split(size):
            loss: Any = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)

    return epoch
