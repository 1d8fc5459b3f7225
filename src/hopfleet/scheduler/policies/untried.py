"""Which worker to try out where nothing was expected beforehand, and trials are fewer than workers.

A trial that stays where it is does not show whether it is long or its worker slow. A try costs a unit on a worker that
may be slow. Of k workers that were tried, the next one is the fastest with a chance of 1 / (k + 1), and then faster by
about 1 / k of the difference between usual and fastest, which is what a try costs. So tries pay while more than
k (k + 1) units can follow, or by trials that end long before the longest one even on the slowest worker.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Collection, Sequence

from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Slot
from hopfleet.scheduler.speeds import EQUAL


def untried(schedule: Schedule) -> tuple[Progress, Slot] | None:
    """Return a trial and an idle worker whose speed no trial has shown, where the trial's own worker has no other work.

    Trials that all take as long where they are show that their workers are equal. Workers that joined one after another
    are often alike, so the farthest from those that were tried comes first.
    """
    speeds = schedule.estimates.speeds
    if schedule.sticks or speeds.costs_known or len(schedule.trials) >= len(schedule.slots):
        return None
    costs = {trial: cost for trial in schedule.trials if (cost := speeds.cost(trial)) is not None}
    unknown = {worker: slot for worker, slot in schedule.idle.items() if not speeds.tells(worker)}
    if not unknown or len(costs) < len(schedule.trials):
        return None
    if len(costs) > 1 and max(costs.values()) - min(costs.values()) <= EQUAL and len(schedule.classes) == 1:
        return None
    tried = [worker for worker in schedule.slots if speeds.tells(worker)]
    slowness = [speeds.slowness(worker) for worker in tried]
    spread = math.exp(max(slowness) - min(slowness)) if tried else 1.0
    work = {trial: math.exp(cost) * schedule.trials[trial].units_left for trial, cost in costs.items()}
    longest, enough = max(work.values(), default=0.0), len(tried) * (len(tried) + 1)
    waiting = [
        progress
        for trial, progress in schedule.ready.items()
        if progress.holder in schedule.idle
        and len(unknown) > (progress.holder in unknown)
        and (progress.units_left > enough or work[trial] * spread < longest)
    ]
    if not waiting:
        return None
    progress = min(waiting, key=lambda each: work[each.trial.id])
    others = [slot for worker, slot in unknown.items() if worker != progress.holder]
    return progress, _farthest(schedule, others, set(tried) or {progress.holder})


def _farthest(schedule: Schedule, slots: Sequence[Slot], tried: Collection[str | None]) -> Slot:
    """Return the slot with the most workers between it and those that were ``tried``, in the order of joining."""
    place = {worker: number for number, worker in enumerate(schedule.slots)}
    known = [number for worker, number in place.items() if worker in tried]

    def distance(slot: Slot) -> int:
        number = place[slot.worker]
        after = bisect(known, number)
        return min(abs(number - other) for other in known[max(0, after - 1) : after + 1])

    return max(slots, key=distance)
