"""Files that hold one JSON array: its objects, each put into a line of its own."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator

import numpy as np

from hopfleet.data.columns import Array
from hopfleet.data.etl.blocks import Block
from hopfleet.errors import DataError

START_BYTES = 4096
"""Bytes among which a file's first character is looked for."""

SPACE = re.compile(r"[ \t\r\n]*")


def is_array(block: Block) -> bool:
    """Whether a file whose first block this is holds one JSON array, not an object in each line."""
    return block.line == 1 and block.data[:START_BYTES].removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def as_lines(data: bytes, file: str) -> tuple[bytes, Array]:
    """Return the objects of an array, one in each line, and the line of the file on which each begins."""
    rows, lines, line, before = list[str](), list[int](), 1, 0
    try:
        text = data.decode("utf-8-sig")
        for start, end in _elements(text):
            line += text.count("\n", before, start)
            before = start
            # Line feeds are space between values: within texts, they are escaped.
            rows.append(text[start:end].replace("\n", " ").replace("\r", " "))
            lines.append(line)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is not UTF-8 ({error}); name it, as in hop.Files(path, encoding='latin-1')") from None
    except RecursionError:
        raise DataError(f"{file}, line {line}: is nested too deeply; flatten it") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno}: is not JSON ({error.msg}); correct it") from None
    return "\n".join(rows).encode(), np.array(lines, np.int64)


def _elements(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each element of an array begins and ends."""
    decoder, place = json.JSONDecoder(), _after_space(text, _after_space(text, 0) + 1)
    ended = text.startswith("]", place)
    while not ended:
        _, end = decoder.raw_decode(text, place)
        yield place, end
        place = _after_space(text, end)
        ended = text.startswith("]", place)
        if not ended:
            if not text.startswith(",", place):
                raise json.JSONDecodeError("a comma or the end of the array is missing", text, place)
            place = _after_space(text, place + 1)
    if text[place + 1 :].strip():
        raise json.JSONDecodeError("there is more after the array", text, place + 1)


def _after_space(text: str, place: int) -> int:
    found = SPACE.match(text, place)
    return found.end() if found else place
