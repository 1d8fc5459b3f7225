"""Mistakes in the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import hopfleet as hop
from hopfleet.errors import DataError
from tests.helpers.mistakes import Mistake, TrialFailed, Warned, fit, task


class Noisy:
    """A data set with random augmentation."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return np.random.normal(size=4), row % 2


def _warned(run: Callable[[], object]) -> None:
    """Raise Warned with the first warning of ``run``."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    raise Warned(str(seen[0].message))


MISTAKES = [
    Mistake(
        "columns of different lengths",
        lambda: fit(train={"x": np.zeros(4), "y": np.zeros(5)}),
        DataError,
        ("'x' and 'y'", "4 and 5 rows"),
    ),
    Mistake(
        "a tuple of columns of different lengths",
        lambda: fit(train=(np.zeros((4, 4)), np.zeros(5))),
        DataError,
        ("'x' and 'y'", "4 and 5 rows"),
    ),
    Mistake(
        "a list of columns",
        lambda: fit(train=[np.zeros((4, 4)), np.zeros(4)]),
        DataError,
        ("shapes [4, 4], [4]", "would be read as one row each", "(X, y)"),
    ),
    Mistake(
        "a number as a column",
        lambda: fit(train={"x": np.zeros(4), "y": 1}),
        DataError,
        ("column 'y': has type int", "must be an array"),
    ),
    Mistake(
        "a mixed column",
        lambda: fit(train={"x": np.zeros((4, 4)), "y": [0, "1", 1, "?"]}),
        DataError,
        ("column 'y'", "int (rows 0, 2)", "str (rows 1, 3)", "one type"),
    ),
    Mistake(
        "a missing value among integers",
        lambda: fit(train={"x": np.zeros((4, 4)), "y": [0, None, 1, 1]}),
        DataError,
        ("column 'y': 1 of 4 rows", "fill in the values or drop the rows"),
    ),
    Mistake(
        "ragged lists inside a row",
        lambda: fit(train={"x": [[[1, 2], [3]]] * 4, "y": np.zeros(4)}),
        DataError,
        ("column 'x', row 0", "pad nested lists to one length"),
    ),
    Mistake(
        "a data loader as data",
        lambda: fit(train=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)))),
        DataError,
        ("a DataLoader yields batches", "loader.dataset"),
    ),
    Mistake(
        "a data loader as live data",
        lambda: hop.live(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)))),
        DataError,
        ("pass loader.dataset", "collate=loader.collate_fn"),
    ),
    Mistake(
        "a live data set that was opened by its folder",
        lambda: fit(train=hop.open_dataset(hop.partition(hop.live([(1.0, 1)] * 8), "live", partitions=1).url)),
        DataError,
        ("is a live data set", "hop.partition(hop.live(dataset), folder"),
    ),
    Mistake(
        "other rows into the same folder",
        lambda: [hop.partition({"x": np.zeros(rows)}, "same", partitions=2) for rows in (4, 5)],
        DataError,
        ("rows 4 → 5", "overwrite=True", "another folder"),
    ),
    Mistake(
        "a folder inside a file",
        lambda: [Path("file").touch(), hop.partition({"x": np.zeros(4)}, "file/data", partitions=1)],
        DataError,
        ("file/data: cannot be created", "give another folder"),
    ),
    Mistake(
        "a transform without return",
        lambda: fit(task(transform=lambda self, batch, rng: None)),
        TrialFailed,
        ("transform() returned None", "return the batch"),
    ),
    Mistake(
        "padding a column that does not exist",
        lambda: fit(task(transform=lambda self, batch, rng: hop.pad(batch, "tokens"))),
        TrialFailed,
        ("pad(batch, 'tokens')", "the batch has x, y"),
    ),
    Mistake(
        "an augmented data set that would be frozen",
        lambda: _warned(lambda: hop.partition(Noisy(), "frozen", partitions=1)),
        Warned,
        ("column 'x' of Noisy", "hop.live(dataset)"),
    ),
]
