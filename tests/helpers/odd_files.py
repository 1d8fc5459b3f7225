"""Hostile and odd files: each case writes files, and says what is read from them, or which words refuse them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hopfleet as hop


@dataclass(frozen=True)
class Odd:
    """A case: ``write`` fills an empty folder, ``source`` is what is prepared, by default its only file.

    ``expect`` has the cells of all columns, row by row, or the words of a refusal: file, row or column, and remedy.
    """

    name: str
    write: Callable[[Path], Any]
    expect: Mapping[str, Any] | tuple[str, ...]
    source: Callable[[Path], Any] | None = None
    recipe: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


def text(
    name: str, content: str | bytes, expect: Mapping[str, Any] | tuple[str, ...], *, file: str = "a.csv",
    recipe: Any = None, **options: Any,
) -> Odd:  # fmt: skip
    """Return the case of one file; ``options`` are those of ``hop.Files``."""
    data = content.encode() if isinstance(content, str) else content
    source = (lambda folder: hop.Files(folder / file, **options)) if options else (lambda folder: folder / file)
    return Odd(name, lambda folder: (folder / file).write_bytes(data), expect, source, recipe)


def column(name: str, values: list[str], expect: list[Any] | tuple[str, ...], **options: Any) -> Odd:
    """Return the case of a CSV file with the column ``x``, whose second row is line 3."""
    content = "i|x\n" + "".join(f"{row}|{value}\n" for row, value in enumerate(values))
    wanted = expect if isinstance(expect, tuple) else {"i": list(range(len(values))), "x": expect}
    return text(name, content, wanted, delimiter="|", **options)


AMONG = "among numbers; correct the value, list it as hop.Files(..., missing=["
MISSING = "missing a value; fill in the values or drop the rows"
INF = float("inf")

NUMBERS = [
    column("underscores", ["1_000", "2"], ("a.csv, line 2: column 'x' has '1_000'", AMONG)),
    column("full-width digits", ["3", "１２"], ("a.csv, line 3: column 'x' has '１２'", AMONG)),
    column("Arabic digits", ["3", "١٢"], ("a.csv, line 3: column 'x' has '١٢'", AMONG)),
    column("a no-break space after a number", ["1\u00a0", "2"], ("line 2: column 'x' has '1\\xa0'", AMONG)),
    column("a zero-width space", ["1\u200b", "2"], ("a.csv, line 2: column 'x' has", AMONG)),
    column("a minus that is no hyphen", ["1", "−5"], ("a.csv, line 3: column 'x' has '−5'", AMONG)),
    column("accountants' negatives", ["(5)", "6"], ("a.csv, line 2: column 'x' has '(5)'", AMONG)),
    column("fractions as one letter", ["½", "1"], ("a.csv, line 2: column 'x' has '½'", AMONG)),
    column("suffixes of C", ["1L", "2"], ("a.csv, line 2: column 'x' has '1L'", AMONG)),
    column("binary numbers", ["0b1", "2"], ("a.csv, line 2: column 'x' has '0b1'", AMONG)),
    column("two signs", ["++1", "2"], ("a.csv, line 2: column 'x' has '++1'", AMONG)),
    column("half an exponent", ["1", "1.5e"], ("a.csv, line 3: column 'x' has '1.5e'", AMONG)),
    column("a dash for nothing", ["-", "1"], ("a.csv, line 2: column 'x' has '-'", "missing=['-']")),
    column("a dash that is told", ["-", "1"], ("a.csv, line 2: column 'x'", MISSING), missing=["-"]),
    column("a question mark", ["?", "1"], ("a.csv, line 2: column 'x' has '?'", "missing=['?']")),
    column("None", ["None", "1"], ("a.csv, line 2: column 'x' has 'None'", "missing=['None']")),
    column("a zero byte in a number", ["1\x002", "3"], ("a.csv, line 2: column 'x' has '1\\x002'", AMONG)),
    column("hexadecimal numbers", ["0x10", "2"], [16, 2]),
    column("hexadecimal numbers and fractions", ["0x10", "2.5"], ("a.csv, line 2: column 'x' has '0x10'", AMONG)),
    column("exponents", ["1e3", "2E-3"], [1000.0, 0.002]),
    column("spaces around numbers", [" 1", "2 ", "\t3"], [1, 2, 3]),
    column("spaces around fractions", [" 1.5", "2 "], [1.5, 2.0]),
    column("spaces around huge numbers", [" 1e300", "2.5 "], [1e300, 2.5]),
    column("plus signs", ["+1", "2"], [1.0, 2.0]),
    column("points without digits beside", [".5", "1."], [0.5, 1.0]),
    column("negative zeros", ["-0.0", "1.5"], [-0.0, 1.5]),
    column("subnormal numbers", ["5e-324", "2.2250738585072014e-308"], [5e-324, 2.2250738585072014e-308]),
    column("numbers below all others", ["1e-400", "2"], [float("1e-400"), 2.0]),
    column("numbers beyond all others", ["2", "1e400"], ("line 3: column 'x' has '1e400', beyond", "correct")),
    column("negative numbers beyond all", ["-1e999", "2"], ("a.csv, line 2: column 'x' has '-1e999', beyond",)),
    column("infinities", ["inf", "-Infinity", "1"], [INF, -INF, 1.0]),
    column("beyond all, of a type", ["1e400"], ("line 2: column 'x': '1e400' is not of type double",),
           types={"x": "float64"}),
    column("beyond float32", ["1e39"], ("line 2: column 'x': '1e39' is not of type float",), types={"x": "float32"}),
    column("beyond int8", ["5", "300"], ("a.csv, line 3: column 'x': '300' is not of type int8",), types={"x": "int8"}),
    column("seventeen digits", ["0.1", "0.30000000000000004"], [0.1, 0.30000000000000004]),
    column("NaN", ["NaN", "1.5"], ("a.csv, line 2: column 'x'", MISSING)),
    column("NA of a spreadsheet", ["1", "#N/A"], ("a.csv, line 3: column 'x'", MISSING)),
    column("the largest int64", ["9223372036854775807", "1"], [2**63 - 1, 1]),
    column("above int64", ["9223372036854775808", "1"], [2**63, 1]),
    column("the largest uint64", ["18446744073709551615", "0"], [2**64 - 1, 0]),
    column("above uint64", ["1", "18446744073709551616"], ("a.csv, line 3: column 'x'", "types={'x': 'string'}")),
    column("below int64", ["-9223372036854775809", "1"], ("a.csv, line 2: column 'x'", "more digits than are exact")),
    column("large and negative", ["12345678901234567890", "-1"], ("a.csv, line 3: column 'x' has -1",)),
    column("400 digits", ["1" * 400], ("a.csv, line 2: column 'x' has 1111", "...", "types={'x': 'string'}")),
    column("identifiers as text", ["18446744073709551616", "007"], ["18446744073709551616", "007"],
           types={"x": "string"}),
    column("leading zeros, as documented", ["007", "010"], [7, 10]),
    column("decimal commas", ["1,5", "2,25"], ("a.csv, line 2: column 'x' has '1,5'", "decimal=','")),
    column("decimal commas that are told", ["1,5", "2"], [1.5, 2.0], decimal=","),
    column("huge numbers with decimal commas", ["1e300", "1,5"], [1e300, 1.5], decimal=","),
    column("points where commas are told", ["1.5", "2.25"], ("line 2: column 'x' has '1.5'", AMONG), decimal=","),
    column("thousands where commas are told", ["1.234", "2"], ("line 2: column 'x' has '1.234'", "thousands='.'"),
           decimal=","),
    column("thousands", ["1,234", "12"], ("line 2: column 'x' has '1,234'", "thousands=',', or decimal=','")),
    column("thousands that are told", ["1,234", "-12"], [1234, -12], thousands=","),
    column("thousands of some numbers", ["12", "1,234", "5"], ("a.csv, line 3: column 'x' has '1,234'",)),
    column("thousands and a word", ["1,234", "5,678", "many"], ("a.csv, line 2: column 'x' has '1,234'",)),
    column("thousands that are told and a word", ["1,234", "many"], ("line 3: column 'x' has 'many'", AMONG),
           thousands=","),
    column("thousands in wrong places", ["1,23", "5,678"], ("a.csv, line 2: column 'x' has '1,23'",), thousands=","),
    column("thousands and exponents", ["1,234", "1e5"], [1234.0, 100000.0], thousands=","),
    column("narrow spaces", ["1\u202f000", "2"], ("line 2: column 'x' has '1\\u202f000'", "thousands=' '")),
    column("narrow spaces that are told", ["1\u202f000", "2"], [1000, 2], thousands=" "),
    column("Swiss thousands", ["1'000", "2"], ("line 2: column 'x' has \"1'000\"", "thousands=\"'\"")),
    column("a word after many numbers", [*map(str, range(40)), "x"], ("a.csv, line 42: column 'x' has 'x'", AMONG)),
    column("a long word among numbers", ["1", "2", "x" * 9000], ("a.csv, line 4: column 'x' has 'xxx", "... among")),
    column("words of truth", ["true", "False", "TRUE"], [True, False, True]),
    column("words and numbers of truth", ["true", "0", "1"], [True, False, True]),
    column("yes and no", ["yes", "no"], ["yes", "no"]),
    column("truth that is missing", ["true", ""], ("a.csv, line 3: column 'x'", MISSING)),
    column("truth of a type", ["yes", "no"], ("line 2: column 'x': 'yes' is not of type bool",), types={"x": "bool"}),
    column("money", ["$5", "$6"], ["$5", "$6"]),
    column("American dates", ["01/02/2024", "12/31/2024"], ["01/02/2024", "12/31/2024"]),
    column("days that do not exist", ["2024-02-30", "2024-02-28"], ["2024-02-30", "2024-02-28"]),
    column("dates without a recipe", ["2024-01-02"], ("a.csv, line 2: column 'x'", "cannot be stored; convert it")),
]  # fmt: skip

ROWS = {"x": [1, 2], "y": ["a", "b"]}
UTF16 = ("a.csv, line 1: has bytes that are zero", "encoding='utf-16-le'")

STRUCTURE = [
    text("line ends of Windows", "x,y\r\n1,a\r\n2,b\r\n", ROWS),
    text("line ends of old Macs", "x,y\r1,a\r2,b\r", ROWS),
    text("line ends of old Macs, the last without", "x,y\r1,a\r2,b", ROWS),
    text("all line ends", "x,y\r1,a\n2,b\r\n3,c\r", {"x": [1, 2, 3], "y": ["a", "b", "c"]}),
    text("a bad row between odd line ends", "x,y\r1,a\r2\r3,b\r", ("a.csv, line 3: has 1 values instead of 2",)),
    text("line ends within quotes", 'x,y\r\n1,"a\r\nb"\r\n2,"c\rd"\r\n', {"x": [1, 2], "y": ["a\r\nb", "c\rd"]}),
    text("no end of the last line", "x,y\n1,a\n2,b", ROWS),
    text("quotes within quotes", 'x,y\n1,"a""b"\n2,""""\n', {"x": [1, 2], "y": ['a"b', '"']}),
    text("quotes within values", 'x,y\n1,5" pipe\n2,b\n', {"x": [1, 2], "y": ['5" pipe', "b"]}),
    text("a delimiter in quotes after a space", 'x,y\n1, "a,b"\n2,c\n', ("a.csv, line 2: has 3 values instead of 2",)),
    text("single quotes", "x,y\n1,'a,b'\n2,c\n", ("a.csv, line 2: has 3 values", "quote values with delimiters")),
    text("backslashes before delimiters", "x,y\n1,a\\,b\n2,c\n", ("a.csv, line 2: has 3 values instead of 2",)),
    text("backslashes before quotes", 'x,y\n1,"a\\"b"\n2,c\n', ("a.csv, line 2: a quote is never closed",)),
    text("a quote in the header", 'x,"y\n1,2\n', ("a.csv, line 1: a quote is never closed",)),
    text("blank lines", "\n\nx,y\n\n1,a\n\n\n2,b\n\n", ROWS),
    text("a line of spaces", "x,y\n  \n1,a\n", ("a.csv, line 2: has 1 values instead of 2",)),
    text("a row of delimiters", "x,y\n1,a\n,\n", ("a.csv, line 3: column 'x'", MISSING)),
    text("too few values", "x,y\n1,a\n2\n3,c\n", ("a.csv, line 3: has 1 values instead of 2",)),
    text("too many values", "x,y\n1,a,9\n2,b\n", ("a.csv, line 2: has 3 values instead of 2",)),
    text("a delimiter at each end", "x,y,\n1,a,\n", ("a.csv, line 1: column name '': must be a non-empty",)),
    text("a comment", "x,y\n# note\n1,2\n", ("a.csv, line 2: has 1 values instead of 2",)),
    text("a zero byte in a text", "x,y\n1,a\0b\n2,c\n", {"x": [1, 2], "y": ["a\0b", "c"]}),
    text("zero bytes for a row", "x,y\n\0\0\0\n2,c\n", ("a.csv, line 2: has 1 values instead of 2",)),
    text("a zero byte in the header", "x\0,y\n1,a\n", UTF16),
    text("nothing but zero bytes", b"\0" * 100, UTF16),
    text("an empty file", "", ("a.csv: is empty; remove it, or restore it",)),
    text("an empty line", "\n", ("a.csv: has no header; the first line must name the columns",)),
    text("a header alone", "x,y\n", ("the source has no rows",)),
    text("one cell", "x\n1", {"x": [1]}),
    text("one column", "x\na\nb\n", {"x": ["a", "b"]}),
    text("a very long cell", f"x,y\n1,{'a' * 3_000_000}\n2,b\n", {"x": [1, 2], "y": ["a" * 3_000_000, "b"]}),
    text("two columns of one name", "x,x\n1,2\n", ("a.csv, line 1: column name 'x': used twice; rename",)),
    text("a column without a name", "x,,z\n1,2,3\n", ("a.csv, line 1: column name '': must be",)),
    text("names that differ in case", "X,x\n1,2\n", {"X": [1], "x": [2]}),
    text("names with odd letters", '"a,b","c\nd",é/ü.shape,\U0001f600\n1,2,3,4\n',
         {"a,b": [1], "c\nd": [2], "é/ü.shape": [3], "\U0001f600": [4]}),
    text("names that are years", "x,2023,2024\n3,4,5\n", {"x": [3], "2023": [4], "2024": [5]}),
    text("names that are values", "true,nan,null\n1,2,3\n", {"true": [1], "nan": [2], "null": [3]}),
    text("a name of 5,000 letters", f"{'n' * 5000}\n1\n", {"n" * 5000: [1]}),
    text("no header, numbers alone", "1,2\n3,4\n", ("a.csv, line 1: has numbers where names", "header=['a', 'b']")),
    text("no header, a class last", "5.1,3.5,1.4,setosa\n4.9,3.0,1.4,setosa\n", ("line 1: has numbers where",)),
    text("no header, texts between", "39,Private,77516,13\n50,Public,83311,13\n", ("line 1: has numbers where names",)),
    text("no header that is told", "5.1,a\n4.9,b\n", {"x": [5.1, 4.9], "y": ["a", "b"]}, header=["x", "y"]),
    text("names of numbers that are told", "2,1\n3,4\n", {"2": [3], "1": [4]}, header=True),
    text("a wrong number of names", "1,2\n", ("names 1 columns, but", "a.csv, line 1 has 2 values"), header=["x"]),
    text("semicolons", "x;y\n1;a\n2;b\n", ROWS),
    text("tabs", "x\ty\n1\ta\n2\tb\n", ROWS),
    text("bars", "x|y\n1|a\n2|b\n", ROWS),
    text("a byte order mark", "\ufeffx,y\n1,a\n2,b\n", ROWS),
    text("UTF-16", "x,y\n1,a\n2,b\n".encode("utf-16"), ("line 1: is not UTF-8 but UTF-16", "encoding='utf-16'")),
    text("UTF-16 that is told", "x,y\n1,a\n2,b\n".encode("utf-16"), ROWS, encoding="utf-16"),
    text("UTF-16 without a mark", "x,y\n1,a\n".encode("utf-16-le"), UTF16),
    text("UTF-16 taken for Latin", "x,y\n1,a\n".encode("utf-16-le"), UTF16, encoding="latin-1"),
    text("UTF-32", "x,y\n1,a\n".encode("utf-32"), ("a.csv, line 1: is not UTF-8 but UTF-32", "encoding='utf-32'")),
    text("Latin", "x,y\n1,a\n2,é\n".encode("latin-1"), ("a.csv, line 3: column 'y' is not UTF-8; name the encoding",)),
    text("Latin that is told", "x,y\n1,é\n".encode("latin-1"), {"x": [1], "y": ["é"]}, encoding="latin-1"),
    text("Windows", "x,y\n1,€\n".encode("cp1252"), {"x": [1], "y": ["€"]}, encoding="cp1252"),
    text("Japanese", "x,y\n1,日本\n".encode("shift_jis"), {"x": [1], "y": ["日本"]}, encoding="shift_jis"),
    text("an encoding without such letters", "x,y\n1,é\n", ("a.csv, after line 1: cannot be read as ascii",
         "name another encoding"), encoding="ascii"),
    text("half of a pair of surrogates", b"x,y\n1,\xed\xa0\xbd\n", ("a.csv, line 2: column 'y' is not UTF-8",)),
    text("classes that look alike", "x\nA\n A\nA \nＡ\né\ne\u0301\n", {"x": ["A", " A", "A ", "Ａ", "é", "e\u0301"]}),
    text("a terminal's commands", "x,y\n1,\x1b[31m\n", {"x": [1], "y": ["\x1b[31m"]}),
    text("texts that mean nothing", "x,y\n1,a\n2,null\n", ("a.csv, line 3: column 'y'", MISSING)),
    text("an empty text", 'x,y\n1,""\n', ("a.csv, line 2: column 'y'", MISSING)),
    text("a type of no column", "x\n1\n", ("types={'z': ...}", "a.csv has no such column"), types={"z": "int8"}),
    text("a type of no library", "x\n1\n", ("is not a type of Arrow; give string",), types={"x": "number"}),
    text("a zip archive", b"PK\x03\x04" + b"\0" * 40, ("a.csv: is a zip archive or a workbook; unpack it",)),
    text("a Parquet file", b"PAR1" + b"\0" * 40, ("a.csv: is a Parquet file; let its name end in .parquet",)),
    text("a PDF", "%PDF-1.4\n1\n", ("a.csv: is a PDF document; export its tables",)),
    text("a pointer of Git LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n",
         ("a.csv: is a pointer of Git LFS", "git lfs pull")),
]  # fmt: skip

CASES = [*NUMBERS, *STRUCTURE]
