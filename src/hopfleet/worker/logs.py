"""What the user's code prints, kept per trial."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from hopfleet.support.files import open_nowhere, open_to_append, shorten
from hopfleet.worker.surroundings.script import Output

Turn = Callable[[int], None]
"""Says whose output follows, by the position of its file."""

Capture = Callable[..., contextlib.AbstractContextManager[Turn]]
"""Opens a context in which output goes to the given log files."""


LIMIT = 1 << 26
"""Bytes that the log of one trial may have; the rest of its output is not kept."""

LOOK_SECONDS = 0.2
"""Seconds between two looks at the size of a log: output of C code goes to the file without Python's knowledge."""

NOTICE = "\nhopfleet: this log has reached {} bytes, its limit; what the trial prints from here on is not kept\n"
"""The last line of a log that has reached its limit."""


@contextlib.contextmanager
def captured(*paths: Path) -> Iterator[Turn]:
    """Send all output of this process, also that of C code, to the end of a file: at first, of the first."""
    flush()
    saved = os.dup(1), os.dup(2)
    targets = [_Target(path) for path in paths]
    lock, current, ended = threading.Lock(), [targets[0]], threading.Event()

    def turn(number: int) -> None:
        flush()
        with lock:
            current[0] = targets[number]
            current[0].receive()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            with lock:
                if not ended.is_set() and current[0].overflows():
                    current[0].receive()

    turn(0)
    threading.Thread(target=look, name="log-limit", daemon=True).start()
    try:
        yield turn
    finally:
        flush()
        with lock:
            ended.set()
            for number, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            for target in targets:
                target.overflows()
                target.close()


class _Target:
    """The log of one trial, as long as output goes there."""

    def __init__(self, path: Path) -> None:
        self._file = open_to_append(path)
        self._full = os.fstat(self._file).st_size >= LIMIT

    def receive(self) -> None:
        """Send the output of this process to the log or, if the log is full, nowhere."""
        target = open_nowhere() if self._full else self._file
        os.dup2(target, 1)
        os.dup2(target, 2)
        if self._full:
            os.close(target)

    def overflows(self) -> bool:
        """Whether the log has just exceeded its limit; then cut it there, with a notice."""
        if self._full or os.fstat(self._file).st_size <= LIMIT:
            return False
        self._full = True
        shorten(self._file, LIMIT)
        os.write(self._file, NOTICE.format(LIMIT).encode())
        return True

    def close(self) -> None:
        os.close(self._file)


def flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


@contextlib.contextmanager
def copied(*paths: Path) -> Iterator[Turn]:
    """Show output as usual and keep a copy in a file: for workers inside the user's own process.

    Handlers of the script that write records to a stream of their own do so as usual; the copy gets these records too.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(os.fdopen(open_to_append(path), "a", encoding="utf-8")) for path in paths]
        tees = [_Tee(sys.stdout, files[0]), _Tee(sys.stderr, files[0])]
        stack.enter_context(contextlib.redirect_stdout(tees[0]))
        stack.enter_context(contextlib.redirect_stderr(tees[1]))

        records = _records(files[0])
        root = logging.getLogger()
        if records is not None:
            root.addHandler(records)
            stack.callback(root.removeHandler, records)

        def turn(number: int) -> None:
            for tee in tees:
                tee.kept = files[number]
            if records is not None:
                records.setStream(files[number])

        yield turn


def _records(file: TextIO) -> logging.StreamHandler[TextIO] | None:
    """Return a handler that writes records to a file as the script's root logger does to its stream.

    Return None if no handler of the root writes to a stream: then Python writes records to the standard error of the
    moment, which is copied anyway.
    """
    if not any(isinstance(handler, logging.StreamHandler) for handler in logging.getLogger().handlers):
        return None
    handler = logging.StreamHandler(file)
    Output.of_script().configure(handler)
    return handler


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
        self._shown, self.kept = shown, kept

    def write(self, text: str) -> int:
        with self._unless_over():
            size = self.kept.tell()
            if size < LIMIT:
                self.kept.write(text if size + len(text) < LIMIT else text[: LIMIT - size] + NOTICE.format(LIMIT))
        self._shown.write(text)
        return len(text)

    def flush(self) -> None:
        with self._unless_over():
            self.kept.flush()
        self._shown.flush()

    @contextlib.contextmanager
    def _unless_over(self) -> Iterator[None]:
        """Do without the copy if the turn is over: another thread may have taken this stream during it."""
        try:
            yield
        except ValueError:
            if not self.kept.closed:
                raise

    def isatty(self) -> bool:
        return bool(self._shown.isatty())

    def fileno(self) -> int:
        return int(self._shown.fileno())
