"""A hop: from the end of a trial's unit on one worker to the start of its next unit, model loaded, on another.

Two local workers hold one partition each, in a real experiment, so every epoch hops once. The time includes everything
in between: the report of the first unit, the decision, two commits of the journal, the write of the version to tmpfs by
one worker, the read into the model by the other, and the messages that trigger these steps. The second worker still has
the trial's model of two units ago; the first arrival, which must build the model, is reported separately. Units last
long enough for the durable write at the end of an epoch, which no hop waits for, to finish.

The bare alternative is the necessary minimum: one process writes the same tensors to tmpfs with safetensors, and
another, notified through a pipe, reads all bytes of the file into existing tensors.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.row import Row, milliseconds
from benchmarks.runs import Pinned, scratch, tiny_data, units_of
from benchmarks.tasks import Freight
from hopfleet.domain.messages import UnitFinished
from hopfleet.store.shared_memory import TMPFS

#: Megabytes of a version, and the optimizer whose state is included.
SIZES = ((0.01, "sgd"), (100, "sgd"), (100, "adam"))
SMALL_BAR, LARGE_BAR, RATIO_BAR = 5e-3, 0.1, 1.5


def measure(quick: bool) -> list[Row]:
    hops = 3 if quick else 20
    rows = []
    for megabytes, optimizer in ((0.01, "sgd"), (8, "adam")) if quick else SIZES:
        config = {"megabytes": megabytes, "optimizer": optimizer, "seconds": 0.05 if megabytes < 1 else 0.3}
        bare = _bare(config, hops)
        first, times, heard = _hops(config, hops)
        bare += [] if quick else _bare(config, hops)
        ours, theirs = median(times), median(bare)
        state = {"sgd": "all weights", "adam": "weights and Adam's state"}[optimizer]
        size = "1 kB" if megabytes < 1 else f"{megabytes} MB"
        if megabytes < 1:
            bar, ok = "< 5 ms", ours < SMALL_BAR
        else:
            bar, ok = "< 100 ms, ratio ≤ 1.5", ours < LARGE_BAR and ours <= RATIO_BAR * theirs
        rows.append(
            Row(
                "hop",
                f"a model of {size} ({state}) to another worker, median of {len(times)}",
                f"{milliseconds(ours)} (best {milliseconds(min(times))}, first {milliseconds(first)})",
                f"{milliseconds(theirs)} (best {milliseconds(min(bare))}): bare safetensors on tmpfs",
                ours / theirs,
                bar,
                ok,
            )
        )
        rows.append(
            Row("hop", "the same, from when the controller heard that the unit ended", milliseconds(median(heard)))
        )
    return rows


def _hops(config: Mapping[str, Any], hops: int) -> tuple[float, list[float], list[float]]:
    """Return seconds of the first hop, of the others, and of the others from the report of the unit on."""
    with scratch() as folder:
        data = tiny_data(folder, 2)
        units = units_of(Freight(), data, [config], folder / "run", epochs=hops + 1, workers=2, backend=Pinned())
    first, *times = [_began(b) - a.sums["train_ended"].mean for (_, a), (_, b) in pairwise(units) if b.hopped]
    _, *heard = [_began(b) - told for (told, _), (_, b) in pairwise(units) if b.hopped]
    return first, times, heard


def _began(unit: UnitFinished) -> float:
    return unit.sums["train_began"].mean


def _bare(config: Mapping[str, Any], repeats: int) -> list[float]:
    """Return seconds from the start of each write to the end of the read in another process."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="hopfleet-bench-", dir=TMPFS if TMPFS.is_dir() else None) as folder:
        path = Path(folder) / "bare.safetensors"
        reader = context.Process(target=_read, args=(theirs, path, dict(config)))
        reader.start()
        mine.recv()
        tensors = _tensors(config)
        times = []
        for _ in range(repeats + 1):
            start = time.monotonic()
            save_file(tensors, path)
            mine.send(True)
            times.append(mine.recv() - start)
            path.unlink()
        mine.send(False)
        reader.join()
    return times[1:]


def _read(connection: Connection, path: Path, config: Mapping[str, Any]) -> None:
    tensors = _tensors(config)
    torch.set_num_threads(1)
    connection.send(os.getpid())
    while connection.recv():
        for name, tensor in load_file(path).items():
            tensors[name].copy_(tensor)
        connection.send(time.monotonic())


def _tensors(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights and the optimizer's state of a model, by name."""
    model, optimizer = Freight().build(config)
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for index, state in enumerate(optimizer.state.values()):
        tensors |= {f"{index}.{name}": value for name, value in state.items()}
    return tensors
