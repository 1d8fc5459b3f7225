"""A worker's process has no terminal: code that asks for one learns where it would have one."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn

from hopfleet.errors import TaskError

INLINE = "use backend='inline', which runs trials in your own process"


class NoTerminal(io.TextIOBase):
    """A standard input that says so when code reads from it."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def read(self, size: int | None = -1, /) -> NoReturn:
        raise TaskError(f"input() needs a terminal, and a worker has none; {INLINE}")

    def readline(self, size: int = -1, /) -> NoReturn:  # type: ignore[override]
        self.read()


def breakpoint_hook(*args: Any, **options: Any) -> Any:
    """Be ``sys.breakpointhook`` in a worker. A debugger that PYTHONBREAKPOINT names may do without a terminal."""
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*args, **options)
    raise TaskError(f"breakpoint() needs a terminal, and a worker has none; {INLINE}")


def do_without() -> None:
    """Have code of this process told that there is no terminal."""
    sys.stdin = NoTerminal()
    sys.breakpointhook = breakpoint_hook
