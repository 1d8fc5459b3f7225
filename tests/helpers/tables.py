"""Rows of every kind, and ways to compare what comes back, for the tests of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.data import Dataset
from hopfleet.data.columns import ELEMENTS

DTYPES = [name for name in ELEMENTS if name != "bfloat16"]


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random bits seen as numbers, so that NaN payloads, infinities and extremes are among them."""
    numpy = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * numpy.itemsize
    return np.frombuffer(random.bytes(count), numpy).reshape(shape)


def every_kind(rows: int, seed: int = 0) -> dict[str, Any]:
    """Columns of every kind."""
    random = np.random.default_rng(seed)
    ragged = np.empty(rows, object)
    images = np.empty(rows, object)
    for i in range(rows):
        ragged[i] = random.integers(0, 99, random.integers(0, 5)).astype(np.int32)
        images[i] = random.random((random.integers(1, 4), 2, random.integers(1, 4))).astype(np.float32)
    return {
        "id": np.arange(rows),
        "x": numbers("float32", (rows, 3, 2), seed),
        "flag": numbers("bool", (rows,), seed),
        "wave": numbers("complex64", (rows, 2), seed),
        "tokens": ragged,
        "image": images,
        "text": [("" if i % 5 == 0 else "é漢" * (i % 3) + f"row {i}") for i in range(rows)],
        "blob": [bytes(random.bytes(i % 4)) for i in range(rows)],
    }


def rows_of(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for i in range(len(next(iter(columns.values())))):
        yield {name: column[i] for name, column in columns.items()}


def stored(dataset: Dataset) -> dict[str, list[Any]]:
    """All rows of a data set, partition after partition."""
    columns: dict[str, list[Any]] = {name: [] for name in dataset.columns}
    for partition in range(len(dataset)):
        for batch in dataset.batches(partition, batch_size=7):
            assert list(batch) == list(columns)
            for name, values in batch.items():
                columns[name].extend(values)
    return columns


def bits(value: Any) -> Any:
    """What must be the same of two values: type, shape and every bit."""
    if isinstance(value, (str, bytes)):
        return value
    array = np.asarray(value)
    return str(array.dtype), array.shape, array.tobytes()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
