"""Who else might come along: trials that can share the batches of a unit that is about to start.

A policy chooses one unit for one worker. Others fit it if they owe the same partition in the same epoch, want batches
of the same size, and have their model at hand; together they read, transform and move every batch once. A flotilla is
made anew for each unit, so nobody waits for anybody: those that ran together are ready together, and mostly go on
together.

Slow and quick ones may go together. Where members step in turn the worker is busy all the time; where they step side by
side the slowest sets the pace, and it would take no less without the others, who would have to come after it. What they
may not do is to take more than their worker's share while another one is idle. Where hops take time, half of that share
is enough, unless much is gained by going together: a model that waits can travel while another one trains.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from hopfleet.domain.trial import Config
from hopfleet.domain.unit import Unit, Work
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule, Slot

UNKNOWN = 8
"""The most members while nobody knows how large a model is."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Which trials may train together, and how many."""

    #: Trials train together only if this is the same for them.
    kin: Callable[[Config], Hashable]
    #: The most members.
    most: int = 32
    #: Bytes of models that a worker may have at work.
    memory: int = 1 << 30
    #: Bytes that a model takes at work, by a profile; 0 while there is none.
    size: int = 0

    def limit(self, saved: int) -> int:
        """The most members if the largest model that was ``saved`` has so many bytes; 0 says that nobody knows."""
        size = max(saved, self.size)
        return min(self.most, max(1, self.memory // size) if size else UNKNOWN)


def companions(
    schedule: Schedule, slot: Slot, unit: Unit, fusion: Fusion, coming: int = 0, groups: int = 1
) -> list[Unit]:
    """The units that a worker should run together with ``unit``.

    Enough is left for the other workers, those ``coming`` included: a flotilla takes no more than its worker's share
    of one unit of every trial, or less, so that there are so many ``groups`` for each worker.
    Whoever was lost with its worker goes alone, so that it shows whose fault it was.
    """
    first = schedule.trials[unit.trial]
    room = fusion.limit(schedule.model_bytes) - 1
    if room < 1 or first.losses:
        return []
    kin = fusion.kin(first.trial.config)
    able = _trainable if unit.work is Work.TRAIN else _evaluable
    found = [
        progress
        for progress in able(schedule, slot, unit)
        if progress is not first and not progress.losses and fusion.kin(progress.trial.config) == kin
    ]
    # Who is here already comes first, then the one that is most like the first.
    found.sort(key=lambda progress: (progress.holder != slot.worker, progress.trial.number))
    chosen: list[Unit] = []
    share = sum(map(schedule.unit_seconds, schedule.trials.values()))
    share /= groups * (len(schedule.slots) + coming)
    taken = schedule.unit_seconds(first)
    for progress in found[:room]:
        seconds = schedule.unit_seconds(progress)
        if taken + seconds / 2 > share:
            break
        taken += seconds
        chosen.append(Unit(progress.trial.id, unit.epoch, unit.partition, unit.work))
    return chosen


def _trainable(schedule: Schedule, slot: Slot, unit: Unit) -> Iterable[Progress]:
    for progress in schedule.able(slot):
        if progress.epoch == unit.epoch and unit.partition in schedule.options(progress, slot):
            yield progress


def _evaluable(schedule: Schedule, slot: Slot, unit: Unit) -> Iterable[Progress]:
    for progress in schedule.awaiting.values():
        here = progress.epoch - 1 == unit.epoch and progress.loadable_by(slot.worker)
        if here and unit.partition in schedule.unevaluated(progress):
            yield progress
