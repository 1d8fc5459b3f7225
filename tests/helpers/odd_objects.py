"""Odd files of JSON, of plain text, and packed ones."""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.helpers.odd_files import INF, MISSING, Odd, text

NAN = float("nan")


def lines(name: str, content: str | bytes, expect: Mapping[str, Any] | tuple[str, ...], **options: Any) -> Odd:
    return text(f"JSON: {name}", content, expect, file=options.pop("file", "a.jsonl"), **options)


def plain(name: str, content: str | bytes, expect: list[str] | tuple[str, ...], **options: Any) -> Odd:
    wanted = expect if isinstance(expect, tuple) else {"text": expect}
    return text(f"text: {name}", content, wanted, file="a.txt", **options)


def deep(times: int) -> str:
    """Objects in objects, after a row that is fine."""
    return '{"x": 1}\n' + '{"x": ' * times + "1" + "}" * times + "\n"


NO_OBJECT = 'is not a JSON object, as in {"x": 1}; correct the row'
TWICE = "has the key 'x' twice; give each key one value"
WHOLE = {"x": [1, 2]}

JSON = [
    lines("the line ends of old Macs", '{"x": 1}\r{"x": 2}\r', WHOLE),
    lines("line ends of Windows, none at the end", '{"x": 1}\r\n{"x": 2}', WHOLE),
    lines("blank lines and spaces", '\n  {"x": 1}\n\n\t{"x": 2}\n\n', WHOLE),
    lines("a byte order mark", '\ufeff{"x": 1}\n{"x": 2}\n', WHOLE),
    lines("an array with a mark", '\ufeff[{"x": 1}, {"x": 2}]', WHOLE),
    lines("two objects on a line", '{"x": 1}{"x": 2}\n', ("a.jsonl, line 1: is not a JSON object (Extra data",)),
    lines("null", 'null\n{"x": 1}\n', ("a.jsonl, line 1", NO_OBJECT)),
    lines("null in an array", '[{"x": 1}, null]', ("a.jsonl, line 1", NO_OBJECT)),
    lines("a number", '{"x": 1}\n3\n', ("a.jsonl, line 2", NO_OBJECT)),
    lines("lists", "[[1, 2], [3, 4]]", ("a.jsonl, line 1", NO_OBJECT)),
    lines("an array on a line", '{"x": 1}\n[{"x": 2}]\n', ("a.jsonl, line 2", NO_OBJECT)),
    lines("an object over several lines", '{\n"x": 1\n}\n', ("a.jsonl, line 1: is not a JSON object",)),
    lines("rows within an object", '{"data": [{"x": 1}]}', ("a.jsonl, line 1: column 'data'", "cannot be stored")),
    lines("a key that is missing", '{"x": 1, "y": "a"}\n{"x": 2}\n', ("a.jsonl, line 2: column 'y'", MISSING)),
    lines("a key that is missing in the last line", '{"x": 1, "y": "a"}\n{"x": 2}', ("line 2: column 'y'", MISSING)),
    lines("a key that is new in the last line", '{"x": 1}\n{"x": 2, "y": 3}', ("line 1: column 'y'", MISSING)),
    lines("keys in another order", '{"x": 1, "y": 2}\n{"y": 3, "x": 4}\n', {"x": [1, 4], "y": [2, 3]}),
    lines("a key twice", '{"x": 1}\n{"x": 2, "x": 3}\n', ("a.jsonl, line 2", TWICE)),
    lines("a key twice further down", '{"y": {"x": 1, "x": 1}}\n', ("a.jsonl, line 1", TWICE)),
    lines("a key without letters", '{"": 1}\n', ("a.jsonl, line 1: column name ''",)),
    lines("no keys", "{}\n{}\n", ("the source has rows without columns; give each row at least one value",)),
    lines("no rows", "[]", ("the source has no rows",)),
    lines("a line that breaks off", '{"x": 1}\n{"x": 2', ("a.jsonl, line 2: is not a JSON object",)),
    lines("an array that breaks off", '[{"x": 1},\n{"x": 2}', ("a.jsonl, line 2: is not JSON (a comma or the end",)),
    lines("a comma too many", '[{"x": 1},]', ("a.jsonl, line 1: is not JSON (", "correct it")),
    lines("two arrays", '[{"x": 1}] [{"x": 2}]', ("a.jsonl, line 1: is not JSON (there is more after the array)",)),
    lines("Python's quotes", "{'x': 1}\n", ("a.jsonl, line 1: is not a JSON object",)),
    lines("Python's words", '{"x": True}\n', ("a.jsonl, line 1: is not a JSON object",)),
    lines("comments", '{"x": 1} // one\n', ("a.jsonl, line 1: is not a JSON object",)),
    lines("leading zeros", '{"x": 01}\n', ("a.jsonl, line 1: is not a JSON object",)),
    lines("hexadecimal numbers", '{"x": 0x10}\n', ("a.jsonl, line 1: is not a JSON object",)),
    lines("underscores", '{"x": 1_000}\n', ("a.jsonl, line 1: is not a JSON object",)),
    lines("NaN and infinities", '{"x": NaN}\n{"x": -Infinity}\n{"x": 1}\n', {"x": [NAN, -INF, 1.0]}),
    lines("NaN in an array", '[{"x": NaN}, {"x": 1.5}]', {"x": [NAN, 1.5]}),
    lines("negative zeros", '{"x": -0.0}\n{"x": 5e-324}\n', {"x": [-0.0, 5e-324]}),
    lines("beyond all numbers", '{"x": 1}\n{"x": 1e400}\n', ("line 2: has 1e400, beyond", "correct the number")),
    lines("above int64", '{"x": 9223372036854775808}\n{"x": 1}\n', {"x": [2**63, 1]}),
    lines("above int64 in an array", '[{"x": 18446744073709551615}]', {"x": [2**64 - 1]}),
    lines(
        "above uint64", '{"x": 1}\n{"x": 18446744073709551616}\n', ("line 2: 'x' has 18446744073709551616", "quotes")
    ),
    lines("below int64", '{"x": -9223372036854775809}\n', ("a.jsonl, line 1: 'x' has -9223372036854775809",)),
    lines(
        "above int64 in a list", '{"x": [9223372036854775808]}\n', ("a.jsonl, line 1: 'x' has [9223372036854775808]",)
    ),
    lines("5,000 digits", '{"x": %s}\n' % ("1" * 5000), ("a.jsonl, line 1: has a number of 5,000 digits",)),
    lines("400 digits", '{"x": 1.5}\n{"x": %s}\n' % ("1" * 400), ("a.jsonl, line 2: 'x' has 1111", "in quotes")),
    lines("whole numbers and fractions", '{"x": 1}\n{"x": 2.5}\n', {"x": [1.0, 2.5]}),
    lines("numbers and truth", '{"x": true}\n{"x": 1}\n', ("line 2: 'x' is a number, but in line 1 a bool",)),
    lines("numbers and objects", '{"x": 1}\n{"x": {"a": 1}}\n', ("line 2: 'x' is a dict, but in line 1 a number",)),
    lines(
        "mixed lists", '{"x": [1]}\n{"x": [2, "a"]}\n', ("a.jsonl, line 2: does not fit the rows before", "one type")
    ),
    lines("lists of differing length", '{"x": [1, 2]}\n{"x": []}\n', {"x": [[1, 2], []]}),
    lines("uneven lists of lists", '{"x": [[1, 2], [3]]}\n', ("line 1: column 'x'", "pad them to one length")),
    lines("gaps in lists", '{"x": [1, null]}\n', ("a.jsonl, line 1: column 'x'", MISSING)),
    lines("null alone", '{"x": null}\n', ("a.jsonl, line 1: column 'x'", MISSING)),
    lines("objects in objects", '{"x": {"a": 1}}\n', ("line 1: column 'x': dtype struct<a: int64> cannot be stored",)),
    lines("5,000 brackets", "[" * 5000, ("a.jsonl, line 1: is nested too deeply; flatten it",)),
    lines("300 objects in one another", deep(300), ("a.jsonl, line 2: is nested too deeply; flatten it",)),
    lines("3,000 objects in one another", deep(3000), ("a.jsonl, line 2: is nested too deeply; flatten it",)),
    lines("many lists beside one another", '{"x": %s}\n' % ([[1]] * 200), {"x": [[[1]] * 200]}),
    lines("escapes", '{"x": "\\ud83d\\ude00\\u0000"}\n{"x": ""}\n', {"x": ["\U0001f600\0", ""]}),
    lines("half of a pair of surrogates", '{"x": "\\ud83d"}\n', ("a.jsonl, line 1: has half of a pair",)),
    lines("a line end in a text", '{"x": "a\nb"}\n', ("a.jsonl, line 1: is not a JSON object (Unterminated",)),
    lines("Latin", '{"x": "a"}\n{"x": "é"}\n'.encode("latin-1"), ("a.jsonl, line 2: the text is not UTF-8",)),
    lines("Latin that is told", '{"x": "é"}\n'.encode("latin-1"), {"x": ["é"]}, encoding="latin-1"),
    lines("UTF-16", '{"x": 1}\n'.encode("utf-16"), ("a.jsonl, line 1: is not UTF-8 but UTF-16",)),
    lines("UTF-16 that is told", '{"x": 1}\n{"x": 2}\n'.encode("utf-16"), WHOLE, encoding="utf-16"),
    lines("zero bytes after a row", '{"x": 1}\n{"x": 2}\0\n', ("a.jsonl, line 2: is not a JSON object",)),
]

TEXTS = [
    plain("line ends of old Macs", "a\rb\r", ["a", "b"]),
    plain("all line ends, none at the end", "a\r\nb\nc\rd", ["a", "b", "c", "d"]),
    plain("other separators are no line ends", "a\u2028b\x0bc\x85d\n", ["a\u2028b\x0bc\x85d"]),
    plain("a byte order mark", "\ufeffa\nb\n", ["a", "b"]),
    plain("spaces and words", "  a \nNA\n1\n", ["  a ", "NA", "1"]),
    plain("blank lines", "a\n\nb\n", ["a", "b"]),
    plain("zero bytes", "a\0b\n", ("a.txt, line 1: has bytes that are zero", "name the encoding")),
    plain("Latin", "a\né\n".encode("latin-1"), ("a.txt, line 2: the text is not UTF-8; name the encoding",)),
    plain("UTF-16", "é\n".encode("utf-16"), ("a.txt, line 1: is not UTF-8 but UTF-16",)),
    plain("UTF-16 that is told", "é\nb\n".encode("utf-16"), ["é", "b"], encoding="utf-16"),
    plain("an empty file", "", ("a.txt: is empty",)),
]


def tar(*members: tuple[str, bytes | str], keep: int | None = None, twice: bool = False) -> bytes:
    """Return a tar of files with a content, or links to a name."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    data = sink.getvalue() * (1 + twice)
    return data if keep is None else data[:keep]


def packed(name: str, data: bytes, expect: Mapping[str, Any] | tuple[str, ...], file: str = "a.tar") -> Odd:
    return text(f"packed: {name}", data, expect, file=file)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


PAIR = tar(("a.txt", b"1" * 10), ("b.txt", b"2" * 10))
GZIP = gzip.compress(b"x\n" + b"1\n" * 5000)
BROKEN = ("a.tar, after row 1: is not a readable tar", "restore the file")

PACKED = [
    packed("gzip that breaks off", GZIP[:-9], ("a.csv.gz", "cannot be read (Truncated", "restore"), "a.csv.gz"),
    packed("gzip with a wrong sum", flipped(GZIP, -6), ("a.csv.gz", "cannot be read", "restore the file"), "a.csv.gz"),
    packed("gzip and more", GZIP + b"more", ("a.csv.gz", "cannot be read", "restore the file"), "a.csv.gz"),
    packed("gzip in name only", b"x\n1\n", ("a.csv.gz", "cannot be read", "restore the file"), "a.csv.gz"),
    packed("gzip without its name", GZIP, ("a.csv: is compressed by gzip; let its name end in .gz",), "a.csv"),
    packed("gzip in capitals", gzip.compress(b"x\n1\n"), {"x": [1]}, "A.CSV.GZ"),
    packed("bzip2 in two parts", bz2.compress(b"x\n1\n") + bz2.compress(b"2\n"), {"x": [1, 2]}, "a.csv.bz2"),
    packed("xz", b"\xfd7zXZ\0", ("a.csv.xz: the ending of the name tells no format; unpack",), "a.csv.xz"),
    packed("zip", b"PK\x03\x04", ("a.zip: the ending of the name tells no format; unpack",), "a.zip"),
    packed("a CSV file in a tar", tar(("a.csv", b"x\n1\n")), {"key": ["a"], "csv": [b"x\n1\n"]}),
    packed("paths upwards", tar(("../a.txt", b"1"), ("/b.txt", b"2")), {"key": ["../a", "/b"], "txt": [b"1", b"2"]}),
    packed("a tar that ends in a file", PAIR[:1300], BROKEN),
    packed("a tar that ends in a header", PAIR[:1500], BROKEN),
    packed("a tar that ends after a file", PAIR[:1024], BROKEN),
    packed("a tar with a broken header", flipped(PAIR, 1024 + 150), BROKEN),
    packed("two tars", tar(("a.txt", b"1"), twice=True), (*BROKEN, "more after its end")),
    packed("a file twice", tar(("a.txt", b"1"), ("a.txt", b"2")), ("row 1: sample 'a': 'txt' is there twice; rename",)),
    packed(
        "a file called key", tar(("a.key", b"1")), ("a.tar, row 1", "'key' is the name of the sample; rename a.key")
    ),
    packed("a link", tar(("a.txt", "/etc/passwd"), ("b.txt", b"1")), ("a.tar, after row 0: a.txt is a link",)),
    packed(
        "a sample that lacks a file", tar(("a.x", b"1"), ("a.y", b"2"), ("b.x", b"3")), ("a.tar, row 2: sample 'b'",)
    ),
    packed("files that are apart", tar(("a.x", b"1"), ("b.x", b"3"), ("a.y", b"2")), ("a.tar, row 3: sample 'a'",)),
    packed("files without an ending", tar(("a", b"1")), ("a.tar, row 1: column name ''",)),
    packed("no tar", b"nonsense" * 100, ("a.tar, after row 0: is not a readable tar",)),
]


def several(name: str, files: Mapping[str, str], expect: Mapping[str, Any] | tuple[str, ...]) -> Odd:
    """Return the case of a folder of files."""

    def write(folder: Path) -> None:
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)

    whole: Callable[[Path], Any] = lambda folder: folder  # noqa: E731
    return Odd(f"files: {name}", write, expect, whole)


SEVERAL = [
    several("one of them from an old Mac", {"a.csv": "x\n1\n", "b.csv": "x\r2\r3\r"}, {"x": [1, 2, 3]}),
    several("one of them with a header alone", {"a.csv": "x\n1\n", "b.csv": "x\n"}, {"x": [1]}),
    several("one of them empty", {"a.csv": "x\n1\n", "b.csv": ""}, ("b.csv: is empty; remove it",)),
    several(
        "other columns", {"a.csv": "x\n1\n", "b.csv": "y\n1\n"}, ("b.csv: lacks the columns ['x']", "same columns")
    ),
    several(
        "other types", {"a.csv": "x\n1\n", "b.csv": "x\na\n"}, ("column 'x': mixes int64 in", "b.csv, line 2 ('a')")
    ),
    several("hexadecimal numbers in one of them", {"a.csv": "x\n1\n", "b.csv": "x\n1_0\n"}, ("b.csv, line 2 ('1_0')",)),
    several("hidden ones", {"a.csv": "x\n1\n", ".b.csv": "x\n2\n", ".git/c.csv": "x\n3\n"}, {"x": [1]}),
    several(
        "other formats", {"a.csv": "x\n1\n", "b.jsonl": '{"x": 2}'}, ("holds files of several formats (csv, json)",)
    ),
    several("documents beside", {"a.csv": "x\n1\n", "readme.md": "about"}, {"x": [1]}),
    several(
        "nothing", {"readme.md": "about"}, ("has no files of rows", "name the format: hop.Files(path, format=...)")
    ),
]

CASES = [*JSON, *TEXTS, *PACKED, *SEVERAL]
