"""Files that are either whole or not there, for data sets and run folders alike."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ATTEMPTS = 4
"""How often a transfer is tried."""

PAUSE_SECONDS = 0.25
"""The pause after the first attempt that failed. It doubles with each."""

PIECE = 1 << 22
"""Bytes that are read at once to be hashed. Between two pieces, other threads wait."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that somebody can cure by making room."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts to write to a disk that does not take it."""


def write_atomically(path: Path, write: Callable[[Path], None], *, durable: bool) -> None:
    """Let ``write`` fill a temporary file beside ``path`` and rename it; ``durable`` survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        if durable:
            sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def back_off() -> Iterator[float]:
    """How long to wait before each further attempt, without end."""
    seconds = FIRST_PAUSE
    while True:
        yield seconds
        seconds = min(2 * seconds, LONGEST_PAUSE)


def trouble(path: Path, error: OSError) -> str:
    """What to say of a file that the disk does not take: its name, the error and the remedy."""
    remedy = "make room on that disk" if error.errno in FULL else "see to that disk and to the permissions"
    return f"{path}: cannot be written ({error.strerror or error}); {remedy}"


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        # No larger than is of use: new memory has to be cleared, which takes longer than to hash a small file.
        buffer = memoryview(bytearray(min(PIECE, os.fstat(file.fileno()).st_size + 1)))
        while count := file.readinto(buffer):
            found.update(buffer[:count])
    return found.hexdigest()


def retried(transfer: Callable[[], T]) -> T:
    """What ``transfer`` returns, tried again if the network fails; a file that is not there will not appear.

    File systems raise what their libraries raise, so every other exception counts as a failure of the network.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return transfer()
        except Exception as error:
            if isinstance(error, FileNotFoundError | IsADirectoryError) or denied(error):
                raise
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
    return transfer()


def denied(error: Exception) -> bool:
    """Whether somebody has no right to a file, or has not said who he is."""
    return isinstance(error, PermissionError) or "Credentials" in type(error).__name__
