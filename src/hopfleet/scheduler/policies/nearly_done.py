"""The trial that is nearest to the end of its epoch first, on the most loaded idle worker first.

For searches that add trials as others end. What the last one will be nobody knows, so there is no end to aim at, and
longest-remaining would fill the floor with the dearest trials. A trial with few partitions left waits for few
workers; if it goes first wherever it can, the others, which can go anywhere, keep everybody busy. Ties go to the
trial whose model the worker holds, then to the oldest.
"""

from __future__ import annotations

import random

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.policies.longest_remaining import by_load, partition_for
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Assignment, Schedule


def nearly_done(schedule: Schedule, rng: random.Random) -> Assignment | None:
    for slot in by_load(schedule):

        def order(progress: Progress, worker: str = slot.worker) -> tuple[int, bool, int]:
            return len(progress.todo), progress.holder != worker, progress.trial.number

        able = schedule.able(slot)
        if able:
            progress = min(able, key=order)
            return Assignment(
                slot.worker, Unit(progress.trial.id, progress.epoch, partition_for(schedule, progress, slot))
            )
    return None
