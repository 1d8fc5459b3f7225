"""Small JPEGs from an S3 server to partitions of arrays, against a pool of threads and processes written by hand.

Each way gets a table of URLs and labels. Both fetch the objects with the same library, decode and resize them with
Pillow in two processes, and write eight files. The cache of fetched objects is empty each time.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hopfleet as hop
from benchmarks.row import Row, milliseconds

IMAGES, SIZE, THREADS, WORKERS, PARTITIONS = 20_000, (24, 24), 16, 2, 8
BUCKET = "images"
BAR = 0.9
PATIENCE = 60.0
PORT = 5077


def measure(quick: bool) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="etl-images-"))
    count = 64 if quick else IMAGES
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(PORT)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "HOPFLEET_HOME": str(folder / "home"),
    }
    try:
        table = _upload(count)
        times: dict[str, list[float]] = {"ours": [], "by hand": []}
        for number in range(1 if quick else 2):
            for name, run in (("ours", _ours), ("by hand", _by_hand)):
                target = folder / f"{name}-{number}"
                start = time.perf_counter()
                run(table, target)
                times[name].append(time.perf_counter() - start)
                shutil.rmtree(target)
                shutil.rmtree(folder / "home", ignore_errors=True)
        ours, other = (min(times[name]) for name in times)
        what = f"{count:,} JPEGs of 32 x 32 from a local S3 server to {PARTITIONS} partitions, {WORKERS} workers"
        compared = f"{milliseconds(other)}: threads and processes by hand"
        bar = f">= {BAR} of its speed"
        return [Row("etl_images", what, milliseconds(ours), compared, other / ours, bar, other >= BAR * ours)]
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _upload(count: int) -> pa.Table:
    """Put images into a bucket; return their URLs and labels."""
    import s3fs
    from PIL import Image

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            files = s3fs.S3FileSystem()
            files.mkdir(BUCKET)
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    random, contents = np.random.default_rng(0), {}
    for number in range(count):
        sink = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (32, 32, 3), np.uint8)).save(sink, "jpeg")
        contents[f"{BUCKET}/{number:06d}.jpg"] = sink.getvalue()
    files.pipe(contents)
    return pa.table({"image": [f"s3://{path}" for path in contents], "label": [str(n % 10) for n in range(count)]})


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
        return bytes(files.cat_file(row["image"]))

    def decoded(content: bytes) -> Any:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize(SIZE[::-1], Image.Resampling.BILINEAR))

    with ThreadPoolExecutor(THREADS) as threads:
        contents = list(threads.map(fetched, rows))
    return np.stack([decoded(content) for content in contents]), np.array([int(row["label"]) for row in rows])
