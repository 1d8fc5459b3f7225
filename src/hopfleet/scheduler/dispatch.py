"""The next thing for an idle worker to do: evaluations of the model that it holds, then training, then other
evaluations.

An evaluation on the worker that trained last costs no hop and lets the trial go on, so it comes first. On any
other worker it costs a hop, so it fills time that no training unit can use.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Assignment, Schedule, Slot

Policy = Callable[[Schedule, random.Random], Assignment | None]
"""Picks the next training unit for some idle worker, or None if no idle worker can train anything.

A policy reads the schedule and changes nothing. It must return an assignment whenever one exists."""


def next_assignment(schedule: Schedule, policy: Policy, rng: random.Random) -> Assignment | None:
    """One thing that an idle worker should start now, or None if all must stay as they are."""
    if not schedule.idle:
        return None
    return (
        _evaluation(schedule, lambda progress, slot: progress.holder in (slot.worker, None))
        or (policy(schedule, rng) if schedule.ready else None)
        or _evaluation(schedule, lambda progress, slot: True)
    )


def _evaluation(schedule: Schedule, wanted: Callable[[Progress, Slot], bool]) -> Assignment | None:
    for progress in schedule.awaiting.values():
        for slot in schedule.idle.values():
            if wanted(progress, slot) and progress.loadable_by(slot.worker):
                partition = next(schedule.unevaluated(progress))
                return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch - 1, partition, Work.EVALUATE))
    return None
