"""Parsing: pieces of text files become chunks of typed columns.

A piece is what one worker parses in one go: a range of bytes of a plain file, or a whole file that is compressed or far
away. Rows that cannot be parsed are kept apart with their lines.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.columns import check_names
from hopfleet.data.convert import number_array
from hopfleet.data.etl.blocks import BLOCK_BYTES, Block, cut_blocks, row_lines
from hopfleet.data.etl.chunks import (
    Chunk,
    Failure,
    is_number,
    lacking,
    opened_parquet,
    read_batches,
    save_table,
)
from hopfleet.data.etl.listing import Files, Found, open_stream
from hopfleet.errors import DataError, describe

MOSTLY = 0.9
"""Share of numbers among the texts of a column from which on the other texts count as mistakes."""

HEADER_BYTES = 1 << 20
"""Bytes of the longest header."""

LOOKED_AT = 1000
"""Texts of a column of a chunk that are looked at to find that out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that one worker parses: bytes from ``start`` to ``stop``, or to the end if that is None."""

    file: Found
    files: Files
    start: int = 0
    stop: int | None = None
    line: int = 1
    names: tuple[str, ...] = ()
    wanted: frozenset[str] | None = None  #: columns to convert; None for all


def cut_pieces(files: Files, found: Sequence[Found], wanted: frozenset[str] | None) -> Iterator[Piece]:
    """Yield the pieces of files that must be parsed."""
    for file in found:
        plain = not file.is_remote and not file.compression and file.format != "webdataset"
        if not plain or file.size <= BLOCK_BYTES:
            yield Piece(file, files, wanted=wanted)
            continue
        names: tuple[str, ...] = ()
        with open_stream(file) as stream:
            for block in cut_blocks(stream, file.path, quoted=file.format in ("csv", "tsv")):
                if file.format in ("csv", "tsv") and not names:
                    names, block = take_header(block, files, file)
                yield Piece(file, files, block.start, block.start + len(block.data), block.line, names, wanted)


def expected_pieces(found: Sequence[Found]) -> int:
    """Return about how many pieces files have."""
    return sum(1 if file.compression or file.is_remote else -(-file.size // BLOCK_BYTES) for file in found)


def take_header(block: Block, files: Files, file: Found) -> tuple[tuple[str, ...], Block]:
    """Return the names in the first row of a CSV file, and the block without that row."""
    ends = block.data.find(b"\n")
    if not block.data or block.data.isspace():
        raise DataError(f"{file.path}: has no header; the first line must name the columns")
    text = block.data[:HEADER_BYTES].decode("utf-8-sig", errors="replace")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(files, file))
    names = next(row for row in reader if row)
    taken = reader.line_num
    for _ in range(taken - 1):
        ends = block.data.find(b"\n", ends + 1)
    cut = len(block.data) if ends < 0 else ends + 1
    try:
        checked = tuple(check_names(names))
    except DataError as error:
        raise DataError(f"{file.path}, line {block.line}: {error}") from None
    return checked, Block(block.start + cut, block.line + taken, block.data[cut:])


def parse(piece: Piece, folder: Path, name: str) -> list[Chunk]:
    """Parse a piece into Arrow files in ``folder``, whose names begin with ``name``; return the chunks."""
    chunks = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, (table, line, lines, failures) in enumerate(_tables(piece)):
        path = folder / f"{name}-{number:05d}.arrow"
        save_table(table, path)
        beside = ""
        if lines is not None and len(lines) and not np.array_equal(lines, lines[0] + np.arange(len(lines))):
            beside = str(path.with_suffix(".npy"))
            np.save(beside, lines)
        elif lines is not None and len(lines):
            line = int(lines[0])
        kept = (str(path), 0, table.num_rows, table.schema, lacking(table), piece.file.path, line, beside, failures)
        chunks.append(Chunk("arrow", *kept, origin=(parse, piece, folder, name), home=int(name)))
    return chunks


Parsed = tuple[pa.Table, int, Any, tuple[Failure, ...]]
"""A table, the line of its first row, the lines of all rows or None, and the rows that could not be parsed."""


def _tables(piece: Piece) -> Iterator[Parsed]:
    if piece.file.format == "webdataset":
        yield from _samples(piece)
        return
    parsers = {"csv": _csv, "tsv": _csv, "json": _json, "text": _text}
    names = piece.names
    for block in _blocks(piece):
        if piece.file.format in ("csv", "tsv") and not names:
            names, block = take_header(block, piece.files, piece.file)
        if block.data and not block.data.isspace():
            yield parsers[piece.file.format](block, piece, names)


def _blocks(piece: Piece) -> Iterator[Block]:
    with open_stream(piece.file) as stream:
        if piece.stop is not None:
            stream.seek(piece.start)
            yield Block(piece.start, piece.line, stream.read(piece.stop - piece.start))
        else:
            yield from cut_blocks(stream, piece.file.path, quoted=piece.file.format in ("csv", "tsv"))


# ----------------------------------------------------------------------------------------------------------------- CSV


def _delimiter(files: Files, file: Found) -> str:
    return files.delimiter or ("\t" if file.format == "tsv" else ",")


def _csv(block: Block, piece: Piece, names: tuple[str, ...]) -> Parsed:
    from pyarrow import csv as arrow_csv

    file, odd = piece.file.path, []

    def refuse(row: Any) -> str:
        odd.append(row)
        return "skip"

    wanted = piece.wanted
    types = {name: kind for name, kind in _types(piece.files, names, file).items() if wanted is None or name in wanted}
    options = arrow_csv.ConvertOptions(
        column_types={name: pa.string() for name in types},  # converted below, where rows can be named
        null_values=[*arrow_csv.ConvertOptions().null_values, *piece.files.missing],
        strings_can_be_null=True,
        include_columns=None if wanted is None else [name for name in names if name in wanted] or list(names[:1]),
    )
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block.data),
            arrow_csv.ReadOptions(column_names=list(names), block_size=len(block.data) + 1, use_threads=False),
            arrow_csv.ParseOptions(
                delimiter=_delimiter(piece.files, piece.file), newlines_in_values=True, invalid_row_handler=refuse
            ),
            options,
        )
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file}, lines {block.line} to {block.last_line}: cannot be read as CSV ({error}); "
            "check the delimiter, the quotes and the encoding, which must be UTF-8"
        ) from error
    plain = not odd and block.last_line - block.line + 1 == table.num_rows
    lines = block.line + np.arange(table.num_rows) if plain else row_lines(block, quoted=True)
    failures, left = [], np.ones(len(lines), bool)
    for row in odd:
        number = row.number - 1
        left[number] = False
        fault = f"has {row.actual_columns} values instead of {row.expected_columns}; quote values with delimiters"
        failures.append(Failure(file, int(lines[number]), fault, "", row.text))
    lines = lines[left]
    if len(lines) != table.num_rows:  # quotes that the parser understands in another way
        lines = np.minimum(block.line + np.arange(table.num_rows), block.last_line)
    table, lines, more = _converted(table, types, lines, file)
    _refuse_mostly_numbers(table, types, lines, file)
    return table, block.line, lines, (*failures, *more)


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
    table: pa.Table, types: dict[str, pa.DataType], lines: Any, file: str
) -> tuple[pa.Table, Any, list[Failure]]:
    """Convert columns of text to the given types. Rows whose values cannot be converted are left out and returned."""
    failures: dict[int, Failure] = {}
    for name, kind in types.items():
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


def _refuse_mostly_numbers(table: pa.Table, types: dict[str, pa.DataType], lines: Any, file: str) -> None:
    """Raise DataError for a column of numbers in which a few texts stand."""
    for name in table.column_names:
        column = table.column(name)
        if not pa.types.is_string(column.type) or name in types:
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


# ------------------------------------------------------------------------------------------------- JSON, text and tars


def _json(block: Block, piece: Piece, names: tuple[str, ...]) -> Parsed:
    from pyarrow import json as arrow_json

    def parsed(data: bytes) -> pa.Table:
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        return arrow_json.read_json(pa.BufferReader(data), options)

    lines, file = row_lines(block, quoted=False), piece.file.path
    try:
        table = parsed(block.data)
        if table.num_rows == len(lines):
            return table, block.line, lines, ()
    except pa.ArrowInvalid:
        pass
    texts = [text for text in block.data.split(b"\n") if text.strip()]
    failures, good, left = [], [], []
    for line, text in zip(lines.tolist(), texts, strict=False):
        try:
            if not isinstance(json.loads(text), dict):
                raise ValueError('must be an object, as in {"x": 1}')
            good.append(text)
            left.append(line)
        except ValueError as error:
            failures.append(Failure(file, line, f"is not a JSON object ({error})", "", text.decode(errors="replace")))
    try:
        table = parsed(b"\n".join(good) + b"\n")
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file}, lines {block.line} to {block.last_line}: a key has values of different types ({error}); "
            "give each key values of one type"
        ) from error
    return table, block.line, np.array(left), tuple(failures)


def _text(block: Block, piece: Piece, names: tuple[str, ...]) -> Parsed:
    rows = [text.removesuffix(b"\r") for text in block.data.split(b"\n")]
    try:
        texts = [text.decode() for text in rows if text]
    except UnicodeDecodeError as error:
        where = f"{piece.file.path}, lines {block.line} to {block.last_line}"
        raise DataError(f"{where}: is not UTF-8 ({error}); convert the file") from error
    return pa.table({"text": pa.array(texts, pa.string())}), block.line, row_lines(block, quoted=False), ()


def _samples(piece: Piece) -> Iterator[Parsed]:
    """Yield the samples of a WebDataset tar: files that share a name are the columns of a row."""
    rows: list[dict[str, Any]] = []
    size, first, number = 0, 1, 0
    try:
        with open_stream(piece.file) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                key, _, column = name.partition(".")
                key = f"{folder}/{key}" if folder else key
                if not rows or rows[-1]["key"] != key:
                    if size > BLOCK_BYTES:
                        yield _sample_table(rows, piece, first), first, None, ()
                        rows, size, first = [], 0, number + 1
                    rows.append({"key": key})
                    number += 1
                content = tar.extractfile(member)
                assert content is not None
                rows[-1][column] = content.read()
                size += member.size
    except (tarfile.TarError, OSError, EOFError) as error:
        where = f"{piece.file.path}, after row {number}"
        raise DataError(f"{where}: is not a readable tar ({describe(error)}); restore the file") from error
    if rows:
        yield _sample_table(rows, piece, first), first, None, ()


def _sample_table(rows: list[dict[str, Any]], piece: Piece, first: int) -> pa.Table:
    names = list(rows[0])
    for number, row in enumerate(rows, first):
        if row.keys() != rows[0].keys():
            raise DataError(
                f"{piece.file.path}, row {number}: sample {row['key']!r} has {sorted(row.keys() - {'key'})}, others "
                f"have {names[1:]}; give every sample the same files"
            )
    kinds = {name: pa.string() if name == "key" else pa.large_binary() for name in names}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


# ------------------------------------------------------------------------------------------- files that need no parsing


def stored_chunks(file: Found) -> list[Chunk]:
    """Return the chunks of a Parquet or Arrow file, whose rows are read where they are."""
    try:
        if file.format == "parquet":
            with opened_parquet(file.path) as opened:
                schema, metadata = opened.schema_arrow, opened.metadata
                counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
                nulls = [_group_nulls(metadata.row_group(number), schema) for number in range(metadata.num_row_groups)]
        else:
            batches = read_batches(file.path)
            schema = batches[0].schema if batches else pa.schema([])
            counts = [batch.num_rows for batch in batches]
            nulls = [lacking(pa.Table.from_batches([batch])) for batch in batches]
    except (pa.ArrowException, OSError) as error:
        kind = "a Parquet file" if file.format == "parquet" else "an Arrow file"
        raise DataError(f"{file.path}: cannot be read as {kind} ({describe(error)}); restore the file") from error
    chunks, line = [], 1
    for part, (rows, lack) in enumerate(zip(counts, nulls, strict=True)):
        if rows:
            chunks.append(Chunk(file.format, file.path, part, rows, schema, lack, file.path, line))
            line += rows
    return chunks


def _group_nulls(group: Any, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of a row group that may lack values, by its statistics."""
    found = []
    for number in range(group.num_columns):
        column = group.column(number)
        name = column.path_in_schema.partition(".")[0]
        missing = None if column.statistics is None else column.statistics.null_count
        if schema.field(name).nullable and missing != 0:
            found.append(name)
    return tuple(dict.fromkeys(found))
