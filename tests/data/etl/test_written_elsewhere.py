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


def test_marks_between_thousands(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text('n,price,text\n12,3.25,a\n999,"1,000",b\n"1,234,567","12,000.50","1,5"\n', encoding="utf-8")
    found = rows(path, tmp_path, thousands=",", types={"text": "string"})
    assert found["n"] == [12, 999, 1234567] and found["price"] == [3.25, 1000.0, 12000.5] and found["text"][2] == "1,5"
    typed = rows(path, tmp_path, thousands=",", types={"n": "float64", "price": "float64", "text": "string"})
    assert typed["n"] == [12.0, 999.0, 1234567.0] and typed["price"] == [3.25, 1000.0, 12000.5]
    path.write_text("n;price\n2;3\n1.234;1\u202f234,5\n", encoding="utf-8")
    assert rows(path, tmp_path, decimal=",", thousands=".", types={"price": "string"})["n"] == [2, 1234]
    assert rows(path, tmp_path, decimal=",", thousands=" ", types={"n": "string"})["price"] == [1234.5, 3.0]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('n\n"1,234"\n5\n', "thousands=',', or decimal=','"),
        ('n\n"1,5"\n"2,25"\n', "decimal=','"),
        ("n\n1.234,5\n5\n", "thousands='.', decimal=','"),
        ("n\n1 234\n5\n", "thousands=' '"),
    ],
)
def test_numbers_with_marks_are_no_texts(text: str, options: str, tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=f"column 'n' has '.*' among numbers; say how they are written.*{options}"):
        rows(path, tmp_path, delimiter=";" if '"' not in text else "")
    assert rows(path, tmp_path, delimiter=";" if '"' not in text else "", types={"n": "string"})["n"][0].startswith("1")


def test_whole_numbers_keep_all_digits(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text("n,x\n18446744073709551615,1e20\n9223372036854775809,3\n7,0.5\n", encoding="utf-8")
    found = rows(path, tmp_path)
    assert found["n"] == [7, 9223372036854775809, 18446744073709551615] and found["x"] == [0.5, 3.0, 1e20]
    path.write_text("n\n18446744073709551616\n1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 2: column 'n' has 18446744073709551616 among numbers with more digits"):
        rows(path, tmp_path)
    assert rows(path, tmp_path, types={"n": "string"})["n"] == ["1", "18446744073709551616"]


def test_whole_numbers_of_several_blocks_keep_all_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.data.etl.reading.BLOCK_BYTES", 64)
    wanted = [*range(40), *range(2**64 - 4, 2**64), *range(40, 60)]
    (tmp_path / "raw.csv").write_text("n\n" + "".join(f"{n}\n" for n in wanted), encoding="utf-8")
    assert rows(tmp_path / "raw.csv", tmp_path)["n"] == sorted(wanted)
    (tmp_path / "raw.csv").write_text("n\n" + "".join(f"{n}\n" for n in [-1, *wanted]), encoding="utf-8")
    with pytest.raises(DataError):
        rows(tmp_path / "raw.csv", tmp_path)
