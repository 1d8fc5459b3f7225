"""Data of an experiment: the same rows stay as they are, and other rows are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopfleet.errors import DataChanged
from hopfleet.experiment.resources import partitioned


def test_the_same_rows_are_partitioned_once(tmp_path: Path) -> None:
    rows = {"x": np.arange(300.0), "y": np.arange(300) % 2}
    first = partitioned(rows, tmp_path / "data" / "train", partitions=None, seed=0)
    written = (tmp_path / "data" / "train" / "manifest.json").stat().st_mtime_ns
    again = partitioned(rows, tmp_path / "data" / "train", partitions=None, seed=0)
    assert again.fingerprint == first.fingerprint
    assert partitioned(first, tmp_path / "unused", partitions=None, seed=0) is first
    assert (tmp_path / "data" / "train" / "manifest.json").stat().st_mtime_ns == written
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["train"]


def test_other_rows_are_named(tmp_path: Path) -> None:
    partitioned({"x": np.arange(300.0)}, tmp_path / "train", partitions=2, seed=0)
    with pytest.raises(DataChanged) as refused:
        partitioned({"x": np.arange(310.0)}, tmp_path / "train", partitions=4, seed=0)
    assert refused.value.changes == ["rows 300 → 310", "partitions 2 → 4"]
    with pytest.raises(DataChanged) as refused:
        partitioned({"x": np.arange(1.0, 301.0)}, tmp_path / "train", partitions=2, seed=0)
    assert refused.value.changes == ["the contents of rows"]
