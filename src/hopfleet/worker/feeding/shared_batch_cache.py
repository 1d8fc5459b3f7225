"""Transformed batches in shared memory: made by one process of a host, used by all of them.

Each batch is one file, written under another name first, so that an existing file is complete. A process that maps the
file gets arrays backed by it; writing to them does not affect other processes. A batch is named by data set, partition,
epoch, size and number, which fully determine its content. So a missing batch can be made again, and nothing is lost
with the process that would have made it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hopfleet.frameworks.base import Batch
from hopfleet.support.files import make_folder, move, overwrite, remove_file, remove_folder

ALIGNMENT = 64
_LENGTH = struct.Struct("<q")


class SharedBatchCache:
    """A folder of batches, limited to about ``room`` bytes for all processes together."""

    def __init__(self, folder: Path, room: int) -> None:
        self._folder = folder
        self._room = room
        self._numbers = itertools.count()

    def reserve(self, unit: str, size: int) -> bool:
        """Whether batches of ``size`` bytes may stay; the least recently used units are dropped to make room."""
        mine = self._folder / unit
        with contextlib.suppress(OSError):
            make_folder(mine, private=True)
            os.utime(mine)
            kept = sorted(_units(self._folder, mine))
            total = sum(taken for _, taken, _ in kept)
            for _, taken, folder in kept:
                if total + size > self._room:
                    remove_folder(folder, ignore_errors=True)
                    total -= taken
            return total + size <= self._room and shutil.disk_usage(mine).free > 2 * size
        return False

    def put(self, unit: str, number: int, batch: Batch) -> int:
        """Keep a batch; return its bytes, or 0 if it cannot be kept."""
        unfinished = self._folder / f"{os.getpid()}-{next(self._numbers)}"
        try:
            pieces = list(_packed(batch))
            path = self._path(unit, number)
            make_folder(path.parent, private=True)
            overwrite(unfinished, pieces)
            move(unfinished, path)
        except Exception:  # no room, or the batch holds a value that cannot be stored
            with contextlib.suppress(OSError):
                remove_file(unfinished)
            return 0
        return sum(map(len, pieces))

    def get(self, unit: str, number: int) -> Batch | None:
        try:
            with self._path(unit, number).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError:
            return None
        return _unpacked(memoryview(mapped))

    def has(self, unit: str, number: int) -> bool:
        return self._path(unit, number).exists()

    def drop(self, unit: str, number: int) -> None:
        """Remove a batch. Processes that have mapped it keep it."""
        remove_file(self._path(unit, number))

    def _path(self, unit: str, number: int) -> Path:
        return self._folder / unit / str(number)


def _units(folder: Path, mine: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield last use, bytes and path of each other unit; remove files left half-written by dead processes."""
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            if not entry.is_dir():
                if not _alive(int(entry.name.partition("-")[0])):
                    remove_file(entry)
            elif entry != mine:
                yield entry.stat().st_mtime, sum(file.stat().st_size for file in os.scandir(entry)), entry


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _packed(batch: Batch) -> Iterator[bytes | memoryview]:
    """Yield a batch as a file: the length of its description, the description, then each array, aligned."""
    pieces: list[memoryview] = []
    described = {name: _described(value, pieces) for name, value in batch.items()}
    text = json.dumps([described, [piece.nbytes for piece in pieces]]).encode()
    yield _LENGTH.pack(len(text)) + text
    position = _LENGTH.size + len(text)
    for piece in pieces:
        yield bytes(-position % ALIGNMENT)
        yield piece
        position += -position % ALIGNMENT + piece.nbytes


def _described(value: Any, pieces: list[memoryview]) -> Any:
    """Return a value as JSON, with arrays moved to ``pieces``; raise TypeError for values no data set can hold."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_described(each, pieces) for each in value]
    if isinstance(value, bytes):
        pieces.append(memoryview(value))
        return {}
    if type(value) is not np.ndarray or value.dtype.kind not in "biufcSUmM":
        raise TypeError(type(value))
    pieces.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return {"dtype": value.dtype.str, "shape": value.shape}


def _unpacked(data: memoryview) -> Batch:
    length = _LENGTH.unpack_from(data)[0]
    position = _LENGTH.size + length
    described, lengths = json.loads(bytes(data[_LENGTH.size : position]))
    pieces: list[memoryview] = []
    for size in lengths:
        position += -position % ALIGNMENT
        pieces.append(data[position : position + size])
        position += size
    left = iter(pieces)
    return {name: _value(description, left) for name, description in described.items()}


def _value(description: Any, pieces: Iterator[memoryview]) -> Any:
    if isinstance(description, str):
        return description
    if isinstance(description, list):
        return [_value(each, pieces) for each in description]
    piece = next(pieces)
    if not description:
        return bytes(piece)
    return np.ndarray(description["shape"], np.dtype(description["dtype"]), buffer=piece)
