"""What the user's code prints, kept per trial."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def captured(path: Path) -> Iterator[None]:
    """Send all output of this process, also that of C code, to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextlib.contextmanager
def copied(path: Path) -> Iterator[None]:
    """Show output as usual and keep a copy in a file: for workers inside the user's own process."""
    with (
        path.open("a") as file,
        contextlib.redirect_stdout(_Tee(sys.stdout, file)),
        contextlib.redirect_stderr(_Tee(sys.stderr, file)),
    ):
        yield


@contextlib.contextmanager
def veiled(veil: Callable[[str], str]) -> Iterator[None]:
    """Pass all that Python code prints through ``veil``, piece by piece."""
    with (
        contextlib.redirect_stdout(_Veiled(sys.stdout, veil)),
        contextlib.redirect_stderr(_Veiled(sys.stderr, veil)),
    ):
        yield


class _Veiled(io.TextIOBase):
    def __init__(self, shown: Any, veil: Callable[[str], str]) -> None:
        self._shown, self._veil = shown, veil

    def write(self, text: str) -> int:
        self._shown.write(self._veil(text))
        return len(text)

    def flush(self) -> None:
        self._shown.flush()

    def isatty(self) -> bool:
        return bool(self._shown.isatty())

    def fileno(self) -> int:
        return int(self._shown.fileno())


class _Tee(io.TextIOBase):
    def __init__(self, shown: Any, kept: Any) -> None:
        self._shown, self._kept = shown, kept

    def write(self, text: str) -> int:
        self._kept.write(text)
        self._shown.write(text)
        return len(text)

    def flush(self) -> None:
        self._kept.flush()
        self._shown.flush()

    def isatty(self) -> bool:
        return bool(self._shown.isatty())

    def fileno(self) -> int:
        return int(self._shown.fileno())
