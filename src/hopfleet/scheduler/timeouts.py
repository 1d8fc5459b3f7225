"""How long to wait for a unit before it is taken for hung.

Its estimate is stretched so far that no noise explains what takes longer, and each loss of the same trial in a row
stretches it further, so that an estimate which is wrong cannot fail a trial that is only slow.
"""

from __future__ import annotations

from typing import Literal

from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.schedule import Schedule, Slot

Timeout = float | Literal["auto"] | None
"""Seconds that a unit may take; "auto" judges by its estimate; None waits for ever."""

FLOOR = 60.0
"""Nothing that has run for less is taken for hung by its estimate."""

FACTOR = 20.0
"""How many times longer than estimated a unit may take."""


def shortest(timeout: Timeout) -> float | None:
    """No unit is overdue before so many seconds; None: none ever is."""
    return FLOOR if timeout == "auto" else timeout


def limit(schedule: Schedule, slot: Slot, timeout: Timeout) -> float | None:
    """The seconds that what runs on a worker may take; None if nobody can tell, or if it may take for ever."""
    if timeout is None or slot.unit is None:
        return None
    if timeout != "auto":
        return timeout
    expected = estimate(schedule, slot)
    losses = max(len(schedule.trials[unit.trial].losses) for unit in slot.units)
    return None if expected is None else max(FLOOR, FACTOR * expected) * 2.0**losses


def estimate(schedule: Schedule, slot: Slot) -> float | None:
    """The seconds that what runs on a worker should take; None while nothing is known.

    Of a trial of which nothing was measured the most is expected that was seen of any other. Of a flotilla that has
    come home in part, all is expected anew: it only makes for more patience.
    """
    seconds = [_expected(schedule, slot, unit) for unit in slot.units]
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None


def _expected(schedule: Schedule, slot: Slot, unit: Unit) -> float | None:
    progress = schedule.trials[unit.trial]
    if unit.work is Work.EVALUATE:
        return progress.evaluation_seconds or schedule.evaluation_seconds or None
    if not progress.known and not schedule.measured:
        return None
    expected = schedule.expected(progress, slot.worker, unit.partition)
    return max(expected, progress.unit_seconds if progress.measured else schedule.longest_seconds)
