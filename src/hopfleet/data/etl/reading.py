"""Parsing: pieces of text files become chunks of typed columns.

A piece is what one worker parses in one go: a range of bytes of a plain file, or a whole file that is compressed or far
away. Rows that cannot be parsed are kept apart with their lines.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.etl.blocks import BLOCK_BYTES, Block, cut_blocks, even_size, row_lines
from hopfleet.data.etl.chunks import Chunk, Failure, Parsed, lacking, opened_parquet, read_batches, save_table
from hopfleet.data.etl.csv_header import Header, take_header
from hopfleet.data.etl.csv_rows import BLANK, Expected, parse_csv
from hopfleet.data.etl.json_arrays import as_lines, is_array
from hopfleet.data.etl.listing import Files, SourceFile, open_stream
from hopfleet.data.etl.memory import Memory
from hopfleet.data.etl.recipe import Recipe
from hopfleet.data.etl.tabular import coded
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
        chunk = Chunk("arrow", *kept, origin=(parse, piece, folder, name), home=int(name), held=held)
        fitted = None if recipe is None else fit_early(replace(chunk, table=stored, held=None), recipe)
        chunks.append(replace(chunk, fitted=fitted))
    return chunks


def first_table(piece: Piece) -> pa.Table | None:
    """Return the first rows of a piece."""
    return next((table for table, *_ in _tables(piece)), None)


def _tables(piece: Piece) -> Iterator[Parsed]:
    if piece.file.format == "webdataset":
        yield from _samples(piece)
        return
    header, table, blanks = piece.header, piece.file.format in ("csv", "tsv"), piece.expected.blanks
    for block in _to_last_row(piece) if blanks else _blocks(piece):
        if piece.file.format == "json" and is_array(block):
            data, lines = as_lines(block.data, piece.file.path)
            if len(lines):
                yield _json(Block(0, 1, data), piece.file.path, lines)
            continue
        if table and header is None:
            header, block = take_header(block, piece.files, piece.file)
        if not (block.data.strip(b"\r\n") if blanks else block.data.strip()):
            continue
        if header is not None:
            yield parse_csv(block, piece.file.path, piece.files, header, piece.expected)
        elif piece.file.format == "json":
            yield _json(block, piece.file.path, row_lines(block, quoted=False, blanks=blanks))
        else:
            yield _text(block, piece.file.path, blanks)


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
            yield Block(piece.start, piece.line, stream.read(piece.stop - piece.start), piece.feeds)
            return
        blocks = cut_blocks(stream, piece.file.path, quoted=piece.file.format in ("csv", "tsv"))
        first = next(blocks, None)
        if first is not None and piece.file.format == "json" and is_array(first):
            yield Block(0, 1, b"".join([first.data, *(block.data for block in blocks)]), None)
        elif first is not None:
            yield first
            yield from blocks


# ------------------------------------------------------------------------------------------------- JSON, text and tars


def _json(block: Block, file: str, lines: Any) -> Parsed:
    """Parse a block with an object in each line; ``lines`` are those of the file."""
    from pyarrow import json as arrow_json

    def parsed(data: bytes) -> pa.Table:
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        return arrow_json.read_json(pa.BufferReader(data), options)

    try:
        table = parsed(block.data)
        if table.num_rows == len(lines):
            return table, block.line, lines, ()
    except pa.ArrowInvalid:
        pass
    texts = block.data.removesuffix(b"\n").split(b"\n")
    if len(texts) != len(lines):
        texts = [text for text in texts if text.strip()]
    failures, good, left, kinds = [], [], [], dict[str, tuple[str, int]]()
    for line, text in zip(lines.tolist(), texts, strict=False):
        try:
            _check_object(json.loads(text), line, kinds)
            good.append(text)
            left.append(line)
        except ValueError as error:
            words = f"is not a JSON object ({error})" if isinstance(error, json.JSONDecodeError) else str(error)
            words = words if text.strip() else BLANK
            failures.append(Failure(file, line, words, "", text.decode(errors="replace")))
    try:
        table = parsed(b"\n".join(good) + b"\n")
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file}, lines {block.line} to {block.last_line}: a key has values of different types ({error}); "
            "give each key values of one type"
        ) from error
    return table, block.line, np.array(left), tuple(failures)


def _check_object(value: Any, line: int, kinds: dict[str, tuple[str, int]]) -> None:
    """Raise ValueError unless a value is an object whose values have the types of the rows before, by ``kinds``."""
    if not isinstance(value, dict):
        raise ValueError('is not a JSON object, as in {"x": 1}')
    for key, each in value.items():
        kind = "number" if type(each) in (int, float) else type(each).__name__
        known, first = kind, line
        if each is not None:
            known, first = kinds.setdefault(key, (kind, line))
        if kind != known:
            raise ValueError(f"{key!r} is a {kind}, but in line {first} a {known}; give each key values of one type")


def _text(block: Block, file: str, blanks: bool) -> Parsed:
    rows = [text.removesuffix(b"\r") for text in block.data.removesuffix(b"\n").split(b"\n")]
    try:
        texts = [text.decode() for text in rows if text or blanks]
    except UnicodeDecodeError as error:
        where = f"{file}, lines {block.line} to {block.last_line}"
        raise DataError(f"{where}: is not UTF-8 ({error}); convert the file") from error
    return (
        pa.table({"text": pa.array(texts, pa.string())}),
        block.line,
        row_lines(block, quoted=False, blanks=blanks),
        (),
    )


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


def stored_chunks(file: SourceFile) -> list[Chunk]:
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
