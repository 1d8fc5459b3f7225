"""A plain training loop, in one process and in sequence, to compare Hopfleet's bits with.

It shares no code with Hopfleet but the task's own build() and loss() and, on CUDA, hop.capturable: rows are read from
the Arrow files, orders and seeds follow the rules given in docs/concepts.md.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import hopfleet as hop


def derived_seed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest(), "big")


def read_partition(folder: Path, partition: int) -> dict[str, np.ndarray]:
    with pa.OSFile(str(folder / f"part-{partition:05d}.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    x = np.stack([np.asarray(row, dtype="float32").reshape(1, 6, 6) for row in table["x"].to_pylist()])
    return {"x": x, "y": np.array(table["y"].to_pylist())}


def train_in_sequence(
    task: Any,
    folder: Path,
    *,
    config: Mapping[str, Any],
    trial_seed: int,
    seed: int,
    visits: Sequence[Sequence[int]],
    batch_size: int,
    device: str = "cpu",
    before_epoch: Callable[[int, Any, Any], None] | None = None,
    metrics: Sequence[float] = (),
) -> tuple[Any, Any, Any]:
    """Model, optimizer and schedule after all epochs; ``before_epoch`` may change the last two before any of them.

    ``metrics`` are those at the end of each epoch, for schedules that follow them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    random.seed(trial_seed)
    np.random.seed(trial_seed)
    torch.manual_seed(trial_seed)
    model, optimizer, *rest = task.build(config)
    schedule = rest[0] if rest else None
    model.to(device)
    hop.capturable(optimizer)
    model.train()
    for epoch, partitions in enumerate(visits, 1):
        if before_epoch is not None:
            before_epoch(epoch, optimizer, schedule)
        for partition in partitions:
            data = read_partition(folder, partition)
            rows = len(data["y"])
            order_seed = derived_seed(seed, "order", epoch, partition)
            order = np.random.Generator(np.random.PCG64(order_seed)).permutation(rows)
            for number, start in enumerate(range(0, rows, batch_size)):
                take = order[start : start + batch_size]
                batch: dict[str, Any] = {name: column[take] for name, column in data.items()}
                if task.transform is not None:
                    rng = np.random.default_rng(derived_seed(seed, "transform", epoch, partition, number))
                    batch = task.transform(batch, rng)
                loss = task.loss(model, {name: torch.from_numpy(value).to(device) for name, value in batch.items()})
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            if epoch <= len(metrics):
                schedule.step(metrics[epoch - 1])
        elif schedule is not None:
            schedule.step()
    torch.set_num_threads(threads)
    return model, optimizer, schedule
