"""Work that a run does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_background(job: Callable[[], T]) -> Callable[[], T | None]:
    """Start a job in a thread of its own; the function returned tells its result, or None as long as there is none.

    The process may end before the thread does.
    """
    results: list[T] = []
    threading.Thread(target=lambda: results.append(job()), daemon=True, name="hopfleet-background").start()
    return lambda: results[0] if results else None
