"""The bad row that is named is the first one of the source, whichever worker is faster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.data.etl import blocks, reading
from hopfleet.errors import DataError

LINES = 200


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 128)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 128)


class SlowAtFirst(hop.Recipe):
    """A recipe that fails for negative numbers, later for early rows."""

    arrow = threads = True

    def apply(self, batch: Any, fitted: Any) -> Any:
        numbers = batch.column("x").to_pylist()
        if min(numbers) < 0:
            time.sleep(0.2 if min(numbers) > -20 else 0)
            raise ValueError(f"{min(numbers)} is negative")
        return {"x": numbers}


class InProcesses(SlowAtFirst):
    threads = False


def written(path: Path, bad: dict[int, str]) -> Path:
    path.write_text("x\n" + "".join(bad.get(line, str(line)) + "\n" for line in range(2, LINES)))
    return path


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("recipe", [SlowAtFirst(), pytest.param(InProcesses(), marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", [1, 4])
def test_of_several_chunks(tmp_path: Path, recipe: hop.Recipe, workers: int) -> None:
    path = written(tmp_path / "a.csv", {9: "-9", 80: "-80", 150: "-150"})
    with pytest.raises(DataError, match=r"a\.csv, line 9: .*-9 is negative"):
        hop.prepare(path, tmp_path / "set", recipe, partitions=1, workers=workers)
    with pytest.raises(DataError, match=r"more than 1 rows failed; the first: .*a\.csv, line 9: .*-9 is negative"):
        hop.prepare(path, tmp_path / "set", recipe, partitions=1, workers=workers, on_error="skip", error_limit=1)


def test_of_rows_that_cannot_be_read_and_rows_that_fail(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", {9: "-9", 20: "20,20"})
    with pytest.raises(DataError, match=r"a\.csv, line 9: .*-9 is negative"):
        hop.prepare(path, tmp_path / "set", SlowAtFirst(), partitions=1)
    path = written(tmp_path / "a.csv", {8: "8,8", 9: "-9", 20: "20,20"})
    with pytest.raises(DataError, match=r"a\.csv, line 8: has 2 values instead of 1"):
        hop.prepare(path, tmp_path / "set", SlowAtFirst(), partitions=1)


@pytest.mark.usefixtures("small_blocks")
def test_of_several_pieces_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = reading.parse_csv

    def slow_at_first(block: Any, *rest: Any) -> Any:
        time.sleep(0.2 if block.line < 30 else 0)
        return usual(block, *rest)

    monkeypatch.setattr(reading, "parse_csv", slow_at_first)
    path = written(tmp_path / "a.csv", {9: "nine", 80: "eighty"})
    with pytest.raises(DataError, match=r"a\.csv, line 9: column 'x' has 'nine' among numbers"):
        hop.prepare(path, tmp_path / "set", partitions=1, workers=4)
