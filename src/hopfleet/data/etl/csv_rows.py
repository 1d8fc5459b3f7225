"""Blocks of CSV files parsed into typed columns. Rows that cannot be parsed are kept apart with their lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import check_names
from hopfleet.data.convert import number_array
from hopfleet.data.etl.blocks import Block, count, lines_and_blanks, row_lines
from hopfleet.data.etl.chunks import Failure, Parsed, is_number
from hopfleet.data.etl.listing import Files, SourceFile
from hopfleet.errors import DataError

MOSTLY = 0.5
"""Share of numbers among the texts of a column from which on the other texts count as mistakes."""

LOOKED_AT = 1000
"""Texts of a column of a chunk that are looked at to find that out."""

HEADER_BYTES = 1 << 20
"""Bytes of the longest header."""

BLANK = "is blank"
"""What is wrong with a line where a row should be."""

OTHER_DELIMITERS = ";\t|"
"""Characters that delimit values in many files, looked for where a header seems to have a single name."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of the rows of text files before they are read."""

    columns: frozenset[str] | None = None  #: those to convert; None for all
    texts: frozenset[str] = frozenset()  #: columns of text, whatever they look like
    types: Mapping[str, pa.DataType] = field(default_factory=dict)  #: those of columns in which any text is a mistake
    blanks: bool = False  #: whether blank lines are rows, but for those at the end of a file


def take_header(block: Block, files: Files, file: SourceFile) -> tuple[tuple[str, ...], Block]:
    """Return the names in the first row of a CSV file, and the block without that row."""
    ends = block.data.find(b"\n")
    if not block.data or block.data.isspace():
        raise DataError(f"{file.path}: has no header; the first line must name the columns")
    first = block.data[: ends + 1]
    simple = not first.isspace() and b'"' not in first
    text = (first if first and simple else block.data[:HEADER_BYTES]).decode("utf-8-sig", errors="replace")
    delimiter = _delimiter(files, file)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = next(row for row in reader if row)
    taken = reader.line_num
    if any("\N{REPLACEMENT CHARACTER}" in name for name in names):
        raise DataError(f"{file.path}, line {block.line}: {_not_utf8('the header')}")
    found = [mark for mark in OTHER_DELIMITERS if mark != delimiter and mark in names[0]]
    if len(names) == 1 and found and not files.delimiter:
        raise DataError(
            f"{file.path}, line {block.line}: has a single column, {names[0]!r}; name the delimiter: "
            f"hop.Files(path, delimiter={found[0]!r}), or {delimiter!r} if there is but one column"
        )
    for _ in range(taken - 1):
        ends = block.data.find(b"\n", ends + 1)
    cut = len(block.data) if ends < 0 else ends + 1
    try:
        checked = tuple(check_names(names))
    except DataError as error:
        raise DataError(f"{file.path}, line {block.line}: {error}") from None
    feeds = None if block.feeds is None else block.feeds - count(block.data[:cut], "\n")
    return checked, Block(block.start + cut, block.line + taken, block.data[cut:], feeds)


def _delimiter(files: Files, file: SourceFile) -> str:
    # Where fractions follow a comma, values are divided by semicolons.
    return files.delimiter or ("\t" if file.format == "tsv" else ";" if files.decimal == "," else ",")


def parse_csv(
    block: Block, found: SourceFile, files: Files, names: tuple[str, ...], expected: Expected
) -> Parsed:  # fmt: skip
    """Parse a block of whole rows."""
    from pyarrow import csv as arrow_csv

    file, odd, delimiter, wanted = found.path, [], _delimiter(files, found), expected.columns

    def refuse(row: Any) -> str:
        odd.append(row)
        return "skip"

    if b'"' in block.data and count(block.data, '"') % 2 and (line := _open_quote(block, delimiter)):
        raise DataError(f"{file}, line {line}: a quote is never closed; close the quote, or double it inside a value")
    types = {name: kind for name, kind in _types(files, names, file).items() if wanted is None or name in wanted}
    options = arrow_csv.ConvertOptions(
        # Types are converted below, where rows can be named.
        column_types={name: pa.string() for name in (*types, *expected.texts)},
        null_values=[*arrow_csv.ConvertOptions().null_values, *files.missing],
        strings_can_be_null=True,
        decimal_point=files.decimal,
        include_columns=None if wanted is None else [name for name in names if name in wanted] or list(names[:1]),
    )
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block.data),
            arrow_csv.ReadOptions(column_names=list(names), block_size=len(block.data) + 1, use_threads=False),
            arrow_csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                invalid_row_handler=refuse,
                ignore_empty_lines=not expected.blanks,
            ),
            options,
        )
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file}, lines {block.line} to {block.last_line}: cannot be read as CSV ({error}); "
            "check the delimiter, the quotes and the encoding, which must be UTF-8"
        ) from error
    plain = not odd and block.last_line - block.line + 1 == table.num_rows
    lines = block.line + np.arange(table.num_rows) if plain else row_lines(block, quoted=True, blanks=expected.blanks)
    failures, left = [], np.ones(len(lines), bool)
    for row in odd:
        number = row.number - 1
        left[number] = False
        fault = f"has {row.actual_columns} values instead of {row.expected_columns}; quote values with delimiters"
        failures.append(Failure(file, int(lines[number]), fault, "", row.text))
    lines = lines[left]
    if len(lines) != table.num_rows:  # quotes that the parser understands in another way
        lines = np.minimum(block.line + np.arange(table.num_rows), block.last_line)
    _refuse_other_encodings(table, lines, file)
    if expected.blanks and len(names) > 1 and _has_blank_lines(block.data):
        _, blank = lines_and_blanks(block, quoted=True)
        if len(blank) == len(left):
            blank = blank[left]
            failures += [Failure(file, int(line), BLANK) for line in lines[blank]]
            table, lines = table.take(number_array(np.flatnonzero(~blank))), lines[~blank]
    types |= {
        name: kind
        for name, kind in expected.types.items()
        if name in table.column_names and name not in types and pa.types.is_string(table.schema.field(name).type)
    }
    table, lines, more = _converted(table, types, lines, file, files.decimal)
    _refuse_mostly_numbers(table, {*types, *expected.texts}, lines, file)
    return table, block.line, lines, (*failures, *more)


def _has_blank_lines(data: bytes) -> bool:
    return data.startswith((b"\n", b"\r\n")) or b"\n\n" in data or b"\n\r\n" in data


def _open_quote(block: Block, delimiter: str) -> int | None:
    """Return the line of a row in which a value begins with a quote that is never closed; None if there is none."""
    text = block.data.decode(errors="replace")
    reader, before = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 0
    try:
        for _ in reader:
            before = reader.line_num
    except csv.Error:  # the text ends inside quotes, a value is longer than this parser allows, or quotes are lenient
        rest = "".join(list(io.StringIO(text, newline=""))[before:])
        return block.line + before if rest.count('"') % 2 else None
    return None


def _not_utf8(what: str) -> str:
    return f"{what} is not UTF-8; name the encoding, as in hop.Files(path, encoding='latin-1')"


def _refuse_other_encodings(table: pa.Table, lines: Any, file: str) -> None:
    """Raise DataError for a column with text that is not UTF-8, which Arrow takes for bytes."""
    for name in table.column_names:
        if pa.types.is_binary(table.schema.field(name).type):
            for row, value in enumerate(table.column(name).to_pylist()):
                if value is not None and "\N{REPLACEMENT CHARACTER}" in value.decode(errors="replace"):
                    raise DataError(f"{file}, line {int(lines[row])}: {_not_utf8(f'column {name!r}')}")


def _types(files: Files, names: Sequence[str], file: str) -> dict[str, pa.DataType]:
    types = {}
    for name, alias in files.types.items():
        if name not in names:
            raise DataError(f"types={{{name!r}: ...}}: {file} has no such column; it has {', '.join(names)}")
        try:
            types[name] = pa.type_for_alias(alias)
        except ValueError:
            raise DataError(
                f"types={{{name!r}: {alias!r}}}: is not a type of Arrow; give string, int64, float64, bool or date32"
            ) from None
    return types


def _converted(
    table: pa.Table, types: dict[str, pa.DataType], lines: Any, file: str, decimal: str
) -> tuple[pa.Table, Any, list[Failure]]:
    """Convert columns of text to the given types. Rows whose values cannot be converted are left out and returned."""
    failures: dict[int, Failure] = {}
    for name, kind in types.items():
        if decimal != "." and pa.types.is_floating(kind):
            plain = pc.replace_substring(table.column(name), decimal, ".")
            table = table.set_column(table.schema.get_field_index(name), name, plain)
        for row in bad_values(table.column(name), kind):
            error = f"column {name!r}: {table.column(name)[row].as_py()!r} is not of type {kind}"
            failures.setdefault(row, Failure(file, int(lines[row]), error, "", table.slice(row, 1).to_pylist()[0]))
    if failures:
        left = np.delete(np.arange(table.num_rows), list(failures))
        table, lines = table.take(number_array(left)), lines[left]
    for name, kind in types.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).cast(kind))
    return table, lines, [failures[row] for row in sorted(failures)]


def bad_values(column: pa.ChunkedArray, kind: pa.DataType, first: int = 0) -> list[int]:
    """Return the rows of a column whose values cannot be converted to a type."""
    try:
        column.cast(kind)
        return []
    except pa.ArrowInvalid:
        if len(column) == 1:
            return [first]
    half = len(column) // 2
    return bad_values(column.slice(0, half), kind, first) + bad_values(column.slice(half), kind, first + half)


def _refuse_mostly_numbers(table: pa.Table, typed: set[str], lines: Any, file: str) -> None:
    """Raise DataError for a column of numbers in which a few texts stand."""
    for name in table.column_names:
        column = table.column(name)
        if not pa.types.is_string(column.type) or name in typed:
            continue
        looked = column.slice(0, LOOKED_AT).drop_null()
        if len(looked) < 2:
            continue
        numbers = pc.match_substring_regex(looked, r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
        if pc.sum(numbers).as_py() < MOSTLY * len(looked):
            continue
        for row in range(len(column)):
            value = column[row].as_py()
            if not is_number(value):
                raise DataError(
                    f"{file}, line {int(lines[row])}: column {name!r} has {value!r} among numbers; correct the value, "
                    f"list it as hop.Files(..., missing=[{value!r}]), or give the column a type with "
                    f"hop.Files(..., types={{{name!r}: 'float64'}}) and on_error='skip', or 'string' for text"
                )
