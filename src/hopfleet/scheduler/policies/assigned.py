"""The policy that follows a plan in which each unit has its worker, where several workers read a partition.

The plan (``planner.assigned``) holds for units that take as long as expected. It ends when something else happens: a
unit is lost, a trial ends early, or workers come or go. Then ``fits`` says so, and another policy has to choose.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping

from hopfleet.domain.unit import Unit
from hopfleet.planner.assigned import TrialWork, plan
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment


class Assigned:
    """A plan for the units that have not started, and what is left of it."""

    def __init__(self, schedule: Schedule) -> None:
        workers = [worker for worker, slot in schedule.slots.items() if not slot.retired]
        trials = [progress for progress in schedule.trials.values() if _units(progress)]
        free = [_free(schedule, worker) for worker in workers]
        made = plan([_task(schedule, progress, workers) for progress in trials], free, random.Random(0))
        #: When the plan says that all units have ended.
        self.end = made.end + schedule.now
        #: The units of each worker and of each trial in turn.
        self._workers: dict[str, deque[tuple[str, int]]] = {worker: deque() for worker in workers}
        self._trials: dict[str, deque[str]] = {progress.trial.id: deque() for progress in trials}
        for trial, partition, worker in made.visits:
            name = trials[trial].trial.id
            self._workers[workers[worker]].append((name, partition))
            self._trials[name].append(workers[worker])

    def fits(self, schedule: Schedule) -> bool:
        """Whether all units are owed that the plan has left, and no others."""
        owed = {name: units for name, progress in schedule.trials.items() if (units := _units(progress))}
        return owed == {name: len(workers) for name, workers in self._trials.items() if workers}

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        for worker, slot in schedule.idle.items():
            units = self._workers.get(worker)
            if not units:
                continue
            trial, partition = units[0]
            progress = schedule.ready.get(trial)
            if (
                progress is None
                or self._trials[trial][0] != worker
                or partition not in schedule.options(progress, slot)
            ):
                continue
            units.popleft()
            self._trials[trial].popleft()
            return Assignment(worker, Unit(trial, progress.epoch, partition))
        return None


def possible(schedule: Schedule) -> bool:
    """Whether a plan can be followed: units are left, each partition has a worker, and no other rule chooses visits."""
    left = any(_units(progress) for progress in schedule.trials.values())
    free = (
        left
        and not schedule.sticks
        and not any(progress.forced or progress.outcome for progress in schedule.trials.values())
    )
    return free and all(schedule.replicas(partition) for partition in range(schedule.partitions))


def _units(progress: Progress) -> int:
    """Return the units of a trial that have not started."""
    return progress.units_left - (progress.trains_on is not None)


def _task(schedule: Schedule, progress: Progress, workers: list[str]) -> TrialWork:
    number, running = {worker: index for index, worker in enumerate(workers)}, set[int]()
    ready = 0.0
    if progress.trains_on is not None:
        slot = schedule.slots[progress.trains_on]
        running = {slot.unit_of(progress.trial.id).partition}
        ready = _free(schedule, progress.trains_on)
    seconds: list[Mapping[int, float]] = []
    for partition in range(schedule.partitions):
        readers = [w for w in workers if (held := schedule.slots[w].partitions) is None or partition in held]
        seconds.append({number[worker]: schedule.expected(progress, worker, partition) for worker in readers})
    todo = frozenset(progress.todo) - running
    laps, rest = divmod(_units(progress) - len(todo), schedule.partitions)
    assert not rest, progress.story()
    return TrialWork(seconds, todo, laps, ready)


def _free(schedule: Schedule, worker: str) -> float:
    """Return in how many seconds a worker will have ended what it trains."""
    slot = schedule.slots[worker]
    units = (unit for unit in slot.told if unit.trains)
    seconds = sum(schedule.expected(schedule.trials[unit.trial], worker, unit.partition) for unit in units)
    return max(0.0, slot.started + seconds - schedule.now)
