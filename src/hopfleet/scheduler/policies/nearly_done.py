"""The trial that is nearest to the end of its epoch first, on the idle worker with the largest load first.

This policy suits searches that add trials as others end. The last trial is unknown, so no makespan can be minimised,
and longest-remaining would occupy all workers with the most expensive trials. A trial with few partitions left can use
few workers; if such trials go first wherever possible, the others, which can use any worker, keep all workers busy.
Ties go to the trial whose model the worker holds, then to the oldest trial.
"""

from __future__ import annotations

import random

from hopfleet.scheduler.policies.longest_remaining import by_load, next_unit
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment


def nearly_done(schedule: Schedule, rng: random.Random) -> Assignment | None:
    """Return the next unit of the trial with the fewest partitions left in its epoch."""
    for slot in by_load(schedule):

        def order(progress: Progress, worker: str = slot.worker) -> tuple[int, bool, int]:
            return len(progress.todo), progress.holder != worker, progress.trial.number

        able = schedule.able(slot)
        if able:
            return next_unit(schedule, min(able, key=order), slot)
    return None
