"""The time of day, from a clock that cannot be set.

The clock starts with the system's time of day when this process, or the one it was forked from, first read it, and runs
evenly from there, also while the machine sleeps. So the length and the order of units are right even if the system's
clock is set meanwhile.
"""

from __future__ import annotations

import time

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_START = time.time() - time.clock_gettime(_STEADY)


def now() -> float:
    """Return the seconds since the epoch."""
    return _START + time.clock_gettime(_STEADY)
