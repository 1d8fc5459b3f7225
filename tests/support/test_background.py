"""Work that a run does not wait for."""

from __future__ import annotations

import threading
import time

from hopfleet.support.background import in_background


def test_nobody_waits_for_the_result():
    go = threading.Event()

    def job() -> int:
        go.wait(60)
        return 42

    poll = in_background(job)
    assert poll() is None
    go.set()
    give_up = time.monotonic() + 60
    while poll() is None and time.monotonic() < give_up:
        time.sleep(0.001)
    assert poll() == 42
