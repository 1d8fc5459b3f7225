"""A schedule in seconds, for tests of single decisions: workers of known speed, trials of known length."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.schedule import Schedule
from tests.helpers.schedule_desk import trial

SPEEDS = {"slow": 1.0, "slow2": 1.0, "fast": 4.0, "quick": 4.0}
"""Of workers by name."""
RNG = random.Random(0)


def shop_floor(
    *workers: str,
    trials: int = 2,
    epochs: int = 2,
    partitions: int = 2,
    valid: int = 1,
    onward: int = 0,
    reads: Mapping[str, Sequence[int]] | None = None,
) -> Schedule:
    """Return a schedule at 100 seconds; a unit of trial n takes n times 8 seconds on a worker of speed 1.

    Workers read all partitions, or those that ``reads`` names.
    """
    prior = lambda number, worker, partition: 8.0 * number / SPEEDS[worker]  # noqa: E731
    schedule = Schedule(partitions, valid, Estimates([1.0] * partitions, prior))
    schedule.now = 100.0
    for worker in workers:
        schedule.join(worker, None if reads is None else reads[worker])
    for number in range(1, trials + 1):
        schedule.add(trial(number, epochs), onward=onward)
    return schedule


def begin(schedule: Schedule, worker: str, name: str, partition: int = 0, **options: Any) -> Unit:
    unit = Unit(name, schedule.trials[name].epoch, partition)
    schedule.start(worker, unit, 1, **options)
    return unit


def end(schedule: Schedule, worker: str, seconds: float) -> None:
    schedule.now += seconds
    unit = schedule.slots[worker].unit
    assert unit is not None
    schedule.finish(worker, unit, seconds, {})


def decide(policy: Policy, schedule: Schedule) -> list[tuple[str, str]]:
    """Start units until the policy waits, and return which trials start where."""
    started = []
    while (found := policy(schedule, RNG)) is not None:
        schedule.start(found.worker, found.unit, 1)
        started.append((found.unit.trial, found.worker))
    return started
