"""Times do not jump with the system's clock."""

from __future__ import annotations

import time

import pytest

from hopfleet.support import clock


def test_starts_as_the_time_of_day() -> None:
    assert abs(clock.now() - time.time()) < 5


def test_goes_on_evenly_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock.now() < before + 60
