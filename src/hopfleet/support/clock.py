"""The time of day, from a clock that cannot be set.

The clock starts at the system's time of day when this module was first imported, in this process or in the process that
it was forked from, and advances steadily from there, even while the machine sleeps. Durations and the order of events
are therefore correct, whatever happens to the system's clock meanwhile.
"""

from __future__ import annotations

import time

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_START = time.time() - time.clock_gettime(_STEADY)


def now() -> float:
    """Return the seconds since the epoch."""
    return _START + time.clock_gettime(_STEADY)
