"""Parsing: pieces of text files become chunks of typed columns.

A piece is what one worker parses in one go: a range of bytes of a plain file, or a whole file that is compressed or far
away. Rows that cannot be parsed are kept apart with their lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.etl.blocks import BLOCK_BYTES, Block, cut_blocks, even_size, row_lines, with_line_feeds
from hopfleet.data.etl.chunks import Chunk, Parsed, lacking, opened_parquet, read_batches, save_table
from hopfleet.data.etl.csv_header import Header, take_header
from hopfleet.data.etl.csv_rows import Expected, parse_csv
from hopfleet.data.etl.json_arrays import as_lines, is_array
from hopfleet.data.etl.json_rows import parse_objects, parse_texts
from hopfleet.data.etl.listing import Files, SourceFile, open_stream
from hopfleet.data.etl.memory import Memory
from hopfleet.data.etl.recipe import Recipe
from hopfleet.data.etl.tabular import coded
from hopfleet.data.etl.tars import samples
from hopfleet.data.etl.work import fit_early
from hopfleet.errors import DataError, describe
from hopfleet.support.files import make_folder


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that one worker parses: bytes from ``start`` to ``stop``, or to the end if that is None."""

    file: SourceFile
    files: Files
    start: int = 0
    stop: int | None = None
    line: int = 1
    feeds: int | None = None  #: line feeds in these bytes, if their number is known
    header: Header | None = None
    expected: Expected = field(default_factory=Expected)


def cut_pieces(files: Files, found: Sequence[SourceFile], expected: Expected) -> Iterator[Piece]:
    """Yield the pieces of files that must be parsed."""
    for file in found:
        plain = not (file.is_remote or file.compression or file.encoding) and file.format != "webdataset"
        if not plain or file.size <= BLOCK_BYTES:
            yield Piece(file, files, expected=expected)
            continue
        header: Header | None = None
        with open_stream(file) as stream:
            size = even_size(file.size)
            for block in cut_blocks(stream, file.path, quoted=file.format in ("csv", "tsv"), size=size):
                if file.format == "json" and is_array(block):
                    yield Piece(file, files, expected=expected)
                    break
                if file.format in ("csv", "tsv") and header is None:
                    header, block = take_header(block, files, file)
                stop = block.start + len(block.data)
                yield Piece(file, files, block.start, stop, block.line, block.feeds, header, expected)


def expected_pieces(found: Sequence[SourceFile]) -> int:
    """Return about how many pieces files have."""
    return sum(1 if file.compression or file.is_remote else -(-file.size // BLOCK_BYTES) for file in found)


def header_of(files: Files, file: SourceFile) -> Header:
    """Return the header of a CSV file."""
    with open_stream(file) as stream:
        block = next(iter(cut_blocks(stream, file.path, quoted=True)))
        return take_header(block, files, file)[0]


def parse(
    piece: Piece, folder: Path, name: str, memory: Memory | None = None, recipe: Recipe | None = None
) -> list[Chunk]:
    """Parse a piece into Arrow files in ``folder``, whose names begin with ``name``; return the chunks.

    Where there is room in ``memory``, a table stays there. Chunks have the statistics of ``recipe``.
    """
    chunks = []
    make_folder(folder)
    for number, (table, line, lines, failures) in enumerate(_tables(piece)):
        path = folder / f"{name}-{number:05d}.arrow"
        stored = coded(table, recipe)
        held = None if memory is None else memory.hold(stored, stored.nbytes)
        if held is None:
            save_table(stored, path)
        beside = ""
        if lines is not None and len(lines) and not np.array_equal(lines, lines[0] + np.arange(len(lines))):
            beside = str(path.with_suffix(".npy"))
            np.save(beside, lines)
        elif lines is not None and len(lines):
            line = int(lines[0])
        kept = (str(path), 0, table.num_rows, table.schema, lacking(table), piece.file.path, line, beside, failures)
        sparse = piece.file.format == "json"
        chunk = Chunk("arrow", *kept, origin=(parse, piece, folder, name), home=int(name), held=held, sparse=sparse)
        fitted = None if recipe is None else fit_early(replace(chunk, table=stored, held=None), recipe)
        chunks.append(replace(chunk, fitted=fitted))
    return chunks


def first_table(piece: Piece) -> pa.Table | None:
    """Return the first rows of a piece."""
    return next((table for table, *_ in _tables(piece)), None)


def _tables(piece: Piece) -> Iterator[Parsed]:
    if piece.file.format == "webdataset":
        yield from samples(piece.file)
        return
    header, table, blanks = piece.header, piece.file.format in ("csv", "tsv"), piece.expected.blanks
    for block in _to_last_row(piece) if blanks else _blocks(piece):
        if piece.file.format == "json" and is_array(block):
            data, lines = as_lines(block.data, piece.file.path)
            if len(lines):
                yield parse_objects(Block(0, 1, data), piece.file.path, lines)
            continue
        if table and header is None:
            header, block = take_header(block, piece.files, piece.file)
        if not (block.data.strip(b"\r\n") if blanks else block.data.strip()):
            continue
        if header is not None:
            yield parse_csv(block, piece.file.path, piece.files, header, piece.expected)
        elif piece.file.format == "json":
            yield parse_objects(block, piece.file.path, row_lines(block, quoted=False, blanks=blanks))
        else:
            yield parse_texts(block, piece.file.path, blanks)


def _to_last_row(piece: Piece) -> Iterator[Block]:
    """Yield the blocks of a piece without the blank lines at the end of the file."""
    blocks = _blocks(piece)
    block = next(blocks, None)
    for following in blocks:
        if block is not None:
            yield block
        block = following
    if block is not None and (piece.stop is None or piece.stop >= piece.file.size):
        block = Block(block.start, block.line, block.data.rstrip(b"\r\n") + b"\n")
    if block is not None:
        yield block


def _blocks(piece: Piece) -> Iterator[Block]:
    with open_stream(piece.file) as stream:
        if piece.stop is not None:
            stream.seek(piece.start)
            data = stream.read(piece.stop - piece.start)
            data = with_line_feeds(data, quoted=piece.file.format in ("csv", "tsv"))
            yield Block(piece.start, piece.line, data, piece.feeds)
            return
        blocks = cut_blocks(stream, piece.file.path, quoted=piece.file.format in ("csv", "tsv"))
        first = next(blocks, None)
        if first is not None and piece.file.format == "json" and is_array(first):
            yield Block(0, 1, b"".join([first.data, *(block.data for block in blocks)]), None)
        elif first is not None:
            yield first
            yield from blocks


# ------------------------------------------------------------------------------------------- files that need no parsing


def stored_chunks(file: SourceFile) -> list[Chunk]:
    """Return the chunks of a Parquet or Arrow file, whose rows are read where they are."""
    try:
        if file.format == "parquet":
            with opened_parquet(file.path) as opened:
                schema, metadata = opened.schema_arrow, opened.metadata
                _check_names(schema, file)
                counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
                nulls = [_group_nulls(metadata.row_group(number), schema) for number in range(metadata.num_row_groups)]
        else:
            batches = read_batches(file.path)
            schema = batches[0].schema if batches else pa.schema([])
            _check_names(schema, file)
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


def _check_names(schema: pa.Schema, file: SourceFile) -> None:
    if twice := next((name for name in schema.names if schema.names.count(name) > 1), None):
        raise DataError(f"{file.path}: column name {twice!r}: used twice; rename one of the two columns")


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
