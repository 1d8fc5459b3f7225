"""The command prepare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hopfleet as hop
from tests.helpers.cli import Cli


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("x,c\n" + "".join(f"{row},{'ab'[row % 2]}\n" for row in range(40)), encoding="utf-8")
    return "rows.csv"


def test_prepare(cli: Cli, rows: str) -> None:
    outcome = cli("prepare", rows, "set", "--tabular", "--partitions", "2", "--split", "train=0.5,test=0.5")
    assert outcome.code == 0 and "rows         20 in 2 partitions: 10, 10\n" in outcome.out
    assert list(hop.open_dataset("set/test").columns) == ["x", "c"]


def test_folds(cli: Cli, rows: str) -> None:
    assert cli("prepare", rows, "set", "--tabular", "--partitions", "2", "--folds", "2").code == 0
    assert len(hop.open_dataset("set").folds) == 2


def test_labels_and_splits_by_columns(cli: Cli, rows: str) -> None:
    options = ["--tabular", "--labels", "c", "--split", "train=0.5,test=0.5", "--partitions", "1"]
    outcome = cli("prepare", rows, "set", *options, "--stratify", "c", "--group", "x")
    assert outcome.code == 0 and "label c      2 classes\n" in outcome.out
    made = hop.open_dataset("set/test")
    assert sorted(made.head(20)["c"].tolist()) == [0] * 10 + [1] * 10
    assert hop.load_recipe(made).recipe.labels == ["c"]
    Path("days.csv").write_text("day,c\n02/01/2024,1\n12/31/2023,0\n", encoding="utf-8")
    assert cli("prepare", "days.csv", "days", *options, "--time", "day", "--time-format", "%m/%d/%Y").code == 0
    assert hop.open_dataset("days/train").head(1)["c"] == [0]


def test_a_recipe_of_a_file(cli: Cli, rows: str) -> None:
    Path("mine.py").write_text(
        "def double(row):\n    print('here')\n    return {'x': 2 * row['x']}\n", encoding="utf-8"
    )
    outcome = cli("prepare", rows, "set", "--recipe", "mine.py:double", "--partitions", "1", "--json")
    assert json.loads(outcome.out)["rows"] == 40
    assert sorted(hop.open_dataset("set").head(40)["x"]) == list(range(0, 80, 2))


def test_what_names_of_files_do_not_tell(cli: Cli, rows: str) -> None:
    for name, mark, said in (("odd.csv", ";", ";"), ("tabs.csv", "\t", "tab")):
        Path(name).write_text(f"zip{mark}x\n" + "".join(f"00{row}{mark}{row}\n" for row in range(4)), encoding="utf-8")
        options = ["--delimiter", said, "--types", "zip=string, x=float64", "--partitions", "1"]
        assert cli("prepare", name, f"set-{name}", *options).code == 0
        made = hop.open_dataset(f"set-{name}")
        assert min(made.head(1)["zip"]).startswith("00") and made.columns["x"].dtype == "float64"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.csv", "set"], "absent.csv: no such file or folder"),
        (["rows.csv", "set", "--split", "half"], "--split half: must be names and fractions"),
        (["rows.csv", "set", "--recipe", "none.py:x"], "no such file; give a Python file and a name in it"),
        (["rows.csv", "set", "--recipe", "r.py", "--tabular"], "--recipe and --tabular: give one of them"),
        (["rows.csv", "set", "--labels", "c"], "--labels c: goes with --tabular"),
        (["rows.csv", "set", "--time-format", "%Y"], "--time-format %Y: goes with --split"),
        (["rows.csv", "set", "--workers", "many"], "workers='many': must be 'auto'"),
        (["rows.csv", "set", "--types", "string"], "--types string: must be names and types of columns"),
        (["rows.csv", "set", "--types", "z=string"], "rows.csv has no such column; it has x, c"),
        (["rows.csv", "set", "--delimiter", ";;"], "delimiter=';;': must be one character"),
    ],
    ids=["source", "split", "recipe", "both", "labels", "format", "workers", "types", "column", "delimiter"],
)
def test_mistakes(cli: Cli, rows: str, arguments: list[str], message: str) -> None:
    outcome = cli("prepare", *arguments)
    assert outcome.code == 2 and message in " ".join(outcome.err.split())
