"""The time of day, by a clock that cannot be set.

It starts with the time of day that the system had when this process, or the one that it was forked from, first asked,
and goes on evenly from there, also while the machine sleeps. So a unit takes as long as it took, and comes after the
one before it, whatever happens to the system's clock meanwhile.
"""

from __future__ import annotations

import time

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_START = time.time() - time.clock_gettime(_STEADY)


def now() -> float:
    """Seconds since the epoch."""
    return _START + time.clock_gettime(_STEADY)
