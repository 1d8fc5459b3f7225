"""Which worker gets which training partition, where workers can read only some of them.

A partition that no worker can read any more goes to the worker with the least to do. A worker without partitions gets
copies of the partitions of the worker with the most to do. The work of a worker is counted as if all trials still had
to visit every partition: the rows that the worker reads, divided among all workers that read them, times its slowness.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hopfleet.scheduler.schedule import Schedule

Place = tuple[str, int]
"""A worker and a partition."""


def placements(schedule: Schedule, coming: Collection[Place], refused: Collection[Place]) -> Iterator[Place]:
    """Yield the placements to make besides those ``coming``; skip workers that ``refused`` a partition."""
    plan = _Plan(schedule, coming)
    for partition in sorted(lost(schedule, coming), key=lambda p: (-schedule.estimates.size(p), p)):
        able = [worker for worker in plan.held if (worker, partition) not in refused]
        if able:
            worker = min(able, key=plan.load)
            plan.add(worker, partition)
            yield worker, partition
    for worker in [worker for worker, partitions in plan.held.items() if not partitions]:
        busiest = max(plan.held, key=plan.load)
        for partition in sorted(plan.held[busiest]):
            if (worker, partition) not in refused:
                plan.add(worker, partition)
                yield worker, partition


def lost(schedule: Schedule, coming: Collection[Place]) -> list[int]:
    """Return the partitions that a trial needs and that no worker can read, now or soon."""
    soon = {partition for _, partition in coming}
    return [
        partition
        for partition in range(schedule.partitions)
        if schedule.owed[partition] > 0 and not schedule.replicas(partition) and partition not in soon
    ]


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
        for worker, partition in coming:
            self.add(worker, partition)

    def add(self, worker: str, partition: int) -> None:
        if worker in self.held:
            self.held[worker].add(partition)
            self._readers[partition] += 1

    def load(self, worker: str) -> float:
        estimates = self._schedule.estimates
        rows = sum(estimates.size(partition) / self._readers[partition] for partition in self.held[worker])
        return rows * estimates.slowness(worker)
