"""Splits: sizes, strata, groups, time, columns, and rows that leak."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfleet as hop
from hopfleet.data.etl.splitting import sizes
from hopfleet.errors import DataError
from tests.helpers.tables import stored

FRACTIONS = {"train": 0.8, "valid": 0.1, "test": 0.1}


def columns(rows: int = 200) -> dict[str, list[Any]]:
    return {
        "id": list(range(rows)),
        "label": ["ab"[row % 10 == 0] for row in range(rows)],
        "user": [f"u{row % 23}" for row in range(rows)],
        "when": [f"2024-{row * 7 % 12 + 1:02d}-{row % 28 + 1:02d}" for row in range(rows)],
    }


def rows_of(made: dict[str, hop.Dataset]) -> dict[str, dict[str, list[Any]]]:
    found = {name: stored(data) for name, data in made.items()}
    assert sorted(row for part in found.values() for row in part["id"]) == list(range(200))
    return found


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(3, 500), shares=st.lists(st.integers(1, 9), min_size=2, max_size=3))
def test_sizes_sum_to_all_rows(rows: int, shares: list[int]) -> None:
    found = sizes(rows, [share / sum(shares) for share in shares])
    assert sum(found) == rows and min(found) >= 1
    assert all(abs(size - rows * share / sum(shares)) <= 2 for size, share in zip(found, shares, strict=True))


def test_fractions_are_exact_and_depend_on_the_seed(tmp_path: Path) -> None:
    one = rows_of(hop.split(columns(), tmp_path / "one", FRACTIONS, partitions=2))
    assert {name: len(part["id"]) for name, part in one.items()} == {"train": 160, "valid": 20, "test": 20}
    other = rows_of(hop.split(columns(), tmp_path / "other", FRACTIONS, partitions=2, seed=1))
    assert one["test"]["id"] != other["test"]["id"]


def test_strata_have_the_same_shares(tmp_path: Path) -> None:
    made = rows_of(hop.split(columns(), tmp_path / "set", FRACTIONS, stratify="label", partitions=2))
    assert [Counter(part["label"]) for part in made.values()] == [
        {"a": 144, "b": 16}, {"a": 18, "b": 2}, {"a": 18, "b": 2},
    ]  # fmt: skip


def test_groups_stay_together(tmp_path: Path) -> None:
    made = rows_of(hop.split(columns(), tmp_path / "set", FRACTIONS, group="user", partitions=2))
    users = [set(part["user"]) for part in made.values()]
    assert not users[0] & users[1] and not users[0] & users[2] and not users[1] & users[2]
    assert 140 <= len(made["train"]["id"]) <= 175


def test_time_goes_forward(tmp_path: Path) -> None:
    made = rows_of(hop.split(columns(), tmp_path / "set", FRACTIONS, time="when", partitions=2))
    assert max(made["train"]["when"]) < min(made["valid"]["when"])
    assert max(made["valid"]["when"]) < min(made["test"]["when"])


@pytest.mark.parametrize("text", [False, True])
def test_rows_of_one_time_stay_together_in_the_later_split(text: bool, tmp_path: Path) -> None:
    """Twenty rows have the time at which the first split would end among them."""
    times = [1150 if 150 <= row < 170 else 1000 + row for row in range(200)]
    source = {"id": [*range(200)], "when": [str(time) for time in times] if text else times}
    made = rows_of(hop.split(source, tmp_path / "set", FRACTIONS, time="when", partitions=2))
    assert {name: len(part["id"]) for name, part in made.items()} == {"train": 150, "valid": 30, "test": 20}
    assert made["valid"]["when"].count(source["when"][150]) == 20


def test_a_data_set_can_be_split(tmp_path: Path) -> None:
    data = hop.partition(columns(), tmp_path / "data", partitions=3)
    made = rows_of(hop.split(data, tmp_path / "set", {"train": 0.5, "test": 0.5}, stratify="label", partitions=2))
    assert Counter(made["test"]["label"]) == {"a": 90, "b": 10}


def test_duplicates_across_splits_are_reported(tmp_path: Path) -> None:
    rows = {"x": [1, 2, 3, 4, 5, 1], "text": ["a", "b", "c", "d", "e", "a"], "part": ["train"] * 4 + ["test"] * 2}

    def without_part(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"], "text": row["text"]}

    with pytest.warns(UserWarning, match="1 rows of test occur in earlier splits too") as warned:
        hop.prepare(rows, tmp_path / "set", without_part, partitions=1, split=hop.Split(column="part"))
    assert [warning.filename for warning in warned] == [__file__]
    assert '"duplicates": {\n    "test": 1\n  }' in (tmp_path / "set" / "prepared.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fractions": {"a": 0.5, "b": 0.5}, "stratify": "x", "time": "y"}, "only one can decide"),
        ({"fractions": {"a": 0.5, "b": 0.5}, "column": "x"}, "leave out fractions"),
        ({"fractions": {"a": 1.5, "b": -0.5}}, "must be a fraction above 0"),
    ],
    ids=["two columns", "fractions and column", "negative"],
)
def test_a_split_that_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        hop.Split(**arguments)


@pytest.mark.parametrize("names", [("train", "valid"), ("valid", "train"), ("one", "two")])
def test_statistics_are_those_of_the_rows_for_training(names: tuple[str, str], tmp_path: Path) -> None:
    split = hop.Split(dict.fromkeys(names, 0.5), time="when")
    source = {"when": [1, 2, 3, 4], "x": [1.0, 3.0, 10.0, 20.0]}
    made = hop.prepare(source, tmp_path / "set", hop.Tabular({"x": hop.Number()}), partitions=1, split=split)
    wanted = 15.0 if names[1] == "train" else 2.0
    assert hop.load_recipe(made[names[0]]).fitted["x"]["moments"].mean == wanted
