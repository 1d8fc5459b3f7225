"""Rehearsals: the makespan of a policy on a copy of a schedule, in virtual time, with or without replicas.

Units take as long as expected, and every model is at hand at once. Evaluations and flotillas are left out.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dispatch import Policy, possible
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import TICK

Seconds = Callable[[str, str, int], float]
"""Returns the expected seconds of a unit, by trial, worker and partition."""


def rehearse(schedule: Schedule, policy: Policy, *, laps: int) -> float:
    """Return the seconds until all units have ended, with at most ``laps`` epochs after the current ones."""
    seconds, number = _expected(schedule), itertools.count(1)
    copy = _copy(schedule, laps, seconds)
    running: list[tuple[float, int, str, Unit]] = []
    for worker, slot in schedule.slots.items():
        end = slot.started
        for unit in slot.units:
            if unit.trial in copy.trials and unit.trains:
                copy.start(worker, unit, next(number), slot.flotilla)
                end += seconds(unit.trial, worker, unit.partition)
                heapq.heappush(running, (max(end, schedule.now), next(number), worker, unit))
    rng = random.Random(0)
    while True:
        while copy.idle and copy.ready:
            found = policy(copy, rng) or (None if running else possible(copy))
            if found is None:
                break
            end = copy.now + seconds(found.unit.trial, found.worker, found.unit.partition)
            copy.start(found.worker, found.unit, next(number))
            heapq.heappush(running, (end, next(number), found.worker, found.unit))
        if not running:
            return copy.now - schedule.now
        copy.now = running[0][0]
        # Ends that differ by rounding only are one event.
        same = copy.now + TICK
        while running and running[0][0] <= same:
            _, _, worker, unit = heapq.heappop(running)
            _finish(copy, worker, unit, seconds(unit.trial, worker, unit.partition))


def _copy(schedule: Schedule, laps: int, seconds: Seconds) -> Schedule:
    """Return the schedule of the trials that train on, with no unit running."""
    names = {progress.trial.number: name for name, progress in schedule.trials.items()}
    prior = Estimates(
        [schedule.estimates.size(partition) for partition in range(schedule.partitions)],
        lambda number, worker, partition: seconds(names[number], worker, partition),
    )
    copy = Schedule(schedule.partitions, 0, prior)
    copy.now, copy.speed = schedule.now, schedule.speed
    copy.measured, copy.seconds = schedule.measured, schedule.seconds
    for worker, slot in schedule.slots.items():
        copy.join(worker, slot.partitions, slot.devices)
        if slot.retired:
            copy.retire(worker)
    copy.layouts = schedule.layouts
    live = [progress for progress in schedule.trials.values() if progress.outcome is None and progress.units_left]
    # All trials lose the same number of epochs, so their relative progress is kept.
    beyond = max((0, *(progress.trial.epochs - progress.epoch - laps for progress in live)))
    for progress in live:
        trial = replace(progress.trial, epochs=max(progress.epoch, progress.trial.epochs - beyond))
        copied = copy.add(trial, progress.forced, progress.visits)
        copied.state, copied.seconds, copied.measured = progress.state, progress.seconds, progress.measured
        copied.holder = progress.holder
        copy.saved(VersionRef(trial.id, copied.version, 0), durable=False)
    return copy


def _expected(schedule: Schedule) -> Seconds:
    """Return the estimates of a schedule; each estimate is made once."""

    @cache
    def seconds(trial: str, worker: str, partition: int) -> float:
        return schedule.expected(schedule.trials[trial], worker, partition)

    return seconds


def _finish(copy: Schedule, worker: str, unit: Unit, seconds: float) -> None:
    copy.finish(worker, unit, seconds, {})
    progress = copy.trials[unit.trial]
    copy.saved(VersionRef(unit.trial, progress.version, 0), durable=False)
    if progress.awaits_evaluation:
        copy.end_epoch(unit.trial)
    if not progress.units_left:
        copy.park(unit.trial, TrialState.COMPLETED)
