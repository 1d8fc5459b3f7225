"""A shop with replicas in virtual time, for tests of policies: units take the times that the test says."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.schedule import Schedule
from tests.helpers.schedule_desk import trial


class ReplicaShop:
    """Workers w1, w2, ... with the partitions that they read and their slowness; trials with seconds by partition."""

    def __init__(
        self, workers: Sequence[tuple[Sequence[int], float]], times: Sequence[Sequence[float]], *, prior: bool = True
    ) -> None:
        self.slowness = {f"w{number}": slow for number, (_, slow) in enumerate(workers, 1)}
        self.times = times
        self.policy: Policy
        estimates = Estimates([1] * len(times[0]), self._expected if prior else None)
        self.schedule = Schedule(len(times[0]), 0, estimates)
        for number, (readable, _) in enumerate(workers, 1):
            self.schedule.join(f"w{number}", readable)

    def _expected(self, number: int, worker: str, partition: int) -> float:
        return self.times[number - 1][partition] * self.slowness[worker]

    def run(self, policy: Policy, *, epochs: int = 1, arrivals: Mapping[int, float] | None = None) -> float:
        """Return the time when all trials have ended; those with ``arrivals``, by number, are added at that time."""
        schedule, running, attempts = self.schedule, list[tuple[float, int, str, Unit]](), 0
        waiting = sorted((at, number) for number, at in (arrivals or {}).items())
        for number in range(1, len(self.times) + 1):
            if number not in (arrivals or {}):
                schedule.add(trial(number, epochs))
        while True:
            while schedule.idle and schedule.ready and (found := policy(schedule, random.Random(0))) is not None:
                attempts += 1
                schedule.start(found.worker, found.unit, attempts)
                end = schedule.now + self._expected(int(found.unit.trial[1:]), found.worker, found.unit.partition)
                heapq.heappush(running, (end, attempts, found.worker, found.unit))
            if waiting and (not running or waiting[0][0] <= running[0][0]):
                schedule.now, number = waiting.pop(0)
                schedule.add(trial(number, epochs))
            elif running:
                schedule.now, _, worker, unit = heapq.heappop(running)
                self._finish(worker, unit)
            else:
                assert not schedule.trials, "the policy waits for nothing"
                return schedule.now

    def _finish(self, worker: str, unit: Unit) -> None:
        schedule, progress = self.schedule, self.schedule.trials[unit.trial]
        schedule.finish(worker, unit, schedule.now - schedule.slots[worker].started, {})
        schedule.saved(VersionRef(unit.trial, progress.version, 0), durable=False)
        if progress.awaits_evaluation:
            schedule.end_epoch(unit.trial)
        if not progress.units_left:
            schedule.park(unit.trial, TrialState.COMPLETED)
