"""Flotillas: trials that can share the batches of a unit that is about to start.

A policy chooses one unit for one worker. Further trials fit the unit if they still have to visit the same partition in
the same epoch, have the same group key (the batch size, unless the device can mix sizes), and can load their model
there; together they read, transform and move every batch once. A flotilla is formed anew for each unit, so no trial
waits for another: trials that ran together are ready together, and usually continue together.

Trials whose weights can be stacked for certain are preferred as companions of each other. Where a part of them would
gain little, as on a CPU, those of another form come all at once or not at all: a stack that gains or loses members is
built anew.

Measured rates decide who waits for whom. Each unit counts with its share of the time of its flotilla: on the CPU by the
clock of the host, on CUDA by the time that the device works for each member. Slow and fast trials may be members of one
flotilla. Where members step in turn, the worker is always busy. Where they step side by side, the slowest sets the
pace, and with one worker it would take as long without the others, which would then run after it. With several workers,
a trial that takes more than a worker's share is a companion of none: the others train together on other workers and do
not wait for it. Nor must a flotilla take more than that share while another worker is idle; stacks whose members stay
may take a little more. Where hops take time, half of the share is enough, unless training together gains much: a
waiting model can travel while another one trains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass

from hopfleet.domain.trial import Config
from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Slot

UNKNOWN = 8
"""Maximum number of members while the size of a model is unknown."""


STAYING = 1.25
"""How much of its worker's share a stack may take if its members stay: one that sheds members because measured rates
vary is built anew, and takes nearly as long without them."""


def _formless(config: Config) -> Hashable:
    """Count all trials as alike."""
    return None


@dataclass(frozen=True, slots=True)
class Fusion:
    """Which trials may train together, and how many."""

    #: Returns the group key of a configuration; trials train together only if their keys are equal.
    group_key: Callable[[Config], Hashable]
    #: Returns a finer key; among trials that may train together, those with equal finer keys come first.
    form: Callable[[Config], Hashable] = _formless
    #: Whether trials of another form than the first join a flotilla that trains only all at once.
    whole: bool = False
    #: Maximum number of members.
    most: int = 32
    #: Maximum bytes of the models that a worker trains at once.
    memory: int = 1 << 30
    #: Bytes of a model during training, from a profile; 0 if there is none.
    size: int = 0

    def limit(self, saved: int) -> int:
        """Return the maximum number of members; ``saved`` are the bytes of the largest saved model, 0 if unknown."""
        size = max(saved, self.size)
        return min(self.most, max(1, self.memory // size) if size else UNKNOWN)


def companions(
    schedule: Schedule,
    slot: Slot,
    unit: Unit,
    fusion: Fusion,
    coming: int = 0,
    groups: int = 1,
    together: Collection[str] | None = None,
) -> list[Unit]:
    """Return the units that a worker should run together with ``unit``.

    A flotilla takes at most its worker's share of one unit of every trial, divided by the ``groups`` wanted per worker,
    so that enough is left for the other workers, including those ``coming``; or the trials that a policy wants
    ``together``. A trial that takes more than that share by itself joins no flotilla. A trial whose worker was lost
    trains alone, which shows whether the trial caused the loss.
    """
    first = schedule.trials[unit.trial]
    room = fusion.limit(schedule.model_bytes) - 1
    if room < 1 or first.losses:
        return []
    share = sum(map(schedule.unit_seconds, schedule.trials.values()))
    share /= groups * (len(schedule.slots) + coming)
    group_key = fusion.group_key(first.trial.config)
    able = _trainable if unit.trains else _evaluable
    found = [
        progress
        for progress in able(schedule, slot, unit)
        if progress is not first
        and not progress.losses
        and (schedule.unit_seconds(progress) <= share if together is None else progress.trial.id in together)
        and fusion.group_key(progress.trial.config) == group_key
    ]
    # Prefer trials of the same form, then those whose model this worker holds, then the lowest number.
    form = fusion.form(first.trial.config)
    found.sort(
        key=lambda progress: (
            fusion.form(progress.trial.config) != form,
            progress.holder != slot.worker,
            progress.trial.number,
        )
    )
    chosen: list[Progress] = []
    taken = schedule.unit_seconds(first)
    for some in _parts(found, fusion, form) if fusion.whole and unit.trains else ([one] for one in found):
        seconds = sum(map(schedule.unit_seconds, some))
        stays = fusion.whole and all(progress.holder == slot.worker for progress in some)
        most = share * STAYING if stays else share
        if len(chosen) + len(some) > room or (together is None and taken + seconds / 2 > most):
            break
        taken += seconds
        chosen += some
    return [Unit(progress.trial.id, unit.epoch, unit.partition, unit.work) for progress in chosen]


def _parts(found: list[Progress], fusion: Fusion, form: Hashable) -> Iterable[list[Progress]]:
    """Divide trials into those that join a flotilla at once: one by one those of ``form``, and all of another form."""
    parts: dict[Hashable, list[Progress]] = {}
    for progress in found:
        own = fusion.form(progress.trial.config)
        parts.setdefault((own, progress.trial.id if own == form else ""), []).append(progress)
    return parts.values()


def _trainable(schedule: Schedule, slot: Slot, unit: Unit) -> Iterable[Progress]:
    for progress in schedule.able(slot):
        if progress.epoch == unit.epoch and unit.partition in schedule.options(progress, slot):
            yield progress


def _evaluable(schedule: Schedule, slot: Slot, unit: Unit) -> Iterable[Progress]:
    for progress in schedule.awaiting.values():
        here = progress.epoch - 1 == unit.epoch and progress.loadable_by(slot.worker)
        if here and unit.partition in schedule.unevaluated(progress):
            yield progress
