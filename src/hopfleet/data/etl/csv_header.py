"""The first row of a CSV file: the names of the columns, and the character between values."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from hopfleet.data.columns import check_names
from hopfleet.data.etl.blocks import Block, count
from hopfleet.data.etl.listing import Files, SourceFile
from hopfleet.errors import DataError
from hopfleet.phrases import shown

HEADER_BYTES = 1 << 20
"""Bytes of the longest header."""

DELIMITERS = ",;\t|"
"""Characters among which the delimiter of a file is found."""

LOOKED_THROUGH = 20
"""Rows of a file that must have as many values as its header for a delimiter to be the one."""


@dataclass(frozen=True, slots=True)
class Header:
    """The names of a file's columns, and the delimiter between values."""

    names: tuple[str, ...]
    delimiter: str


def take_header(block: Block, files: Files, file: SourceFile) -> tuple[Header, Block]:
    """Return the header of a CSV file, and its first block without the row of names."""
    if not block.data or block.data.isspace():
        raise DataError(f"{file.path}: has no header; the first line must name the columns")
    text = block.data[:HEADER_BYTES].decode("utf-8-sig", errors="replace")
    delimiter = files.delimiter or _found_delimiter(text, files, file)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names = next(row for row in reader if row)
    except (csv.Error, StopIteration) as error:
        why = f" ({error})" if str(error) else ""
        raise DataError(
            f"{file.path}, line {block.line}: has no header that can be read{why}; close its quotes, and name the "
            "columns in the first line"
        ) from None
    taken = reader.line_num
    if not (files.header is None or files.header is True):
        given = tuple(files.header)
        if len(names) != len(given):
            raise DataError(
                f"header={shown(list(given))}: names {len(given)} columns, but {file.path}, line {block.line} has "
                f"{len(names)} values with the delimiter {delimiter!r}"
            )
        return Header(_checked(given, file, block), delimiter), block
    if any("\N{REPLACEMENT CHARACTER}" in name for name in names):
        raise DataError(f"{file.path}, line {block.line}: {not_utf8('the header')}")
    found = [mark for mark in DELIMITERS if mark != delimiter and mark in names[0]]
    if len(names) == 1 and found and not files.delimiter:
        raise DataError(
            f"{file.path}, line {block.line}: has a single column, {names[0]!r}; name the delimiter: "
            f"hop.Files(path, delimiter={found[0]!r}), or {delimiter!r} if there is but one column"
        )
    if files.header is None and _are_values(names):
        raise DataError(
            f"{file.path}, line {block.line}: has numbers where names of columns should be, {', '.join(names[:5])}; "
            "name the columns of a file without a header, hop.Files(path, header=['a', 'b']), or pass header=True if "
            "the numbers are names"
        )
    cut = sum(map(len, block.data[:HEADER_BYTES].splitlines(keepends=True)[:taken]))
    if taken > 1 and cut == len(block.data) and count(block.data, '"') % 2:
        raise DataError(f"{file.path}, line {block.line}: a quote is never closed; close it")
    if cut == HEADER_BYTES:
        raise DataError(f"{file.path}, line {block.line}: has a header of more than {cut:,} bytes; shorten the names")
    feeds = None if block.feeds is None else block.feeds - count(block.data[:cut], "\n")
    rest = Block(block.start + cut, block.line + taken, block.data[cut:], feeds)
    return Header(_checked(tuple(names), file, block), delimiter), rest


def _checked(names: tuple[str, ...], file: SourceFile, block: Block) -> tuple[str, ...]:
    try:
        return tuple(check_names(names))
    except DataError as error:
        raise DataError(f"{file.path}, line {block.line}: {error}") from None


def _found_delimiter(text: str, files: Files, file: SourceFile) -> str:
    """Return the delimiter that divides all of the first rows into as many values, the usual one if it does."""
    # Where fractions follow a comma, values are divided by semicolons.
    usual = "\t" if file.format == "tsv" else ";" if files.decimal == "," else ","
    fitting = [mark for mark in DELIMITERS if mark != files.decimal and _divides(text, mark)]
    return fitting[0] if usual not in fitting and len(fitting) == 1 else usual


def _divides(text: str, mark: str) -> bool:
    whole = text if text.endswith("\n") or len(text) < HEADER_BYTES else text[: text.rfind("\n") + 1]
    reader = csv.reader(io.StringIO(whole, newline=""), delimiter=mark)
    try:
        widths = {len(row) for row in islice((row for row in reader if row), 1 + LOOKED_THROUGH)}
    except csv.Error:
        return False
    return len(widths) == 1 and max(widths) > 1


def _are_values(names: Sequence[str]) -> bool:
    """Whether a first row has values, not names: numbers alone, or numbers among texts that are no series, as years."""
    numbers = [float(name) for name in names if _is_number(name)]
    if len(numbers) < 2:
        return len(numbers) == len(names) or not all(number.is_integer() for number in numbers)
    return len(numbers) == len(names) or any(one >= other for one, other in itertools.pairwise(numbers))


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return name.strip().lower().lstrip("+-") not in ("nan", "inf", "infinity")


def not_utf8(what: str) -> str:
    return f"{what} is not UTF-8; name the encoding, as in hop.Files(path, encoding='latin-1')"
