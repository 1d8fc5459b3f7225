"""Workers that start get the longer, the more progress they make."""

from __future__ import annotations

from hopfleet.backends.supervision import START_FACTOR, StartLimit


def limit(clock: list[float]) -> StartLimit:
    return StartLimit(120.0, clock=lambda: clock[0])


def test_without_progress_the_limit_counts_from_the_start() -> None:
    clock = [5.0]
    start = limit(clock)
    assert not start.passed(("w1", 0))
    clock[0] = 125.0
    assert not start.passed(("w1", 0))
    clock[0] = 125.1
    assert start.passed(("w1", 0))


def test_progress_on_a_busy_machine_extends_the_limit() -> None:
    clock = [0.0]
    start = limit(clock)
    for tick in range(9):
        clock[0] += 110.0
        assert not start.passed(tick)
    clock[0] += 121.0
    assert start.passed(8)


def test_a_start_that_never_ends_is_given_up_in_the_end() -> None:
    clock, tick = [0.0], 0
    start = limit(clock)
    while not start.passed(tick):
        clock[0], tick = clock[0] + 60.0, tick + 1
    assert clock[0] == START_FACTOR * 120.0 + 60.0
