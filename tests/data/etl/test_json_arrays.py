"""Files that hold one JSON array of objects."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfleet as hop
from hopfleet.data.etl import reading
from hopfleet.data.etl.json_arrays import as_lines
from hopfleet.errors import DataError

ROWS = [{"n": number, "text": f'line {number}\nand \u2028 more, [ {{ " é'} for number in range(40)]


def prepared(path: Path, tmp_path: Path, **options: Any) -> hop.Dataset:
    made: hop.Dataset = hop.prepare(path, tmp_path / "set", partitions=1, overwrite=True, **options)
    return made


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_rows_are_those_of_the_array(
    indent: int | None, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 256)  # a plain file this long is cut into pieces
    path = tmp_path / f"rows.{ending}"
    text = "\ufeff " + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    data = prepared(path, tmp_path)
    rows = data.head(data.rows)
    found = dict(zip(rows["n"].tolist(), rows["text"], strict=True))
    assert [found[number] for number in range(40)] == [row["text"] for row in ROWS]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none())), indent=st.sampled_from([None, 1])
)
def test_any_array_is_read_as_json_reads_it(rows: list[Any], indent: int | None) -> None:
    data, lines = as_lines(json.dumps(rows, indent=indent, ensure_ascii=False).encode(errors="replace"), "a.json")
    wanted = json.loads(json.dumps(rows, ensure_ascii=False).encode(errors="replace"))
    assert [json.loads(line) for line in data.split(b"\n") if line] == wanted and len(lines) == len(rows)


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[\n  {"x": 1},\n  {\n    "x": 2\n  },\n\n  {"x": "two"}\n]\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"rows\.json, line 7: 'x' is a str, but in line 2 a number"):
        prepared(path, tmp_path)
    assert prepared(path, tmp_path, on_error="skip").rows == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"x": 1}\n{"x": 2}]', r"rows\.json, line 2: is not JSON \(a comma or the end of the array is missing\)"),
        ('[{"x": 1},\n{"x": ]', r"rows\.json, line 2: is not JSON \(Expecting value\)"),
        ('[{"x": 1},\n]', r"rows\.json, line 2: is not JSON"),
        ('[{"x": 1}', r"line 1: is not JSON \(a comma or the end"),
        ('[{"x": 1}]\n[]', r"rows\.json, line \d: is not JSON \(there is more after the array\)"),
        ("[]", "the source has no rows"),
        ("[ \n ]", "the source has no rows"),
        ("[", "is not JSON"),
    ],
)
def test_what_is_no_array_of_objects(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        prepared(path, tmp_path)
