"""The rows of all folds, each as prepared for the model that has not been trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopfleet.data.dataset import Dataset
from hopfleet.data.manifest import Manifest


class Unseen(Dataset):
    """The partitions of a data set that was prepared with folds, each as in the data set of the fold it belongs to."""

    def __init__(self, whole: Dataset) -> None:
        self._whole = whole
        folds = [whole.folds[partition % len(whole.folds)] for partition in range(len(whole))]
        parts = tuple(fold.manifest.partitions[partition] for partition, fold in enumerate(folds))
        super().__init__(whole._folder, Manifest(whole.manifest.columns, parts, whole.seed))
        self._each = folds

    def __reduce__(self) -> tuple[Any, ...]:
        return Unseen, (self._whole,)

    def probe(self) -> None:
        for fold in self._whole.folds:
            fold.probe()

    def check(self, *, checksums: bool = False) -> None:
        """Check the data sets of all folds."""
        for fold in self._whole.folds:
            fold.check(checksums=checksums)

    def fetch(self, partition: int) -> None:
        self._each[self._index(partition)].fetch(partition)

    def file(self, partition: int) -> Path:
        return self._each[self._index(partition)].file(partition)

    def copied(self) -> Dataset:
        return Unseen(self._whole.copied())


def unseen(whole: Dataset) -> Dataset:
    """Return the rows as the models of their folds see them, which were not trained on them."""
    return Unseen(whole) if whole.folds else whole
