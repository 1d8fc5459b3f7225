"""Padding: rows of different lengths as one array, with a mask of the values that count."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopfleet.data.columns import Array
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError


@explained
def pad(batch: dict[str, Any], *columns: str, value: float = 0, to_multiple_of: int = 1) -> dict[str, Any]:
    """Return a batch in which the rows of some columns are padded at their ends to one array.

    For each column, such as "tokens", the result has a second one, "tokens_mask", of shape (rows, length): True for
    values of the row, False for padding. ``to_multiple_of`` rounds the length up, so that fewer different shapes occur.
    Dimensions after the first are padded, too, if they differ. Use ``pad`` in the task's ``transform``.
    """
    if not isinstance(batch, dict) or not columns:
        raise DataError("pad(): must be given a batch, which is a dict, and names of columns: pad(batch, 'tokens')")
    if not isinstance(to_multiple_of, int) or to_multiple_of < 1:
        raise DataError(f"to_multiple_of={to_multiple_of!r}: must be an integer of at least 1")
    padded = dict(batch)
    for name in columns:
        if name not in batch:
            raise DataError(f"pad(batch, {name!r}): there is no such column; the batch has {', '.join(batch)}")
        rows = batch[name]
        if not all(isinstance(row, np.ndarray) and row.ndim for row in rows):
            raise DataError(f"pad(batch, {name!r}): must be a column of arrays with at least one dimension")
        padded[name], padded[f"{name}_mask"] = _padded(rows, value, to_multiple_of)
    return padded


def _padded(rows: list[Array] | Array, value: float, multiple: int) -> tuple[Array, Array]:
    shapes = np.array([row.shape for row in rows], np.int64)  # (rows, dimensions)
    longest, *others = shapes.max(axis=0).tolist()
    length = -(-longest // multiple) * multiple
    array = np.full((len(rows), length, *others), value, rows[0].dtype)
    for target, row in zip(array, rows, strict=True):
        target[tuple(map(slice, row.shape))] = row
    return array, np.arange(length) < shapes[:, :1]
