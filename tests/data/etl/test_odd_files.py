"""Hostile and odd files are read right or refused in words: no value is invented, changed, dropped or shifted."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.errors import HopfleetError
from tests.helpers import odd_binaries, odd_files, odd_images, odd_objects, odd_values
from tests.helpers.odd_files import Odd

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
    (folder / "raw").mkdir()
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


def test_there_are_150_of_them() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 150 and len(set(names)) == len(names)
