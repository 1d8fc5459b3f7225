"""The time after which a unit counts as hung.

The limit is a large multiple of the estimate, which noise cannot explain. Each consecutive loss of the same trial
doubles the limit, so that a wrong estimate cannot fail a trial that is only slow.
"""

from __future__ import annotations

from typing import Literal

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Slot

Timeout = float | Literal["auto"] | None
"""Maximum seconds of a unit; "auto" derives them from the estimate; None waits forever."""

FLOOR = 60.0
"""Minimum seconds of a limit that is derived from an estimate."""

FACTOR = 20.0
"""Multiple of the estimate that a unit may take."""


def shortest(timeout: Timeout) -> float | None:
    """Return the seconds before which no unit is overdue; None if no unit ever is."""
    return FLOOR if timeout == "auto" else timeout


def limit(schedule: Schedule, slot: Slot, timeout: Timeout) -> float | None:
    """Return the maximum seconds of the units on a worker; None if unknown or unlimited."""
    if timeout is None or slot.unit is None:
        return None
    if timeout != "auto":
        return timeout
    expected = estimate(schedule, slot)
    losses = max(len(schedule.trials[unit.trial].losses) for unit in slot.units)
    return None if expected is None else max(FLOOR, FACTOR * expected) * 2.0**losses


def estimate(schedule: Schedule, slot: Slot) -> float | None:
    """Return the expected seconds of the units on a worker; None while no unit was measured.

    For an unmeasured trial, assume the longest unit seen so far. For a flotilla with some finished members, assume the
    full time of the others, which only extends the limit.
    """
    seconds = [_expected(schedule, slot, unit) for unit in slot.units]
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(seconds) else None


def _expected(schedule: Schedule, slot: Slot, unit: Unit) -> float | None:
    progress = schedule.trials[unit.trial]
    if not unit.trains:
        return progress.evaluation_seconds or schedule.evaluation_seconds or None
    if not progress.known and not schedule.measured:
        return None
    expected = schedule.expected(progress, slot.worker, unit.partition)
    return max(expected, progress.unit_seconds if progress.measured else schedule.longest_seconds)
