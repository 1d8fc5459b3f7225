"""Ctrl-C during ``fit``: an exception that says how to continue, and a script that ends in one line."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from types import TracebackType

from hopfleet.errors import Interrupted
from hopfleet.store.folder import RunFolder
from hopfleet.store.local import has_journal

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended, by the convention of shells."""


@contextlib.contextmanager
def interruptible(folder: RunFolder) -> Iterator[None]:
    """Raise Interrupted for Ctrl-C if the run can be resumed. A script that does not catch it ends in one line."""
    try:
        yield
    except Interrupted:
        _end_scripts_in_one_line()
        raise
    except KeyboardInterrupt as error:
        if not has_journal(folder):
            raise
        _end_scripts_in_one_line()
        raise Interrupted(
            f"stopped at once; finished units are kept; continue with: hopfleet resume {shlex.quote(folder.handle)}, "
            "or call fit() again"
        ) from error


def _end_scripts_in_one_line() -> None:
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """A ``sys.excepthook`` that prints an Interrupted in one line, and leaves all else to the hook before."""

    def __init__(self, before: object) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, Interrupted):
            assert callable(self._before)
            self._before(kind, error, traceback)
            return
        sys.stderr.write(f"hopfleet: {error}\n")
        raise SystemExit(INTERRUPTED)
