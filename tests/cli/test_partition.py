"""The command partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopfleet as hop
from tests.helpers.cli import Cli


@pytest.fixture
def rows(tmp_path: Path) -> str:
    pq.write_table(pa.table({"x": np.arange(40), "y": np.arange(40) % 2}), tmp_path / "rows.parquet")
    return "rows.parquet"


def test_partition(cli: Cli, rows: str) -> None:
    outcome = cli("partition", rows, "set")
    assert (outcome.code, outcome.err) == (0, "")
    assert "columns      x, y\n" in outcome.out
    assert "rows         40 in 8 partitions: 5, 5, 5, 5, 5, 5, 5, 5\n" in outcome.out
    assert hop.open_dataset("set").fingerprint in outcome.out


def test_the_same_as_in_python(cli: Cli, rows: str) -> None:
    outcome = cli("partition", rows, "set", "--capacities", "1,2,1", "--seed", "3", "--json")
    made = hop.partition({"x": np.arange(40), "y": np.arange(40) % 2}, "other", capacities=[1, 2, 1], seed=3)
    assert outcome.json == {
        "url": str(Path("set").resolve()),
        "rows": 40,
        "partition_rows": [10, 20, 10],
        "columns": ["x", "y"],
        "size": made.size,
        "seed": 3,
        "fingerprint": made.fingerprint,
    }


def test_a_data_set_is_replaced_only_if_asked(cli: Cli, rows: str) -> None:
    assert cli("partition", rows, "set", "--partitions", "2").code == 0
    assert cli("partition", rows, "set", "--partitions", "2").code == 0  # the same again changes nothing
    again = cli("partition", rows, "set", "--partitions", "3")
    assert again.code == 2
    assert "already holds a data set" in again.err and "partitions 2 → 3" in " ".join(again.err.split())
    assert cli("partition", rows, "set", "--partitions", "3", "--overwrite").code == 0
    assert len(hop.open_dataset("set")) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--capacities", "1,two"], "--capacities 1,two: must be numbers separated by commas, e.g. 1,2,1"),
        (["--capacities", "1,nan"], "capacities[1]=nan: must be a finite number above 0"),
        (
            ["--capacities", "1,2", "--partitions", "3"],
            "capacities=[1.0, 2.0]: must have one number for each of partitions=3",
        ),
        (["--partitions", "41"], "partitions=41: must be at most the number of rows, 40"),
    ],
)
def test_wrong_usage(cli: Cli, rows: str, options: list[str], message: str) -> None:
    outcome = cli("partition", rows, "set", *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert not Path("set").exists()
