"""``hopfleet verify`` of a run folder of a gigabyte: half of it models, half of it data.

The files were just written, so they are in the page cache: the time is that of hashing, not of the disk. It is compared
with one thread that only hashes the same files.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from statistics import median

import numpy as np

import hopfleet as hop
from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch, units_of
from benchmarks.tasks import Freight

BAR = 5.0


def measure(quick: bool) -> list[Row]:
    megabytes, repeats = (8, 1) if quick else (128, 3)
    with scratch() as folder:
        # 4 files of models: the best and the last version of two trials. The loss never gets better.
        rows = np.zeros((400 * megabytes, 2500), np.float32)
        data = hop.partition({"x": rows}, folder / "data", partitions=4)
        configs = [{"megabytes": megabytes, "optimizer": "sgd", "number": number} for number in range(2)]
        units_of(Freight(), data, configs, folder / "run", epochs=2, workers=1, backend="inline")
        results = hop.load(folder / "run")
        files = [*results.folder.checkpoints.rglob("*.safetensors"), *(folder / "data").glob("*.arrow")]
        size = sum(file.stat().st_size for file in files)
        ours, bare = [], []
        for _ in range(repeats):
            began = time.perf_counter()
            verdict = results.verify()
            ours.append(time.perf_counter() - began)
            assert verdict.ok, verdict.faults
            bare.append(_hashing(files))
    return [
        Row(
            "verify",
            f"a run folder with {size / 1e9:.2f} GB of models and data, median of {repeats}",
            milliseconds(median(ours)),
            f"{milliseconds(median(bare))}: SHA-256 of the same files in one thread",
            median(ours) / median(bare),
            "< 5 s for 1 GB",
            median(ours) < BAR,
        )
    ]


def _hashing(files: list[Path]) -> float:
    began = time.perf_counter()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
    return time.perf_counter() - began
