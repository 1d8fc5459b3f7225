"""The longest remaining trial first, on the idle worker with the largest load first.

A trial with much work left must not wait, or it will be left alone at the end; the same holds for a worker with much
work left. Ties go to the trial whose model the worker already holds, which saves a hop, then to the trial that has been
ready the longest.
"""

from __future__ import annotations

import random

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment, Slot


def longest_remaining(schedule: Schedule, rng: random.Random) -> Assignment | None:
    """Return the next unit of the longest trial that the idle worker with the largest load can take."""
    for slot in by_load(schedule):
        progress = schedule.longest(slot)
        if progress is not None:
            return next_unit(schedule, progress, slot)
    return None


def next_unit(schedule: Schedule, progress: Progress, slot: Slot) -> Assignment:
    """Return the next unit of a trial on a worker."""
    return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch, partition_for(schedule, progress, slot)))


def by_load(schedule: Schedule) -> list[Slot]:
    """Return the idle workers, the one with the largest load first; of those that read all rows, the fastest."""
    slots = list(schedule.idle.values())
    if len(slots) > 1:
        if any(slot.partitions is not None for slot in slots):
            slots.sort(key=schedule.load, reverse=True)
        elif len(schedule.classes) > 1:
            fastest = [worker for members in schedule.classes for worker in members]
            slots.sort(key=lambda slot: fastest.index(slot.worker))
        else:
            slots.sort(key=_devices, reverse=True)
    return slots


def _devices(slot: Slot) -> int:
    return slot.devices


def partition_for(schedule: Schedule, progress: Progress, slot: Slot) -> int:
    """Return the partition that is warm on this worker, else the one with the most work left per replica."""

    def urgency(partition: int) -> tuple[bool, float, int]:
        return partition == slot.warm, schedule.owed[partition] / schedule.replicas(partition), -partition

    return max(schedule.options(progress, slot), key=urgency)
