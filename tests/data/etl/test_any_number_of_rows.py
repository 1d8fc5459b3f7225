"""Recipes that leave rows out, or make several rows of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.data.etl import work
from hopfleet.errors import DataError
from tests.helpers.tables import stored


def odd_ones(row: dict[str, Any]) -> Any:
    if row["n"] == 99:
        raise ValueError("no 99")
    return {"n": row["n"]} if row["n"] % 2 else []


def repeated(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(row["n"] % 3):
        yield {"n": row["n"], "part": number}


def pairs(row: dict[str, Any]) -> Any:
    return [{"n": row["n"]}, {"n": -row["n"]}]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "BATCH_ROWS", 7)


def test_rows_are_left_out_and_repeated(tmp_path: Path) -> None:
    source = {"n": list(range(50))}
    found = stored(hop.prepare(source, tmp_path / "odd", odd_ones, partitions=1))
    assert sorted(found["n"]) == list(range(1, 50, 2))
    made = stored(hop.prepare(source, tmp_path / "repeated", repeated, partitions=1))
    wanted = [(n, part) for n in range(50) for part in range(n % 3)]
    assert sorted(zip(made["n"], made["part"], strict=True)) == wanted
    assert sorted(stored(hop.prepare(source, tmp_path / "pairs", pairs, partitions=2))["n"]) == sorted(
        sign * n for n in range(50) for sign in (1, -1)
    )


def test_rows_stay_in_their_splits(tmp_path: Path) -> None:
    source = {"n": list(range(40)), "part": ["train" if n < 30 else "valid" for n in range(40)]}
    made = hop.prepare(source, tmp_path / "set", repeated, partitions=1, split=hop.Split(column="part"))
    assert sorted(stored(made["valid"])["n"]) == [n for n in range(30, 40) for _ in range(n % 3)]
    assert sorted(stored(made["train"])["n"]) == [n for n in range(30) for _ in range(n % 3)]


def test_rows_that_fail_are_still_known(tmp_path: Path) -> None:
    source = {"n": [1, 2, 99, 3, 4, 99, 5]}
    with pytest.raises(DataError, match=r"the source, row 3: ValueError: no 99"):
        hop.prepare(source, tmp_path / "set", odd_ones, partitions=1)
    made = hop.prepare(source, tmp_path / "set", odd_ones, partitions=1, on_error="keep")
    assert stored(made)["n"] == [1, 3, 5]
    failed = (tmp_path / "set" / "failed.jsonl").read_text().splitlines()
    assert ['"before": 1' in failed[0], '"before": 2' in failed[1]] == [True, True]


def test_what_is_no_row(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"returned None; return a row, as in .*, or \[\] to leave it out"):
        hop.prepare({"n": [1]}, tmp_path / "set", lambda row: None, partitions=1)
    with pytest.raises(DataError, match="must be at most the number of rows, 0"):
        hop.prepare({"n": [2, 4]}, tmp_path / "set", odd_ones, partitions=1)
    with pytest.raises(DataError, match="returned the columns"):
        hop.prepare({"n": [1]}, tmp_path / "set", lambda row: [{"a": 1}, {"b": 1}], partitions=1)
