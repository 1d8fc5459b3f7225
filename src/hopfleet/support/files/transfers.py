"""Transfers over a network and writes to a failing disk: attempts, pauses and time limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

ATTEMPTS = 4
"""Number of attempts at a transfer."""

PAUSE_SECONDS = 0.25
"""Seconds to wait after the first failed attempt; doubles with each further one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts to write to a full or failing disk: the first, and the longest."""


def back_off() -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, without end."""
    seconds = FIRST_PAUSE
    while True:
        yield seconds
        seconds = min(2 * seconds, LONGEST_PAUSE)


def retried(transfer: Callable[[], T]) -> T:
    """Return what ``transfer`` returns, trying again if the network fails, but not if a file is missing.

    File systems raise the exceptions of their libraries, so any other exception counts as a network failure.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return transfer()
        except Exception as error:
            if isinstance(error, FileNotFoundError | IsADirectoryError) or denied(error):
                raise
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
    return transfer()


def limited(job: Callable[[], T], seconds: float) -> T:
    """Return what ``job`` returns. Raise TimeoutError if it has not ended after some seconds; its thread goes on."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(job())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True, name="hopfleet-limited").start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None


def has_folders(files: Any) -> bool:
    """Whether an fsspec file system has folders to create and files to rename. An object store has neither."""
    protocols = [files.protocol] if isinstance(files.protocol, str) else files.protocol
    return bool({"file", "local", "hdfs", "sftp", "smb"} & set(protocols))


def denied(error: Exception) -> bool:
    """Whether access to a file was denied, or credentials are missing."""
    return isinstance(error, PermissionError) or "Credentials" in type(error).__name__
