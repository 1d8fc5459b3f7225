"""Small JPEGs from an S3 server to partitions of arrays, against a pool of threads and processes written by hand.

Each way gets a table of URLs and labels. Both fetch the objects with the same library, one request for each, decode and
resize them with Pillow in two processes, and write eight files. The cache of fetched objects is empty each time. They
take turns, and the best time of each counts. The server is our own: moto takes longer for a request than its clients.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import hopfleet as hop
from benchmarks.object_server import serving
from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch

IMAGES, SIZE, THREADS, WORKERS, PARTITIONS = 20_000, (24, 24), 16, 2, 8
BUCKET = "images"
BAR = 0.9


def measure(quick: bool) -> list[Row]:
    count = 64 if quick else IMAGES
    with scratch() as folder, serving(_made(folder / "objects", count)) as address:
        told = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
            "HOPFLEET_HOME": str(folder / "home"),
        }
        names = [f"s3://{BUCKET}/{number:06d}.jpg" for number in range(count)]
        table = pa.table({"image": names, "label": [str(number % 10) for number in range(count)]})
        times: dict[str, list[float]] = {"ours": [], "by hand": []}
        with mock.patch.dict(os.environ, told):
            for number in range(1 if quick else 2):
                for name, run in (("ours", _ours), ("by hand", _by_hand)):
                    start = time.perf_counter()
                    run(table, folder / f"{name}-{number}")
                    times[name].append(time.perf_counter() - start)
                    print(f"{name}: {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
                    shutil.rmtree(folder / "home", ignore_errors=True)
    ours, other = (min(times[name]) for name in times)
    what = f"{count:,} JPEGs of 32 x 32 from a local S3 server to {PARTITIONS} partitions, {WORKERS} workers"
    compared = f"{milliseconds(other)}: threads and processes by hand"
    bar = f">= {BAR} of its speed"
    return [Row("etl_images", what, milliseconds(ours), compared, other / ours, bar, other >= BAR * ours)]


def _made(folder: Path, count: int) -> Path:
    """Write images of noise into a folder that is named after the bucket, in ``folder``; return ``folder``."""
    from PIL import Image

    random = np.random.default_rng(0)
    (folder / BUCKET).mkdir(parents=True)
    for number in range(count):
        Image.fromarray(random.integers(0, 255, (32, 32, 3), np.uint8)).save(folder / BUCKET / f"{number:06d}.jpg")
    return folder


def _ours(table: pa.Table, target: Path) -> None:
    hop.prepare(table, target, hop.Images(SIZE), partitions=PARTITIONS, workers=WORKERS, quiet=True)


def _by_hand(table: pa.Table, target: Path) -> None:
    target.mkdir()
    rows = table.to_pylist()
    pieces = [rows[start : start + 1024] for start in range(0, len(rows), 1024)]
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as processes:
        found = list(processes.map(_decoded, pieces))
    images = np.concatenate([images for images, _ in found])
    labels = np.concatenate([labels for _, labels in found])
    homes = np.random.default_rng(0).permutation(len(images)) % PARTITIONS
    for number in range(PARTITIONS):
        some = homes == number
        np.savez(target / f"{number}.npz", image=images[some], label=labels[some])


def _decoded(rows: Sequence[dict[str, Any]]) -> tuple[Any, Any]:
    import s3fs
    from PIL import Image

    files = s3fs.S3FileSystem()

    def fetched(row: dict[str, Any]) -> bytes:
        return bytes(files.cat_file(row["image"], max_concurrency=1))  # one request instead of two

    def decoded(content: bytes) -> Any:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize(SIZE[::-1], Image.Resampling.BILINEAR))

    with ThreadPoolExecutor(THREADS) as threads:
        contents = list(threads.map(fetched, rows))
    return np.stack([decoded(content) for content in contents]), np.array([int(row["label"]) for row in rows])
