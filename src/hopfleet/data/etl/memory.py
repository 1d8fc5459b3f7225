"""The memory of a preparation: rows that the next stage takes as they are, without a file between.

With files, a call that is killed goes on where it was, and many rows take no more memory than few. But files take time.
So the rows of a small source stay in memory, up to a limit; once it is reached, as by a file that was compressed, all
others are written, and so are rows that a slow recipe has made. What was in memory when a call was killed is made
again, in a few seconds at most.
"""

from __future__ import annotations

import threading
from typing import Any

HELD_BYTES = 128 << 20
"""Bytes of the largest source whose rows stay in memory, and of such rows."""


class Held:
    """Rows in memory, until they are let go."""

    def __init__(self, memory: Memory, rows: Any, size: int) -> None:
        self._memory = memory
        self._rows = rows
        self._size = size

    @property
    def rows(self) -> Any:
        """The rows; None if they have been let go."""
        return self._rows

    def let_go(self) -> None:
        """Make room for other rows."""
        if self._rows is not None:
            self._rows = None
            self._memory.give(self._size)


class Memory:
    """Room for rows, which threads share."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._full = False
        self._lock = threading.Lock()

    def hold(self, rows: Any, size: int) -> Held | None:
        """Return rows of ``size`` bytes that stay in memory; None if there is no room for them, or was none before."""
        with self._lock:
            self._full = self._full or size > self._left
            if self._full:
                return None
            self._left -= size
            return Held(self, rows, size)

    def give(self, size: int) -> None:
        with self._lock:
            self._left += size
