"""Text files cut into blocks of whole rows, so that each block can be parsed by itself.

A row ends at a line feed that is not inside quotes. Where the cuts are depends on the file alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopfleet.data.columns import Array
from hopfleet.data.etl.content import refuse_other_content
from hopfleet.errors import DataError

BLOCK_BYTES = 8 << 20
"""Bytes of the largest block, as far as rows allow."""

EVENLY = 4
"""Blocks of a large file are equally large, and as many as a multiple of this: two or four workers end together."""

LONGEST_ROW = 1 << 30
"""Bytes of the longest row; a longer one is a file whose quotes do not match."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive bytes of a file that hold whole rows. ``line`` is the number of the first line, from 1 on."""

    start: int
    line: int
    data: bytes
    feeds: int | None = None  #: how many line feeds there are, if that is known

    @property
    def last_line(self) -> int:
        feeds = count(self.data, "\n") if self.feeds is None else self.feeds
        return self.line + feeds - self.data.endswith(b"\n")


def even_size(size: int) -> int:
    """Return the bytes of the blocks of a file that has ``size`` bytes."""
    blocks = -(-size // (EVENLY * BLOCK_BYTES)) * EVENLY
    return -(-size // blocks)


def count(data: bytes, letter: str) -> int:
    """Return how often a letter of ASCII occurs; several times as fast as ``bytes.count``."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord(letter)))


def cut_blocks(stream: Any, path: str, *, quoted: bool, size: int = 0) -> Iterator[Block]:
    """Yield the blocks of a stream. With ``quoted``, line feeds inside double quotes belong to a row."""
    size = size or BLOCK_BYTES
    rest, start, line = b"", 0, 1
    while True:
        try:
            read = stream.read(size)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, after line {line}: cannot be read as {error.encoding} ({error}); name another encoding"
            ) from error
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path}, after line {line}: cannot be read ({error}); restore the file") from error
        data = with_line_feeds(rest + read if rest else read, quoted=quoted, ended=not read)
        if not start:
            refuse_other_content(data, path)
        if not read:
            if data:
                yield Block(start, line, bytes(data))
            return
        end = _before_blank_lines(data, _last_end(data, quoted))
        if end == 0 and len(data) > LONGEST_ROW:
            raise DataError(
                f"{path}, line {line}: a row has more than {LONGEST_ROW:,} bytes; close the quotes, or give a file of "
                "text"
            )
        if end:
            block = data[:end]
            feeds = count(block, "\n")
            yield Block(start, line, bytes(block), feeds)
            start, line = start + end, line + feeds
        rest = data[end:]


def with_line_feeds(data: bytes, *, quoted: bool, ended: bool = True) -> bytes:
    """Return bytes in which rows that end with a carriage return alone, as on old Macs, end with a line feed.

    Unless the file has ``ended``, a line feed may follow the last byte.
    """
    if b"\r" not in data or data.count(b"\r") == data.count(b"\r\n"):
        return data
    content = np.frombuffer(data, np.uint8).copy()
    places = np.flatnonzero(content[: None if ended else -1] == ord("\r"))
    lone = places[content[np.minimum(places + 1, len(content) - 1)] != ord("\n")]
    if quoted and b'"' in data:
        lone = lone[np.searchsorted(np.flatnonzero(content == ord('"')), lone) % 2 == 0]
    content[lone] = ord("\n")
    return content.tobytes()


def _last_end(data: bytes, quoted: bool) -> int:
    """Return where the last whole row ends; 0 if there is none."""
    end = data.rfind(b"\n") + 1
    if not quoted or b'"' not in data or (count(data, '"') - data.count(b'"', end)) % 2 == 0:
        return end
    ends = row_ends(data, quoted=True)
    return int(ends[-1]) + 1 if len(ends) else 0


def _before_blank_lines(data: bytes, end: int) -> int:
    """Return where blank lines before ``end`` begin: those at the end of a file are all in its last block."""
    if not data.endswith((b"\n\n", b"\n\r\n"), 0, end):
        return end
    return data.find(b"\n", len(data[:end].rstrip(b"\r\n"))) + 1


def row_ends(data: bytes, *, quoted: bool) -> Array:
    """Return the positions of the line feeds that end rows."""
    content = np.frombuffer(data, np.uint8)
    feeds = np.flatnonzero(content == ord("\n"))
    if quoted and b'"' in data:
        quotes = np.flatnonzero(content == ord('"'))
        feeds = feeds[np.searchsorted(quotes, feeds) % 2 == 0]
    return feeds


def row_lines(block: Block, *, quoted: bool, blanks: bool = False) -> Array:
    """Return the number of the line on which each row of a block begins. Empty lines are no rows unless ``blanks``."""
    lines, blank = lines_and_blanks(block, quoted=quoted)
    found: Array = lines if blanks else lines[~blank]
    return found


def lines_and_blanks(block: Block, *, quoted: bool) -> tuple[Array, Array]:
    """Return the number of the line on which each row of a block begins, and which of them are blank."""
    ends = row_ends(block.data, quoted=quoted)
    if block.data and (not len(ends) or ends[-1] != len(block.data) - 1):
        ends = np.append(ends, len(block.data))
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    content = np.frombuffer(block.data, np.uint8)
    lines: Array = block.line + np.searchsorted(np.flatnonzero(content == ord("\n")), starts)
    lengths = ends - starts
    blank = (lengths == 0) | ((lengths == 1) & (content[np.minimum(starts, len(content) - 1)] == ord("\r")))
    return lines, blank
