"""Transformed batches in shared memory: made by one process of a host, used by all of them.

Each batch is one file, written under another name first, so that a file that is there is whole. Who maps it gets
arrays that lie in it; they may be written to, which changes nobody else's. A batch is named by data set, partition,
epoch, size and number, and nothing else decides what is in it. So whatever is missing can be made again, and nothing
is lost with the process that was to make it.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from hopfleet.frameworks.base import Batch

ALIGNMENT = 64
_LENGTH = struct.Struct("<q")


class Larder:
    """A folder of batches, of which all users together keep about ``room`` bytes.

    The folder must be one that nobody else can write to: what is found there is unpickled.
    """

    def __init__(self, folder: Path, room: int) -> None:
        self._folder = folder
        self._room = room
        self._numbers = itertools.count()

    def reserve(self, unit: str, size: int) -> bool:
        """Whether batches of so many bytes may stay; units that nobody has used for the longest time make room."""
        mine = self._folder / unit
        with contextlib.suppress(OSError):
            mine.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.utime(mine)
            kept = sorted(_units(self._folder, mine))
            total = sum(taken for _, taken, _ in kept)
            for _, taken, folder in kept:
                if total + size > self._room:
                    shutil.rmtree(folder, ignore_errors=True)
                    total -= taken
            return total + size <= self._room and shutil.disk_usage(mine).free > 2 * size
        return False

    def put(self, unit: str, number: int, batch: Batch) -> int:
        """Keep a batch; returns its bytes, or 0 if that cannot be done."""
        unfinished = self._folder / f"{os.getpid()}-{next(self._numbers)}"
        try:
            pieces = list(_packed(batch))
            path = self._path(unit, number)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with unfinished.open("wb") as file:
                file.writelines(pieces)
            unfinished.rename(path)
        except Exception:  # there is no room, or the batch holds something that cannot travel
            with contextlib.suppress(OSError):
                unfinished.unlink()
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
        """Forget a batch. Who has mapped it keeps it."""
        self._path(unit, number).unlink(missing_ok=True)

    def _path(self, unit: str, number: int) -> Path:
        return self._folder / unit / str(number)


def _units(folder: Path, mine: Path) -> Iterator[tuple[float, int, Path]]:
    """When each unit was last used, its bytes, and where it is, mine excepted. What the dead left half written goes."""
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            if not entry.is_dir():
                if not _alive(int(entry.name.partition("-")[0])):
                    entry.unlink()
            elif entry != mine:
                yield entry.stat().st_mtime, sum(file.stat().st_size for file in os.scandir(entry)), entry


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _packed(batch: Batch) -> Iterator[bytes | memoryview]:
    """A batch as a file: lengths, everything but the arrays, then each array where it can be used in place."""
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    lengths = [len(views), len(rest), *(view.nbytes for view in views)]
    head = b"".join(map(_LENGTH.pack, lengths)) + rest
    yield head
    position = len(head)
    for view in views:
        yield bytes(-position % ALIGNMENT)
        yield view
        position += -position % ALIGNMENT + view.nbytes


def _unpacked(data: memoryview) -> Batch:
    count, rest = (_LENGTH.unpack_from(data, place)[0] for place in (0, _LENGTH.size))
    lengths = [_LENGTH.unpack_from(data, (2 + number) * _LENGTH.size)[0] for number in range(count)]
    begin = (2 + count) * _LENGTH.size
    position = begin + rest
    views = []
    for length in lengths:
        position += -position % ALIGNMENT
        views.append(data[position : position + length])
        position += length
    batch: Batch = pickle.loads(data[begin : begin + rest], buffers=views)
    return batch
