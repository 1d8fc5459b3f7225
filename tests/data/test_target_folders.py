"""The folder that a data set is written to: replaced on demand, repaired, or left alone."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopfleet.data import open_dataset, partition, partitioning
from hopfleet.errors import DataChanged, DataError
from hopfleet.support.files import workspaces
from tests.helpers.processes import run
from tests.helpers.tables import files, stored


class TestTarget:
    def test_that_is_empty_is_filled(self, tmp_path: Path) -> None:
        (tmp_path / "set").mkdir()
        assert partition({"x": [1, 2]}, tmp_path / "set", partitions=1).url == str(tmp_path / "set")

    def test_that_is_ours_is_replaced_on_demand_only(self, tmp_path: Path) -> None:
        partition({"x": [1, 2]}, tmp_path / "set", partitions=1)
        before = files(tmp_path / "set")
        with pytest.raises(DataError, match="overwrite=True"):
            partition({"x": [3, 4]}, tmp_path / "set", partitions=1)
        assert files(tmp_path / "set") == before
        dataset = partition({"x": [3, 4]}, tmp_path / "set", partitions=1, overwrite=True)
        assert stored(dataset)["x"] == [3, 4]
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    @pytest.mark.parametrize("name", ["notes.txt", "manifest.json"])
    def test_that_is_foreign_is_never_replaced(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / name).write_text('{"format": "of another program"}')
        for overwrite in (False, True):
            with pytest.raises(DataError, match="is not empty and is not a Hopfleet data set"):
                partition({"x": [1]}, tmp_path / "set", partitions=1, overwrite=overwrite)
        assert (tmp_path / "set" / name).exists()

    def test_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "set").write_text("")
        with pytest.raises(DataError, match="is a file"):
            partition({"x": [1]}, tmp_path / "set", partitions=1, overwrite=True)

    def test_keeps_the_old_data_when_the_new_fails(self, tmp_path: Path) -> None:
        partition({"x": [1, 2]}, tmp_path / "set", partitions=1)
        before = files(tmp_path / "set")

        def rows() -> Iterator[int]:
            yield from range(10)
            raise KeyError("the source broke")

        with pytest.raises(KeyError, match="the source broke"):
            partition(rows(), tmp_path / "set", partitions=1, overwrite=True)
        assert files(tmp_path / "set") == before
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def test_that_fills_meanwhile_is_left_alone(self, tmp_path: Path) -> None:
        def rows() -> Iterator[int]:
            yield from range(10)
            partition(range(3), tmp_path / "set", partitions=1)

        with pytest.raises(DataError, match="already holds a data set"):
            partition(rows(), tmp_path / "set", partitions=1)
        assert open_dataset(tmp_path / "set").rows == 3
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    @pytest.mark.parametrize("options", [{"partitions": 2}, {"capacities": [1, 2]}])
    def test_of_the_same_rows_stays_as_it_is(self, tmp_path: Path, options: dict[str, Any]) -> None:
        made = partition({"x": np.arange(10), "y": ["a", "b"] * 5}, tmp_path / "set", **options)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").iterdir()}
        stream = ({"x": i, "y": "ab"[i % 2]} for i in range(10))
        for same in ({"x": np.arange(10), "y": ["a", "b"] * 5}, stream):
            again = partition(same, tmp_path / "set", **options)
            assert (again.fingerprint, again.url) == (made.fingerprint, made.url)
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "set").iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def test_of_the_same_rows_is_repaired(self, tmp_path: Path) -> None:
        partition({"x": np.arange(10)}, tmp_path / "set", partitions=2)
        whole = files(tmp_path / "set")
        (tmp_path / "set" / "part-00000.arrow").unlink()
        part = tmp_path / "set" / "part-00001.arrow"
        part.write_bytes(part.read_bytes()[:-1] + b"?")
        partition({"x": np.arange(10)}, tmp_path / "set", partitions=2)
        assert files(tmp_path / "set") == whole

    @pytest.mark.parametrize(
        ("source", "options", "change"),
        [
            (range(12), {}, "rows 10 → 12"),
            (iter(range(12)), {}, "rows 10 → 12"),
            (range(10), {"partitions": 3}, "partitions 2 → 3"),
            (range(12), {"partitions": 3, "seed": 1}, "rows 10 → 12, partitions 2 → 3, seed 0 → 1"),
            ({"x": np.arange(10.0)}, {}, "columns x: int64 → x: float64"),
            ({"x": np.arange(10), "y": np.ones((10, 2))}, {}, r"columns x: int64 → x: int64, y: float64\[2\]"),
            (range(1, 11), {}, "the contents of rows"),
            (range(10), {"partitions": None, "capacities": [1, 4]}, r"partition sizes \[5, 5\] → \[2, 8\]"),
        ],
    )
    def test_of_other_rows_says_what_differs(
        self, tmp_path: Path, source: Any, options: dict[str, Any], change: str
    ) -> None:
        partition(range(10), tmp_path / "set", partitions=2)
        before = files(tmp_path / "set")
        with pytest.raises(
            DataChanged, match=rf"already holds a data set that differs \({change}\); pass overwrite=True"
        ):
            partition(source, tmp_path / "set", **{"partitions": 2} | options)
        assert files(tmp_path / "set") == before
        assert [path.name for path in tmp_path.iterdir()] == ["set"]

    def test_whose_manifest_is_damaged_is_replaced_only_if_asked(self, tmp_path: Path) -> None:
        partition(range(10), tmp_path / "set", partitions=2)
        path = tmp_path / "set" / "manifest.json"
        path.write_text(path.read_text().replace('"rows": 10', '"rows": 11'))
        with pytest.raises(DataError, match=r"is damaged .* pass overwrite=True"):
            partition(range(10), tmp_path / "set", partitions=2)
        assert partition(range(10), tmp_path / "set", partitions=2, overwrite=True).rows == 10

    @pytest.mark.parametrize("step", ["new_folder", "write_partition"])
    def test_that_cannot_be_written_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        def refuse(*arguments: Any, **how: Any) -> None:
            raise OSError(
                errno.EACCES if step == "new_folder" else errno.ENOSPC, os.strerror(errno.EACCES), "somewhere"
            )

        place = workspaces if step == "new_folder" else partitioning
        monkeypatch.setattr(place, step, refuse)
        remedy = "change its permissions, or give another" if step == "new_folder" else "make room on that disk"
        with pytest.raises(DataError, match=rf"{tmp_path}: cannot be written.* \(Permission denied\); {remedy}"):
            partition({"x": [1]}, tmp_path / "set", partitions=1)
        assert not list(tmp_path.iterdir())

    def test_whose_parent_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match="cannot be created"):
            partition({"x": [1]}, tmp_path / "file" / "set", partitions=1)

    def test_of_a_killed_call_is_not_there_and_the_next_sweeps(self, tmp_path: Path) -> None:
        code = f"""
import os, signal
from hopfleet.data import partition, sources, spill
sources.CHUNK_ROWS, spill.MEMORY_BYTES = 10, 100
def rows():
    yield from range(1000)
    os.kill(os.getpid(), signal.SIGKILL)
partition(rows(), {str(tmp_path / "set")!r}, partitions=2)
"""
        assert run(code).returncode == -signal.SIGKILL
        (left,) = tmp_path.iterdir()
        assert left.name.startswith(".set.partial-")
        with pytest.raises(DataError, match="no such folder"):
            open_dataset(tmp_path / "set")

        def rows() -> Iterator[int]:
            yield from range(10)
            assert not left.exists()
            with pytest.raises(DataError, match="empty"):  # it sweeps too, and must leave the folder of this call alone
                partition(iter([]), tmp_path / "set")

        assert partition(rows(), tmp_path / "set", partitions=2).rows == 10
        assert [path.name for path in tmp_path.iterdir()] == ["set"]
