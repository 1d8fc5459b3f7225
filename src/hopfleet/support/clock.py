"""The time of day, from a clock that cannot be set, and the time of a run.

The clock starts with the system's time of day when this process, or the one it was forked from, first read it, and runs
evenly from there, also while the machine sleeps. So the length and the order of units are right even if the system's
clock is set meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_START = time.time() - time.clock_gettime(_STEADY)


def now() -> float:
    """Return the seconds since the epoch."""
    return _START + time.clock_gettime(_STEADY)


class RunClock:
    """The seconds since a run started, on the clock of its backend. A resumed run starts at 0 again."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._started: float | None = None

    def __call__(self) -> float:
        """Return the seconds since the first call."""
        read = self._clock()
        if self._started is None:
            self._started = read
        return read - self._started
