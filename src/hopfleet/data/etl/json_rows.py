"""Blocks of JSON Lines and of plain text parsed into columns. Rows that cannot be parsed are kept apart."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopfleet.data.etl.blocks import Block, row_lines
from hopfleet.data.etl.chunks import Failure, Parsed
from hopfleet.data.etl.csv_header import not_utf8
from hopfleet.data.etl.csv_rows import BLANK
from hopfleet.errors import DataError, describe
from hopfleet.phrases import LETTERS, cut

EXACT = 1 << 63
"""From this number on, Arrow reads whole numbers of JSON as fractions."""

ENDLESS = 1 << 1023
"""From about this number on, whole numbers are infinite as fractions."""

DEEPEST = 64
"""Objects and lists that may be within one another."""

MOST_DIGITS = 4000


def parse_objects(block: Block, file: str, lines: Any) -> Parsed:
    """Parse a block with a JSON object in each line; ``lines`` are those of the file."""
    _check_utf8(block, file)
    data = block.data.removeprefix(codecs.BOM_UTF8) if not block.start else block.data
    if _is_harmless(data):  # Arrow crashes for other values, and for deep ones
        try:
            table = _parsed(data)
            if table.num_rows == len(lines):
                return _with_wholes(table, data, lines, file), block.line, lines, ()
        except pa.ArrowInvalid:
            pass
    texts = data.removesuffix(b"\n").split(b"\n")
    if len(texts) != len(lines):
        texts = [text for text in texts if text.strip()]
    failures, good, left, kinds = [], [], [], dict[str, tuple[str, int]]()
    for line, text in zip(lines.tolist(), texts, strict=False):
        try:
            _check_object(_loaded(text), line, kinds)
            good.append(text)
            left.append(line)
        except ValueError as error:
            words = f"is not a JSON object ({error})" if isinstance(error, json.JSONDecodeError) else str(error)
            words = words if text.strip() else BLANK
            failures.append(Failure(file, line, words, "", text.decode(errors="replace")))
    table = _fitting(good, left, file)
    return _with_wholes(table, b"\n".join(good), left, file), block.line, np.array(left), tuple(failures)


def parse_texts(block: Block, file: str, blanks: bool) -> Parsed:
    """Parse a block with a text in each line."""
    _check_utf8(block, file)
    data = block.data.removeprefix(codecs.BOM_UTF8) if not block.start else block.data
    rows = [text.removesuffix(b"\r") for text in data.removesuffix(b"\n").split(b"\n")]
    texts = [text.decode() for text in rows if text or blanks]
    lines = row_lines(Block(block.start, block.line, data), quoted=False, blanks=blanks)
    return pa.table({"text": pa.array(texts, pa.string())}), block.line, lines, ()


def _check_utf8(block: Block, file: str) -> None:
    if block.data.isascii():
        return
    try:
        block.data.decode()
    except UnicodeDecodeError as error:
        line = block.line + block.data.count(b"\n", 0, error.start)
        raise DataError(f"{file}, line {line}: {not_utf8('the text')}") from None


def _is_harmless(data: bytes) -> bool:
    """Whether each line that is not blank begins with a brace, and none may be nested too deeply for a parser."""
    content = np.frombuffer(data, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(content == ord("\n")) + 1])
    firsts = content[starts[starts < len(content)]]
    if (firsts != ord("{")).any() and not all(text[:1] == b"{" for line in data.split(b"\n") if (text := line.strip())):
        return False
    opened = (content == ord("{")) | (content == ord("["))
    places = np.searchsorted(np.flatnonzero(opened), np.append(starts, len(content)))
    if np.diff(places).max() <= DEEPEST:
        return True
    closed = (content == ord("}")) | (content == ord("]"))
    depths = np.cumsum(opened.astype(np.int8) - closed, dtype=np.int32)
    return bool(depths.max() - depths.min() <= DEEPEST)


def _parsed(data: bytes) -> pa.Table:
    from pyarrow import json as arrow_json

    options = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return arrow_json.read_json(pa.BufferReader(data), options)


def _loaded(text: bytes) -> Any:
    """Return the value of a line. Raise ValueError for what JSON allows and no column can hold."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique, parse_float=_finite, parse_int=_short)
        if text.count(b"{") + text.count(b"[") > DEEPEST and _depth(value) > DEEPEST:
            raise ValueError("is nested too deeply; flatten it")
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("is nested too deeply; flatten it") from None
    except UnicodeEncodeError:
        raise ValueError("has half of a pair of surrogates, which is no text; correct the text") from None
    return value


def _depth(value: Any) -> int:
    """Return how many objects and lists are within one another."""
    if isinstance(value, dict | list):
        return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"has the key {twice!r} twice; give each key one value")
    return made


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"has {cut(text, LETTERS)}, beyond the numbers that are stored as float64; correct the number")
    return value


def _short(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"has a number of {len(text):,} digits; give it as a text")
    return int(text)


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


def _fitting(texts: Sequence[bytes], lines: Sequence[int], file: str) -> pa.Table:
    """Parse objects. Raise DataError for the first one whose lists or objects have other types than those before."""
    try:
        return _parsed(b"\n".join(texts) + b"\n")
    except pa.ArrowInvalid as error:
        failed = error
    fine, odd = 0, len(texts)
    while odd - fine > 1:
        middle = (fine + odd) // 2
        try:
            _parsed(b"\n".join(texts[:middle]) + b"\n")
            fine = middle
        except pa.ArrowInvalid as error:
            odd, failed = middle, error
    raise DataError(
        f"{file}, line {lines[odd - 1]}: does not fit the rows before ({describe(failed)}); give each key values of "
        "one type"
    ) from None


def _with_wholes(table: pa.Table, data: bytes, lines: Sequence[int], file: str) -> pa.Table:
    """Return a table in which whole numbers too large for int64 are exact; refuse those beyond uint64."""
    columns = [(name, table.column(name)) for name in table.column_names]
    long = [name for name, column in columns if _is_long(column)]
    if not long:
        return table
    rows = []
    for line, text in zip(lines, (text for text in data.split(b"\n") if text.strip()), strict=True):
        try:
            rows.append(_loaded(text))
        except ValueError as error:
            raise DataError(f"{file}, line {line}: {error}") from None
    for name in long:
        values = [row.get(name) for row in rows]
        fractions = any(isinstance(value, float) for value in values)
        for line, value in zip(lines, values, strict=True):
            least = -ENDLESS if fractions else -EXACT if isinstance(value, list) else 0
            most = ENDLESS if fractions else EXACT if isinstance(value, list) else 2 * EXACT
            if any(not least <= each < most for each in _wholes(value)):
                raise DataError(
                    f"{file}, line {line}: {name!r} has {cut(str(value), LETTERS)} among numbers with more digits than "
                    "are exact; write them as texts, in quotes"
                )
        if not fractions and not any(isinstance(value, list) for value in values):
            table = table.set_column(table.column_names.index(name), name, pa.array(values, pa.uint64()))
    return table


def _wholes(value: Any) -> list[int]:
    """Return the whole numbers of a value."""
    if isinstance(value, list):
        return [whole for each in value for whole in _wholes(each)]
    return [value] if type(value) is int else []


def _is_long(column: pa.ChunkedArray) -> bool:
    """Whether a column has fractions that may have been whole numbers beyond int64."""
    while pa.types.is_list(column.type):
        column = pc.list_flatten(column)
    if not pa.types.is_floating(column.type):
        return False
    ends = pc.min_max(column.filter(pc.invert(pc.is_nan(column)))).as_py()
    return ends["max"] is not None and bool(max(-ends["min"], ends["max"]) >= EXACT)
