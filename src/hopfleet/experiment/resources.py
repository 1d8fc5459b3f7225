"""The data of an experiment: data sets as they are, and whatever other rows there are partitioned into its folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopfleet.data import Dataset, partition
from hopfleet.errors import UsageError

VERIFY_BYTES = 4 << 30
"""Data sets up to this size are read and compared with their checksums before work starts."""


@dataclass(frozen=True, slots=True)
class Data:
    """What an experiment trains on, and what it is judged by, if it is."""

    train: Dataset
    valid: Dataset | None

    def check(self, *, checksums: bool) -> None:
        """Raise an error unless both are whole and have the same columns. ``checksums`` reads what is not too large."""
        if self.valid is not None and self.valid.columns.keys() != self.train.columns.keys():
            mine, theirs = ", ".join(self.valid.columns), ", ".join(self.train.columns)
            raise UsageError(f"valid has the columns {mine}, train has {theirs}: they must be the same")
        for dataset in self._both():
            dataset.check(checksums=checksums and dataset.size <= VERIFY_BYTES)

    def bytes_in(self, folder: Path) -> int:
        """What of it lies in a folder."""
        return sum(dataset.size for dataset in self._both() if folder in Path(dataset.url).parents)

    def _both(self) -> list[Dataset]:
        return [self.train] if self.valid is None else [self.train, self.valid]


def fitting_partitions(source: Any) -> int:
    """How many partitions rows are divided into unless that is given: few, if there are few rows."""
    rows = _rows(source)
    return 8 if rows is None else max(1, min(8, rows // 256))


def made_of(dataset: Dataset, source: Any, *, partitions: int, seed: int) -> bool:
    """Whether a data set in a local folder comes out again if these rows are partitioned in this way."""
    folder = Path(dataset.url)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        again = partition(source, Path(beside) / folder.name, partitions=partitions, seed=seed)
        return again.fingerprint == dataset.fingerprint


def _rows(source: Any) -> int | None:
    if isinstance(source, Mapping):
        return min((len(column) for column in source.values()), default=0)
    try:
        return len(source)
    except TypeError:
        return None
