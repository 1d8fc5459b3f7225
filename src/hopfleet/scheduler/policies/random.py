"""The Cerebro paper's randomized scheduler (Algorithm 1), restricted to the partitions that each worker can read."""

from __future__ import annotations

import random

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment


def random_choice(schedule: Schedule, rng: random.Random) -> Assignment | None:
    """Draw an idle worker, a trial that the worker can train, and a partition that the trial owes."""
    slots = list(schedule.idle.values())
    rng.shuffle(slots)
    for slot in slots:
        progress = schedule.draw(slot, rng)
        if progress is not None:
            partition = rng.choice(sorted(schedule.options(progress, slot)))
            return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch, partition))
    return None
