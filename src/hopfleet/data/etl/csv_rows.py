"""Blocks of CSV files parsed into typed columns. Rows that cannot be parsed are kept apart with their lines."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.convert import number_array
from hopfleet.data.etl.blocks import Block, count, lines_and_blanks, row_lines
from hopfleet.data.etl.chunks import Failure, Parsed, is_text
from hopfleet.data.etl.csv_header import Header, not_utf8
from hopfleet.data.etl.listing import Files
from hopfleet.errors import DataError
from hopfleet.phrases import LETTERS, cut, shown

MOSTLY = 0.5
"""Share of numbers among the texts of a column from which on the other texts count as mistakes."""

LOOKED_AT = 1000
"""Texts of a column of a chunk that are looked at to find that out."""

BLANK = "is blank"
"""What is wrong with a line where a row should be."""

SPACES = " \u00a0\u202f"

BLANKS = " \t"
"""What may surround a number."""

LIKE_NUMBERS = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?", re.ASCII)
"""A number, in whatever way its fraction is written."""

ENDLESS = re.compile(r"[-+]?(inf|infinity)", re.IGNORECASE)

MARKS = re.compile(r"[-+]?\d{1,3}(?:([.,' \u00a0\u202f])\d{3})+(?:[.,]\d+)?|[-+]?\d+(,)\d+")
"""A number with marks between its thousands, or with a comma before its fraction."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of the rows of text files before they are read."""

    columns: frozenset[str] | None = None  #: those to convert; None for all
    texts: frozenset[str] = frozenset()  #: columns of text, whatever they look like
    types: Mapping[str, pa.DataType] = field(default_factory=dict)  #: those of columns in which any text is a mistake
    blanks: bool = False  #: whether blank lines are rows, but for those at the end of a file


def parse_csv(
    block: Block, file: str, files: Files, header: Header, expected: Expected
) -> Parsed:  # fmt: skip
    """Parse a block of whole rows."""
    from pyarrow import csv as arrow_csv

    odd: list[Any] = []
    names, delimiter, wanted = header.names, header.delimiter, expected.columns

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
    reading = arrow_csv.ReadOptions(column_names=list(names), block_size=len(block.data) + 1, use_threads=False)
    parsing = arrow_csv.ParseOptions(
        delimiter=delimiter,
        newlines_in_values=True,
        invalid_row_handler=refuse,
        ignore_empty_lines=not expected.blanks,
    )

    def parsed() -> pa.Table:
        odd.clear()
        return arrow_csv.read_csv(pa.BufferReader(block.data), reading, parsing, options)

    try:
        table = parsed()
        if longs := [name for name in table.column_names if name not in types and _has_long(table.column(name))]:
            options.column_types = {**options.column_types, **dict.fromkeys(longs, pa.string())}
            table = parsed()
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
    for name in longs:
        table = table.set_column(
            table.column_names.index(name), name, _whole_or_not(table.column(name), name, lines, file, files)
        )
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
    table = _without_marks(table, {*types, *expected.texts}, files)
    table, lines, more = _converted(table, types, lines, file, files)
    _refuse_mostly_numbers(table, {*types, *expected.texts}, lines, file, files)
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


def _refuse_other_encodings(table: pa.Table, lines: Any, file: str) -> None:
    """Raise DataError for a column with text that is not UTF-8, which Arrow takes for bytes."""
    for name in table.column_names:
        if pa.types.is_binary(table.schema.field(name).type):
            for row, value in enumerate(table.column(name).to_pylist()):
                if value is not None and "\N{REPLACEMENT CHARACTER}" in value.decode(errors="replace"):
                    raise DataError(f"{file}, line {int(lines[row])}: {not_utf8(f'column {name!r}')}")


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
    table: pa.Table, types: dict[str, pa.DataType], lines: Any, file: str, files: Files
) -> tuple[pa.Table, Any, list[Failure]]:
    """Convert columns of text to the given types. Rows whose values cannot be converted are left out and returned."""
    failures: dict[int, Failure] = {}
    for name, kind in types.items():
        if pa.types.is_floating(kind) or pa.types.is_integer(kind):
            plain = _plain_numbers(table.column(name), files)
            table = table.set_column(table.schema.get_field_index(name), name, plain)
        for row in bad_values(table.column(name), kind):
            error = f"column {name!r}: {shown(table.column(name)[row].as_py())} is not of type {kind}"
            failures.setdefault(row, Failure(file, int(lines[row]), error, "", table.slice(row, 1).to_pylist()[0]))
    if failures:
        left = np.delete(np.arange(table.num_rows), list(failures))
        table, lines = table.take(number_array(left)), lines[left]
    for name, kind in types.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).cast(kind))
    return table, lines, [failures[row] for row in sorted(failures)]


def _plain_numbers(column: pa.ChunkedArray, files: Files) -> pa.ChunkedArray:
    """Return texts of numbers without marks between thousands, and with a point before fractions."""
    for mark in SPACES if files.thousands == " " else files.thousands:
        column = pc.replace_substring(column, mark, "")
    column = pc.ascii_trim(column, characters=BLANKS)
    return column if files.decimal == "." else pc.replace_substring(column, files.decimal, ".")


def _without_marks(table: pa.Table, typed: set[str], files: Files) -> pa.Table:
    """Return a table whose columns of numbers with marks between their thousands are numbers."""
    if not files.thousands:
        return table
    form = _number_form(files)
    for place, name in enumerate(table.column_names):
        column = table.column(name)
        if name in typed or not pa.types.is_string(column.type):
            continue
        if pc.all(pc.match_substring_regex(column, form), min_count=1).as_py():
            plain = _plain_numbers(column, files)
            whole = not pc.any(pc.match_substring_regex(plain, "[.eE]")).as_py()
            table = table.set_column(place, name, plain.cast(pa.int64() if whole else pa.float64()))
    return table


def _has_long(column: pa.ChunkedArray) -> bool:
    """Whether a column has numbers beyond those of int64, which Arrow reads as fractions."""
    if not pa.types.is_floating(column.type) or column.null_count == len(column):
        return False
    ends = pc.min_max(column).as_py()
    return bool(max(-ends["min"], ends["max"]) >= 1 << 63)


def _number_form(files: Files) -> str:
    """Return the regular expression of numbers as files have them."""
    marks, fraction = f"[{SPACES if files.thousands == ' ' else re.escape(files.thousands)}]", re.escape(files.decimal)
    whole = rf"(\d{{1,3}}({marks}\d{{3}})+|\d+)" if files.thousands else r"\d+"
    return rf"^[ \t]*[-+]?({whole}({fraction}\d*)?|{fraction}\d+)([eE][-+]?\d+)?[ \t]*$"


def _whole_or_not(column: pa.ChunkedArray, name: str, lines: Any, file: str, files: Files) -> pa.ChunkedArray:
    """Return texts of numbers as uint64, or as fractions if one of them has a fraction or an exponent."""
    plain = _plain_numbers(column, files)
    as_text = f"read the column as text: hop.Files(..., types={{{name!r}: 'string'}})"
    if not pc.all(pc.match_substring_regex(plain, r"^[-+]?\d+$"), min_count=0).as_py():
        if odd := bad_values(plain, pa.float64()):
            raise DataError(
                f"{file}, line {int(lines[odd[0]])}: column {name!r} has {shown(column[odd[0]].as_py())}, beyond the "
                f"numbers that are stored as float64; correct the value, or {as_text}"
            )
        return plain.cast(pa.float64())
    odd = bad_values(plain, pa.uint64())
    if odd:
        raise DataError(
            f"{file}, line {int(lines[odd[0]])}: column {name!r} has {cut(column[odd[0]].as_py(), LETTERS)} among "
            f"numbers with more digits than are exact; {as_text}"
        )
    return plain.cast(pa.uint64())


def bad_values(column: pa.ChunkedArray, kind: pa.DataType, first: int = 0) -> list[int]:
    """Return the rows of a column whose values cannot be converted to a type, or are texts of numbers beyond it."""
    try:
        made = column.cast(kind)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return [first]
        half = len(column) // 2
        return bad_values(column.slice(0, half), kind, first) + bad_values(column.slice(half), kind, first + half)
    if not (pa.types.is_floating(kind) and is_text(column.type)) or not pc.any(pc.is_inf(made)).as_py():
        return []
    infinite = [row for row, there in enumerate(pc.is_inf(made).to_pylist()) if there]
    return [first + row for row in infinite if not ENDLESS.fullmatch(column[row].as_py().strip())]


def _refuse_mostly_numbers(table: pa.Table, typed: set[str], lines: Any, file: str, files: Files) -> None:
    """Raise DataError for a column of numbers in which a few texts stand."""
    form = _number_form(files)
    for name in table.column_names:
        column = table.column(name)
        if not pa.types.is_string(column.type) or name in typed:
            continue
        looked = [text.strip(BLANKS) for text in column.slice(0, LOOKED_AT).drop_null().to_pylist()]
        like = [bool(LIKE_NUMBERS.fullmatch(text) or MARKS.fullmatch(text)) for text in looked]
        if len(looked) < 2 or sum(like) < MOSTLY * len(looked):
            continue
        fine = pc.or_kleene(pc.match_substring_regex(column, form), pc.is_null(column))
        fine = pc.or_(fine, pc.match_substring_regex(column, rf"^[ \t]*{ENDLESS.pattern}[ \t]*$", ignore_case=True))
        odd = pc.index(fine, False).as_py()
        if odd < 0:
            continue
        value = column[odd].as_py()
        if marked := MARKS.fullmatch(value.strip(BLANKS)):
            _refuse_marks(name, marked, int(lines[odd]), file)
        quoted = shown(value)
        raise DataError(
            f"{file}, line {int(lines[odd])}: column {name!r} has {quoted} among numbers; correct the value, "
            f"list it as hop.Files(..., missing=[{quoted}]), or give the column a type with "
            f"hop.Files(..., types={{{name!r}: 'float64'}}) and on_error='skip', or 'string' for text"
        )


def _refuse_marks(name: str, marked: re.Match[str], line: int, file: str) -> NoReturn:
    """Raise DataError for a column in which a number has marks."""
    mark = " " if marked[1] and marked[1] in SPACES else marked[1]
    thousands, comma = f"thousands={mark!r}", "decimal=','"
    options = comma if mark is None else f"{thousands}, or {comma}" if mark == "," else thousands
    if mark == "." and "," in marked[0]:
        options = f"{thousands}, {comma}"
    raise DataError(
        f"{file}, line {line}: column {name!r} has {marked[0]!r} among numbers; say how they are written, "
        f"hop.Files(..., {options}), or give the column a type: hop.Files(..., types={{{name!r}: 'string'}})"
    )
