"""The Cerebro paper's randomized scheduler (Algorithm 1), consulting the map of who can read which partition."""

from __future__ import annotations

import random

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Assignment, Schedule, Slot

DRAWS = 8


def random_choice(schedule: Schedule, rng: random.Random) -> Assignment | None:
    """Any idle worker, any trial that it can train, any partition that this trial owes."""
    slots = list(schedule.idle.values())
    rng.shuffle(slots)
    ready = list(schedule.ready.values())
    for slot in slots:
        progress = _any_able(schedule, slot, ready, rng)
        if progress is not None:
            partition = rng.choice(sorted(schedule.options(progress, slot)))
            return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch, partition))
    return None


def _any_able(schedule: Schedule, slot: Slot, ready: list[Progress], rng: random.Random) -> Progress | None:
    """Each trial that can train at ``slot`` with the same chance; looks at all of them only if a few draws fail."""

    def is_able(progress: Progress) -> bool:
        return any(True for _ in schedule.options(progress, slot))

    for _ in range(DRAWS if ready else 0):
        progress = rng.choice(ready)
        if is_able(progress):
            return progress
    able = [progress for progress in ready if is_able(progress)]
    return rng.choice(able) if able else None
