"""Files as programs in other countries write them: encodings and decimal commas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.data.etl import reading
from hopfleet.errors import DataError


def rows(path: Path, tmp_path: Path, **options: Any) -> dict[str, list[Any]]:
    files = hop.Files(path, **options)
    data = hop.prepare(files, tmp_path / "set", partitions=1, overwrite=True)
    found = data.head(data.rows)
    order = sorted(range(data.rows), key=lambda row: found["n"][row])
    return {name: [found[name][row] for row in order] for name in found}


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252", "UTF8", "shift_jis"])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_encodings(encoding: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)  # small files are cut, too
    word = "東京" if encoding == "shift_jis" else "café ä"
    line = '{{"n": {}, "wörd": "{}"}}\n' if ending == "jsonl" else "{},{}\n"
    header = "" if ending == "jsonl" else "n,wörd\n"
    text = header + "".join(line.format(number, f"{word} {number}") for number in range(30))
    text = text.replace("ö", "o") if encoding == "shift_jis" else text
    path = tmp_path / f"raw.{ending}"
    path.write_bytes(text.encode(encoding))
    found = rows(path, tmp_path, encoding=encoding)
    name = "word" if encoding == "shift_jis" else "wörd"
    assert found[name] == [f"{word} {number}" for number in range(30)]


def test_another_encoding_makes_another_data_set(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_bytes("n,word\n1,ä\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"line 2: column 'word' is not UTF-8; name the encoding, as in hop\.Files"):
        rows(path, tmp_path)
    assert rows(path, tmp_path, encoding="latin-1")["word"] == ["ä"]
    hop.prepare(hop.Files(path, encoding="latin-1"), tmp_path / "one", partitions=1)
    with pytest.raises(DataError, match=r"one: .*other"):
        hop.prepare(hop.Files(path, encoding="cp437"), tmp_path / "one", partitions=1)


def test_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text("n;price;text\n1;2,5;a,b\n2;-1,25;c\n3;4;d\n", encoding="utf-8")
    found = rows(path, tmp_path, decimal=",", missing=["-"], types={"text": "string"})
    assert found["price"] == [2.5, -1.25, 4.0] and found["text"][:2] == ["a,b", "c"]
    typed = rows(path, tmp_path, decimal=",", types={"price": "float32", "text": "string"})
    assert typed["price"] == [2.5, -1.25, 4.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "latin-11"}, "encoding='latin-11': unknown; give a name such as 'latin-1'"),
        ({"encoding": 3}, "encoding=3: unknown"),
        ({"decimal": ";"}, "decimal=';': must be '.' or ','"),
        ({"decimal": ",", "delimiter": ","}, "decimal=',': is the delimiter, too"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        hop.Files("raw.csv", **options)


def test_bytes_that_the_encoding_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_bytes(b"n,word\n1,\x81\n")
    with pytest.raises(DataError, match=r"raw\.csv, after line 1: cannot be read"):
        rows(path, tmp_path, encoding="cp1252")
