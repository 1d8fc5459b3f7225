"""Which worker gets which partition, where workers can read only some of them.

A training partition that no worker can read any more goes to the worker with the least to do. A worker without
partitions gets copies of the partitions of the worker with the most to do. The work of a worker is counted as if all
trials still had to visit every partition: the rows that the worker reads, divided among all workers that read them,
times its slowness.

A validation partition that no worker can read any more goes to the worker that has the fewest, relative to its speed.
Metrics over the whole set need the rows of all validation partitions on one worker: then each worker gets all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from hopfleet.scheduler.schedule import Schedule


class Place(NamedTuple):
    """A worker and a training or validation partition."""

    worker: str
    partition: int
    valid: bool = False


def placements(schedule: Schedule, coming: Collection[Place], refused: Collection[Place]) -> Iterator[Place]:
    """Yield the placements to make besides those ``coming``; skip workers that ``refused`` a partition."""
    plan = _Plan(schedule, coming)
    for partition in sorted(lost(schedule, coming), key=lambda p: (-schedule.estimates.size(p), p)):
        able = [worker for worker in plan.held if Place(worker, partition) not in refused]
        if able:
            worker = min(able, key=plan.load)
            plan.add(worker, partition)
            yield Place(worker, partition)
    for worker in [worker for worker, partitions in plan.held.items() if not partitions]:
        busiest = max(plan.held, key=plan.load)
        for partition in sorted(plan.held[busiest]):
            if Place(worker, partition) not in refused:
                plan.add(worker, partition)
                yield Place(worker, partition)
    yield from _valid_placements(schedule, coming, refused)


def lost(schedule: Schedule, coming: Collection[Place]) -> list[int]:
    """Return the training partitions that a trial needs and that no worker can read, now or soon."""
    soon = {place.partition for place in coming if not place.valid}
    return [
        partition
        for partition in range(schedule.partitions)
        if schedule.owed[partition] > 0 and not schedule.replicas(partition) and partition not in soon
    ]


def lost_valid(schedule: Schedule, coming: Collection[Place]) -> list[int]:
    """Return the validation partitions that a trial needs and that no worker can evaluate on, now or soon."""
    whole = any(slot.valid is None and not slot.retired for slot in schedule.slots.values())
    if whole or not any(progress.outcome is None for progress in schedule.trials.values()):
        return []
    every, held = set(range(schedule.valid_partitions)), _valid_held(schedule, coming).values()
    if schedule.gathers:
        fewest = min([every - mine for mine in held] or [every], key=len)
        return sorted(fewest)
    return sorted(every.difference(*held))


def _valid_placements(schedule: Schedule, coming: Collection[Place], refused: Collection[Place]) -> Iterator[Place]:
    """Yield the placements of validation partitions."""
    lacking = lost_valid(schedule, coming)
    held = _valid_held(schedule, coming) if lacking or schedule.gathers else {}
    for partition in range(schedule.valid_partitions) if schedule.gathers else lacking:
        able = [
            worker
            for worker, mine in held.items()
            if partition not in mine and Place(worker, partition, valid=True) not in refused
        ]
        able.sort(key=lambda worker: len(held[worker]) * schedule.estimates.slowness(worker))
        for worker in able if schedule.gathers else able[:1]:
            held[worker].add(partition)
            yield Place(worker, partition, valid=True)


def _valid_held(schedule: Schedule, coming: Collection[Place]) -> dict[str, set[int]]:
    """Return the validation partitions that each worker in use can read, now or soon."""
    every = range(schedule.valid_partitions)
    held = {
        slot.worker: set(every if slot.valid is None else slot.valid)
        for slot in schedule.slots.values()
        if not slot.retired
    }
    for worker, partition, valid in coming:
        if valid and worker in held:
            held[worker].add(partition)
    return held


class _Plan:
    """The readable partitions of each worker after all planned placements; workers that can read all are left out."""

    def __init__(self, schedule: Schedule, coming: Collection[Place]) -> None:
        self._schedule = schedule
        self._readers = [schedule.replicas(partition) for partition in range(schedule.partitions)]
        self.held: dict[str, set[int]] = {
            slot.worker: set(slot.partitions)
            for slot in schedule.slots.values()
            if slot.partitions is not None and not slot.retired
        }
        for worker, partition, valid in coming:
            if not valid:
                self.add(worker, partition)

    def add(self, worker: str, partition: int) -> None:
        if worker in self.held:
            self.held[worker].add(partition)
            self._readers[partition] += 1

    def load(self, worker: str) -> float:
        estimates = self._schedule.estimates
        rows = sum(estimates.size(partition) / self._readers[partition] for partition in self.held[worker])
        return rows * estimates.slowness(worker)
