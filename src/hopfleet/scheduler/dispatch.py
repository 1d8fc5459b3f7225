"""The next work for an idle worker: evaluations of models that the worker holds, then training, then others.

An evaluation on the worker that trained the model last costs no hop and lets the trial continue, so it comes first. So
does an evaluation on a validation partition that the worker with the model cannot read. On any other worker an
evaluation costs a hop, so it only fills time that no training unit can use.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment, Slot


class Policy(Protocol):
    """A callable that picks the next training unit for some idle worker. A plain function will do.

    A policy reads the schedule and changes nothing but its own memory; two controllers must not share a policy. None
    means that no idle worker should start anything before the next event. If a unit could start, a policy may return
    None only while a unit runs or a model is being saved (``schedule.under_way``); otherwise ``possible`` units start
    in its place. A schedule may present workers that will soon be done as idle, to ask for their next unit in advance.
    """

    def __call__(self, schedule: Schedule, rng: random.Random, /) -> Assignment | None: ...


def next_assignment(schedule: Schedule, policy: Policy, rng: random.Random) -> Assignment | None:
    """Return one unit that an idle worker should start now, or None if none should."""
    if not schedule.idle:
        return None
    return (
        _evaluation(schedule, elsewhere=False)
        or _urgent(schedule)
        or (_sticky(schedule) if schedule.sticks else None)
        or (policy(schedule, rng) if schedule.ready else None)
        or _evaluation(schedule, elsewhere=True)
    )


def possible(schedule: Schedule) -> Assignment | None:
    """Return a unit of the longest trial that some idle worker can train: the choice of a policy that never waits."""
    return _first(schedule, schedule.longest)


def foreseen(schedule: Schedule, policy: Policy, rng: random.Random, slots: dict[str, Slot]) -> Assignment | None:
    """Return the training unit that one of these workers would get if it were idle."""
    with schedule.supposing(slots):
        return (
            _urgent(schedule)
            or (_sticky(schedule) if schedule.even else None)
            or (policy(schedule, rng) if schedule.ready else None)
        )


def _urgent(schedule: Schedule) -> Assignment | None:
    """Return a unit of the trial with the highest level above 0 that an idle worker can train."""
    urgent = [schedule.ready[trial] for trial in schedule.urgent if trial in schedule.ready]
    for progress in sorted(urgent, key=lambda progress: -progress.level):
        for slot in sorted(schedule.idle.values(), key=lambda slot: slot.worker != progress.holder):
            if schedule.suits(progress, slot) and schedule.options(progress, slot):
                return _at(schedule, progress, slot)
    return None


def _sticky(schedule: Schedule) -> Assignment | None:
    """Return a unit of the trial with the most work left among the trials whose models idle workers hold."""
    return _first(schedule, schedule.longest_held)


def _first(schedule: Schedule, choose: Callable[[Slot], Progress | None]) -> Assignment | None:
    """Return a unit of the trial that is chosen for the first idle worker with such a trial."""
    for slot in schedule.idle.values():
        progress = choose(slot)
        if progress is not None:
            return _at(schedule, progress, slot)
    return None


def _at(schedule: Schedule, progress: Progress, slot: Slot) -> Assignment:
    """Return the next unit of a trial at a worker, on the partition that the worker read last if possible."""
    options = schedule.options(progress, slot)
    partition = slot.warm if slot.warm in options else min(options)
    assert partition is not None
    return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch, partition))


def _evaluation(schedule: Schedule, *, elsewhere: bool) -> Assignment | None:
    """Return an evaluation for an idle worker; with ``elsewhere``, also one that the worker with the model can do."""
    for progress in schedule.awaiting.values():
        for slot in schedule.idle.values():
            if not progress.loadable_by(slot.worker):
                continue
            for partition in schedule.evaluations(progress, slot, elsewhere=elsewhere):
                return Assignment(slot.worker, Unit(progress.trial.id, progress.epoch - 1, partition, Work.EVALUATE))
    return None
