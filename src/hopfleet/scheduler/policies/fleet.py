"""FLEET's idea for units: trials that owe the same rows form a flotilla, spread over all workers.

Rows that take long to prepare are prepared once on each machine and kept for a while, so all trials should visit them
soon after one another. An idle worker takes the oldest epoch, there the rows that another worker has prepared, and a
group of trials whose measured times add up to the worker's share of the flotilla. Fast workers, such as teams of
several devices, take larger groups. Groups are formed anew for each unit, so no trial waits for a round to end. A trial
that would end last goes ahead of its flotilla. Trials that were given a number of devices train on workers with as
many, and share these workers alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.policies.longest_remaining import by_load
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment, Slot


def fleet(schedule: Schedule, rng: random.Random) -> Assignment | None:
    """Return the next unit for the idle worker with the largest load, and the trials to train together with it."""
    for slot in by_load(schedule):
        able = schedule.able(slot)
        if able:
            return _group(schedule, slot, able)
    return None


def _group(schedule: Schedule, slot: Slot, able: Sequence[Progress]) -> Assignment:
    share = _share(schedule, slot)
    late = _late(schedule, slot, able, share)
    epoch = min(progress.epoch for progress in able) if late is None else late.epoch
    here = [progress for progress in able if progress.epoch == epoch]
    partition = _rows(schedule, slot, epoch, here if late is None else [late])
    members = [progress for progress in here if partition in schedule.options(progress, slot)]
    members.sort(key=lambda each: (each is not late, -schedule.unit_seconds(each), each.trial.number))
    first, *others = members
    together = _fill(schedule, others, share - schedule.unit_seconds(first))
    return Assignment(slot.worker, Unit(first.trial.id, epoch, partition), tuple(together))


def _fill(schedule: Schedule, trials: Sequence[Progress], room: float) -> Iterator[str]:
    """Yield the longest trials that still fit, and the shortest of the others if more than half of it does."""
    smallest: Progress | None = None
    for progress in trials:
        seconds = schedule.unit_seconds(progress)
        if seconds <= room:
            room -= seconds
            yield progress.trial.id
        else:
            smallest = progress
    if smallest is not None and schedule.unit_seconds(smallest) / 2 <= room:
        yield smallest.trial.id


def _share(schedule: Schedule, slot: Slot) -> float:
    """Return the seconds of a worker's share of one unit of every trial; workers share by their measured speeds."""
    slowness = schedule.estimates.slowness
    slots, trials = _alike(schedule, slot)
    return sum(map(schedule.unit_seconds, trials)) / slowness(slot.worker) / sum(1 / slowness(each) for each in slots)


def _late(schedule: Schedule, slot: Slot, able: Iterable[Progress], share: float) -> Progress | None:
    """Return the trial that would end last if it waited for one more group; None if there is none."""
    slots, trials = _alike(schedule, slot)
    left = list(map(schedule.remaining, trials))
    longest = max(able, key=lambda progress: (schedule.remaining(progress), -progress.trial.number))
    end = max(sum(left) / len(slots), *left)
    return longest if schedule.remaining(longest) + share > end else None


def _alike(schedule: Schedule, slot: Slot) -> tuple[list[str], list[Progress]]:
    """Return the workers that can take the same trials as one worker, and these trials, whether or not they run."""
    trials = [progress for progress in schedule.trials.values() if schedule.suits(progress, slot)]
    alike = not schedule.allocated
    return [each.worker for each in schedule.slots.values() if alike or each.devices == slot.devices], trials


def _rows(schedule: Schedule, slot: Slot, epoch: int, trials: Iterable[Progress]) -> int:
    """Return the partition that some trials of an epoch should visit next.

    Partitions that were visited in this epoch are prepared. Of two workers that begin with the same partition at once,
    each would prepare it, so a worker prepares a partition that no other worker reads.
    """
    owing: dict[int, int] = {}
    for progress in trials:
        for partition in schedule.options(progress, slot):
            owing[partition] = owing.get(partition, 0) + 1
    others = [progress for progress in schedule.trials.values() if progress.epoch >= epoch]
    units = [unit for other in schedule.slots.values() for unit in other.units]
    read = {unit.partition for unit in units if unit.trains and unit.epoch == epoch}

    def order(partition: int) -> tuple[bool, bool, bool, int, int]:
        prepared = any(progress.epoch > epoch or partition not in progress.todo for progress in others)
        return partition == slot.warm and prepared, prepared, partition not in read, owing[partition], -partition

    return max(owing, key=order)
