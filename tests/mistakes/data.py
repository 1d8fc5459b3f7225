"""Mistakes in the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import hopfleet as hop
from hopfleet.errors import DataError, UsageError
from tests.helpers.mistakes import Mistake, TrialFailed, Warned, fit, shown, task


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
    Mistake("a data set that is a number", lambda: hop.open_dataset(3), DataError, ("folder=3", "'data/train'")),  # type: ignore[arg-type]
    Mistake(
        "a number of partitions in another library",
        lambda: hop.partition({"x": [1, 2]}, "data", n_partitions=2),  # type: ignore[call-arg]
        TypeError,
        ("'n_partitions'", "did you mean 'partitions'?"),
    ),
    Mistake(
        "a data set without a folder",
        lambda: hop.partition({"x": [1, 2]}),  # type: ignore[call-arg]
        TypeError,
        ("'folder'", "it is called as partition(source, folder, ...)"),
    ),
    Mistake(
        "one capacity",
        lambda: hop.partition({"x": [1, 2]}, "data", capacities=2),  # type: ignore[arg-type]
        DataError,
        ("capacities=2", "a list with one number"),
    ),
    Mistake(
        "a seed of a data set as text",
        lambda: hop.partition({"x": [1, 2]}, "data", partitions=1, seed="x"),  # type: ignore[arg-type]
        DataError,
        ("seed='x'", "must be an integer"),
    ),
    Mistake("padding of nothing", lambda: hop.pad({"x": []}), DataError, ("names of columns", "pad(batch, 'tokens')")),
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
        "a transform that drops rows",
        lambda: shown(task(transform=lambda self, batch, rng: {name: rows[2:] for name, rows in batch.items()})),
        Warned,
        ("a batch of 8 rows into one of 6", "'x'", "means over the rows that it returns", "filter the data before"),
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
    Mistake(
        "a table as text",
        lambda: [Path("a.csv").write_text("x,y\n1,2\n", encoding="utf-8"), fit(train="a.csv")],
        UsageError,
        ("train='a.csv'", "is a file", "train=pandas.read_csv('a.csv')"),
    ),
    Mistake(
        "arrays in a file of numpy",
        lambda: [np.savez("a.npz", x=np.zeros(4)), fit(train="a.npz")],
        UsageError,
        ("train='a.npz'", "is a file", "train=dict(numpy.load('a.npz'))"),
    ),
    Mistake(
        "tensors in a file of PyTorch",
        lambda: [Path("a.pt").touch(), fit(train="a.pt")],
        UsageError,
        ("train='a.pt'", "is a file", "train=torch.load('a.pt')"),
    ),
    Mistake(
        "a data loader for validation",
        lambda: fit(valid=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)))),
        DataError,
        ("a DataLoader yields batches", "loader.dataset"),
    ),
    Mistake(
        "training data without labels",
        lambda: fit(train=np.zeros((16, 4))),
        UsageError,
        ("valid has the columns x, y", "train has x"),
    ),
    Mistake(
        "live data without a length",
        lambda: hop.live(iter([1, 2])),
        DataError,
        ("must have __len__ and __getitem__", "hop.partition"),
    ),
    Mistake(
        "features and labels to partition",
        lambda: hop.partition(np.zeros((4, 4)), np.zeros(4), "data"),  # type: ignore[call-arg,misc]
        TypeError,
        ("3 were given", "partition(source, folder, ...)"),
    ),
    Mistake(
        "a transform that renames a column",
        lambda: fit(task(transform=lambda self, batch, rng: {"image": batch["x"], "y": batch["y"]})),
        TrialFailed,
        ("'x'", "the batch has image, y"),
    ),
    Mistake(
        "a transform that shortens one column",
        lambda: fit(task(transform=lambda self, batch, rng: {**batch, "y": batch["y"][:4]})),
        TrialFailed,
        ("(8)", "(4)", "x float32 (8, 4), y int64 (4,)"),
    ),
    Mistake(
        "a folder that does not exist",
        lambda: fit(train="data/trian"),
        DataError,
        ("data/trian", "no such folder", "partition"),
    ),
    Mistake(
        "no partitions of data",
        lambda: hop.partition({"x": np.zeros(4)}, "data", partitions="4"),  # type: ignore[arg-type]
        DataError,
        ("partitions='4'", "must be an integer of at least 1"),
    ),
    Mistake(
        "columns without names",
        lambda: hop.partition({0: np.zeros(4)}, "data", partitions=1),
        DataError,
        ("column name 0", "rename the column"),
    ),
    Mistake(
        "a function as data",
        lambda: hop.partition(lambda: iter([]), "data"),
        DataError,
        ("type function", "an iterator of rows"),
    ),
    Mistake(
        "rows with different columns",
        lambda: hop.partition(iter([{"x": 1}, {"y": 2}]), "data", partitions=1),
        DataError,
        ("row 1", "['y']", "['x']", "the same columns"),
    ),
    Mistake("no rows", lambda: hop.partition(iter([]), "data"), DataError, ("is empty", "at least one row")),
    Mistake(
        "dates",
        lambda: hop.partition({"x": np.array(["2020-01-01"], "datetime64[D]")}, "data", partitions=1),
        DataError,
        ("'x'", "datetime64", "convert it to numbers"),
    ),
    Mistake(
        "validation data with other columns",
        lambda: fit(valid={"X": np.zeros((8, 4)), "y": np.zeros(8)}),
        UsageError,
        ("valid has the columns X, y", "train has x, y", "must be the same"),
    ),
    Mistake(
        "a share for validation",
        lambda: fit(valid=0.2),
        UsageError,
        ("valid=0.2", "must be data", "hop.split(source, folder, {'train': 0.8, 'valid': 0.2})"),
    ),
    Mistake(
        "augmentation in evaluation",
        lambda: fit(task(transform=lambda self, batch, rng: {**batch, "x": batch["x"] * rng.uniform()})),
        TrialFailed,
        ("rng of transform() is None in evaluation", "without augmentation"),
    ),
    Mistake(
        "a transform without rng",
        lambda: fit(task(transform=lambda self, batch: batch)),
        TrialFailed,
        ("2 positional arguments", "Hopfleet calls transform(self, batch, rng)"),
    ),
]
