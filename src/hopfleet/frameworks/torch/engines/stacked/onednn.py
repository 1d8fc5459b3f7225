"""The choice of a library for matrix products on the CPU: oneDNN, or plain BLAS, which can be faster for small ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from hopfleet.frameworks.torch import _compat

LONG = 0.05
"""Seconds. Work that takes longer is measured fewer times, and is not worth a program: at most a few milliseconds of it
are spent in Python."""


@contextlib.contextmanager
def using_onednn(wanted: bool) -> Iterator[None]:
    """Use oneDNN for products on the CPU if it is wanted and enabled in this process, and plain BLAS otherwise."""
    before = _compat.onednn_enabled()
    _compat.enable_onednn(before and wanted)
    try:
        yield
    finally:
        _compat.enable_onednn(before)


def faster_with_onednn(work: Callable[[], object], times: int = 3) -> bool:
    """Whether some work takes less time with oneDNN than without. The first round may include some setup."""
    if not _compat.onednn_enabled():
        return True
    best = {True: float("inf"), False: float("inf")}
    for number in range(times):
        if number > 1 and min(best.values()) > LONG:
            break
        for wanted in best:
            with using_onednn(wanted):
                began = time.thread_time()
                work()
                best[wanted] = min(best[wanted], time.thread_time() - began)
    return best[True] <= best[False]
