"""Whether a source has changed is decided by its rows, not by the times of its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.errors import DataChanged


def prepared(tmp_path: Path, **options: Any) -> Any:
    return hop.prepare(tmp_path / "a.csv", tmp_path / "set", partitions=2, **options)


@pytest.mark.parametrize("split", [None, {"train": 0.5, "valid": 0.5}])
def test_a_copy_of_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: dict[str, float] | None
) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{n}\n" for n in range(20)))
    prepared(tmp_path, split=split)
    inodes = {path: path.stat().st_ino for path in (tmp_path / "set").rglob("*.arrow")}
    shutil.copy(tmp_path / "a.csv", tmp_path / "copy.csv")
    (tmp_path / "copy.csv").rename(tmp_path / "a.csv")
    prepared(tmp_path, split=split)
    assert {path: path.stat().st_ino for path in (tmp_path / "set").rglob("*.arrow")} == inodes
    monkeypatch.setattr("hopfleet.data.etl.preparing.Preparation", None)  # the next call prepares nothing
    prepared(tmp_path, split=split)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "set"]


def test_other_rows_of_the_same_size_and_time_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n2\n3\n")
    prepared(tmp_path)
    before = path.stat()
    path.write_text("x\n1\n2\n4\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(DataChanged, match=r"differs \(source\)"):
            prepared(tmp_path)
    prepared(tmp_path, overwrite=True)


def test_other_statistics_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("part,x\ntrain,1\ntrain,2\nvalid,3\nvalid,4\n")
    options: Any = {"recipe": hop.Tabular({"x": hop.Number()}), "split": hop.Split(column="part")}
    hop.prepare(path, tmp_path / "set", partitions=1, **options)
    path.write_text("part,x\ntrain,1\ntrain,5\nvalid,3\nvalid,4\n")
    with pytest.raises(DataChanged):
        hop.prepare(path, tmp_path / "set", partitions=1, **options)
