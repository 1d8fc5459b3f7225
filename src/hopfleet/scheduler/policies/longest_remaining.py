"""Longest remaining trial first, on the most loaded idle worker first.

A trial with much left to train must not be kept waiting, or it alone is left at the end; the same holds for a
worker with much left to do. Ties go to the trial whose model the worker already holds, which saves a hop,
then to the one that has been ready for the longest time.
"""

from __future__ import annotations

import random

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Assignment, Schedule, Slot


def longest_remaining(schedule: Schedule, rng: random.Random) -> Assignment | None:
    for slot in by_load(schedule):
        progress = schedule.longest(slot)
        if progress is not None:
            partition = partition_for(schedule, progress, slot)
            return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch, partition))
    return None


def by_load(schedule: Schedule) -> list[Slot]:
    """Idle workers, the most loaded first."""
    slots = list(schedule.idle.values())
    if len(slots) > 1 and any(slot.partitions is not None for slot in slots):
        slots.sort(key=schedule.load, reverse=True)
    return slots


def partition_for(schedule: Schedule, progress: Progress, slot: Slot) -> int:
    """The partition that is warm here, else the one with the most work left for each worker that has it."""

    def urgency(partition: int) -> tuple[bool, float, int]:
        return partition == slot.warm, schedule.owed[partition] / schedule.replicas(partition), -partition

    return max(schedule.options(progress, slot), key=urgency)
