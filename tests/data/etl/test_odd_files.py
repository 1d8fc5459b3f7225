"""Hostile and odd files are read right or refused in words: no value is invented, changed, dropped or shifted."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.data.etl import blocks, reading
from hopfleet.errors import HopfleetError
from tests.helpers import odd_binaries, odd_files, odd_images, odd_objects, odd_values
from tests.helpers.odd_files import Odd, text

PARTS = (odd_files, odd_objects, odd_binaries, odd_images, odd_values)
CASES: list[Odd] = [case for part in PARTS for case in part.CASES]

INSIDES = re.compile(r"Traceback|site-packages|File \"| at 0x[0-9a-f]{6}|<class ")
HOW: dict[str, Any] = {"partitions": 1, "backend": "inline", "quiet": True}


@functools.cache
def order(rows: int) -> list[int]:
    """The places to which rows are dealt in a data set of one partition."""
    with tempfile.TemporaryDirectory() as folder:
        made = hop.prepare({"row": list(range(rows))}, Path(folder) / "set", **HOW)
        return [int(row) for row in made.head(rows)["row"]]


def read(case: Odd, folder: Path) -> dict[str, list[Any]]:
    """The cells of all rows, in the order of the source."""
    (folder / "raw").mkdir(parents=True)
    case.write(folder / "raw")
    source = next((folder / "raw").iterdir()) if case.source is None else case.source(folder / "raw")
    made = hop.prepare(source, folder / "set", case.recipe, **HOW, **case.options)
    found = made.head(made.rows)
    places = sorted(range(made.rows), key=order(made.rows).__getitem__)
    return {name: [plain(values[place]) for place in places] for name, values in found.items()}


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_right_or_refused(case: Odd, tmp_path: Path) -> None:
    if not isinstance(case.expect, tuple):
        assert repr(read(case, tmp_path)) == repr(dict(case.expect))
        return
    with pytest.raises(HopfleetError) as caught:
        read(case, tmp_path)
    message = str(caught.value)
    missing = [words for words in case.expect if words not in message]
    assert not missing, message
    assert not INSIDES.search(message) and len(message) < 1500, message
    assert not (tmp_path / "set").exists()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ends", ["\r", "\r\n", "\n", "\r|\n", "\n|\r\n|\r"])
def test_line_ends_of_large_files(ends: str, tmp_path: Path) -> None:
    kinds, rows = ends.split("|"), 200
    lines = ["x,y", *(f'{row},"a{kinds[0]}{row}"' if row % 7 == 0 else f"{row},b" for row in range(rows))]
    content = "".join(line + kinds[number % len(kinds)] for number, line in enumerate(lines))
    texts = [f"a{kinds[0]}{row}" if row % 7 == 0 else "b" for row in range(rows)]
    case = text("large", content, {"x": list(range(rows)), "y": texts})
    assert read(case, tmp_path) == case.expect


@pytest.mark.usefixtures("small_blocks")
def test_keys_that_parts_of_a_file_lack(tmp_path: Path) -> None:
    rows = [{"x": row} if row < 50 or row > 90 else {"y": row, "x": row} for row in range(150)]
    case = text("sparse", "\n".join(map(json.dumps, rows)), {}, file="a.jsonl", recipe=lambda row: {"x": row["x"]})
    assert read(case, tmp_path) == {"x": list(range(150))}
    filled = hop.Tabular({"x": None, "y": hop.Number(scale=None, missing=-1.0)})
    made = read(dataclasses.replace(case, recipe=filled), tmp_path / "filled")
    assert made == {"x": list(range(150)), "y": [float(row.get("y", -1)) for row in rows]}


def test_files_of_data_that_are_left_out_are_named(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.csv").write_text("x\n1\n")
    (tmp_path / "raw" / "b.csv.xz").write_bytes(b"\xfd7zXZ\0")
    with pytest.warns(UserWarning, match=r"raw: leaves out files .*, 1, the first .*b\.csv\.xz; convert them"):
        hop.prepare(tmp_path / "raw", tmp_path / "set", **HOW)


def test_there_are_150_of_them() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 150 and len(set(names)) == len(names)
