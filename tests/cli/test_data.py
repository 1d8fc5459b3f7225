"""The command data: what it shows, checks and compares."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.cli.app import main
from tests.helpers.cli import Cli


@pytest.fixture
def folder(cli: Cli) -> str:
    rows = {
        "x": np.array([[0.0, 1.0], [2.0, np.nan], [4.0, 5.0], [8.0, 3.0]]),
        "n": np.arange(4),
        "text": ["a", "bb", "cccc", ""],
    }
    hop.partition(rows, "set", partitions=2)
    return "set"


def test_show(cli: Cli, folder: str) -> None:
    outcome = cli("data", "show", folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert "rows         4 in 2 partitions of 2 to 2 rows\n" in outcome.out
    assert "0 to 8, mean 3.28571, 1 not finite\n" in outcome.out
    assert "lengths 0 to 4, mean 1.75\n" in outcome.out and "█" in outcome.out
    assert "\nsamples\nx     [" in outcome.out and "part-00001.arrow  2 rows, " in outcome.out
    described = cli("data", "show", folder, "--json").json
    assert sum(described["partition_sizes"]) == described["size"]
    shown = {each["name"]: each for each in described["columns"]}
    assert (shown["n"]["least"], shown["n"]["greatest"], shown["n"]["width"]) == (0, 3, 1)
    assert shown["n"]["counts"] == [1] * 4 + [0] * 12 and sum(shown["x"]["counts"]) == 7


def test_only_some_partitions_are_listed(cli: Cli) -> None:
    hop.partition({"n": np.arange(20)}, "many", partitions=20)
    out = cli("data", "show", "many").out
    assert out.count(".arrow") == 16 and out.endswith("and 4 more\n")


def test_a_picture(cli: Cli, folder: str) -> None:
    assert cli("data", "show", folder, "--plot", "columns.png").code == 0
    assert Path("columns.png").read_bytes().startswith(b"\x89PNG")


def test_check(cli: Cli, folder: str) -> None:
    outcome = cli("data", "check", folder)
    assert outcome.out == "4 rows in 2 partitions: every file is complete and as recorded\n"
    part = Path(folder) / "part-00001.arrow"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.chmod(0o600)
    part.write_bytes(content)
    outcome = cli("data", "check", folder)
    assert outcome.code == 2 and "part-00001.arrow" in outcome.err


def test_head(cli: Cli, folder: str) -> None:
    found = cli("data", "head", folder, "--rows", "2", "--json").json
    assert len(found["n"]) == 2 and {*found} == {"x", "n", "text"}
    assert cli("data", "head", folder, "--rows", "1").out.count("text") == 1
    assert "--rows 0: must be at least 1" in cli("data", "head", folder, "--rows", "0").err


def test_diff(cli: Cli, folder: str) -> None:
    assert cli("data", "diff", folder, folder).out == "the same rows in the same partitions\n"
    hop.partition({"n": np.arange(5) * 2, "z": np.zeros(5)}, "other", partitions=2)
    outcome = cli("data", "diff", folder, "other")
    assert outcome.code == 1
    assert "rows: 4 → 5\n" in outcome.out and "column n: 0 to 3, mean 1.5 → 0 to 8, mean 4\n" in outcome.out
    assert "column z is missing in" in outcome.out


def test_mistakes(cli: Cli, folder: str) -> None:
    assert "peek: must be one of show, check, head, diff" in cli("data", "peek", folder).err
    assert "compares two data sets" in cli("data", "diff", folder).err
    assert cli("data", "show", "nowhere").code == 2


def test_raw_files_show_their_first_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("n;t\n1;a\n2;b\n")
    assert main(["data", "head", str(tmp_path / "a.csv"), "--rows", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["n  int64   1", "t  string  a"]
    assert main(["data", "show", str(tmp_path / "*.csv"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["delimiter"], shown["rows"]) == (";", [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}])
    assert main(["data", "check", str(tmp_path / "a.csv")]) == 2
