"""Whether workers give way to other teams of their devices, because all trials would end sooner."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import partial

from hopfleet.controller.decisions.trials import next_suggestion
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.planner.regrouping import BusyWorker, Change, Job, better_division, starts, teams_for
from hopfleet.planner.teams import Scaling, better_teams, even_teams
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.policies.longest_remaining import next_unit
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import TICK
from hopfleet.scheduler.slots import Assignment, Slot
from hopfleet.scheduler.timeouts import estimate

PART = 0.1
"""Part of all units after which another division is looked for, though trials and workers are the same."""

MANY = 4
"""Trials per device; with more, the end of a trial is no reason to look for another division."""


class Teams:
    """What teams are there: which workers retire to make room for others, and which teams form then."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        #: The basis of the last look: the live trials, which workers there were, the units left and those that ended.
        self._seen: tuple[int, int] | None = None
        self._units, self._ends = 0, -1
        #: The last change, of how many trials, and when its teams are expected once they form.
        self._change, self._trials, self._expected = Change((), ()), 0, math.inf

    def regroup(self, state: State) -> Iterator[m.Message]:
        """Retire workers if other teams of their devices end all trials sooner, and form these when they are gone."""
        schedule = state.schedule
        if schedule.regrouping:
            if self.scaling.nodes:  # pragma: no cover - tested on a Ray cluster
                yield from retire_all(state)
            if not any(slot.for_teams for slot in schedule.slots.values()) and schedule.trials and not state.ending:
                self._expected = schedule.now + self.scaling.form_seconds
                yield state.decide(m.FormTeams(tuple(map(self.scaling.shape, self._sizes(schedule)))))
        elif not _settled(state):
            return
        elif self.scaling.nodes:  # pragma: no cover - tested on a Ray cluster
            if _teams_pay(schedule, self.scaling):
                yield from retire_all(state)
        elif self._is_due(schedule):
            yield from self._find(state)

    def meanwhile(self, schedule: Schedule) -> Policy | None:
        """Return the policy for workers that stay while others make room for teams; None if no team is expected.

        A trial may wait for a team rather than start a long unit on fewer devices.
        """
        if not (schedule.regrouping or (schedule.forming and schedule.starting)) or self.scaling.nodes:
            return None
        leaving = [_free(schedule, slot) for slot in schedule.slots.values() if slot.for_teams]
        expected = max(leaving) + self.scaling.form_seconds if leaving else self._expected
        if expected + self.scaling.form_seconds < schedule.now:  # pragma: no cover - tested with real teams
            return None  # it is late
        return partial(self._start, max(expected, schedule.now + TICK))

    def _start(self, expected: float, schedule: Schedule, rng: random.Random) -> Assignment | None:
        slots = [slot for slot in schedule.slots.values() if not slot.retired]
        forming = self._change.form if schedule.regrouping else self._change.form[: schedule.forming]
        members = [*(BusyWorker(slot.devices, _free(schedule, slot)) for slot in slots)]
        members += [BusyWorker(size, expected) for size in forming]
        idle = {number for number, slot in enumerate(slots) if slot.worker in schedule.idle}
        trials = list(schedule.trials)
        found = starts(_jobs(schedule), members, idle, self.scaling, schedule.now, self._change.style)
        for trial, worker in found:
            progress = schedule.ready.get(trials[trial])
            if (
                worker in idle and progress is not None and schedule.options(progress, slots[worker])
            ):  # pragma: no branch
                return next_unit(schedule, progress, slots[worker])
        return None

    def _sizes(self, schedule: Schedule) -> tuple[int, ...]:
        """Return the teams to form now: trials and workers may have ended or come since workers retired."""
        if self.scaling.nodes:  # pragma: no cover - tested on a Ray cluster
            return even_teams(len(schedule.trials), schedule.regrouping, self.scaling)
        if sum(self._change.form) <= schedule.regrouping and self._trials == len(schedule.trials):
            return self._change.form
        work = [schedule.unit_seconds(progress) * max(1, progress.units_left) for progress in schedule.trials.values()]
        kept = [slot.devices for slot in schedule.slots.values() if not slot.retired]
        return teams_for(work, kept, schedule.regrouping, self.scaling)

    def _is_due(self, schedule: Schedule) -> bool:
        """Whether trials or workers are others than at the last look, or a part of the units has ended since."""
        units, seen = sum(schedule.owed), (len(schedule.trials), schedule.layouts)
        others = seen != self._seen and len(schedule.trials) <= MANY * schedule.devices
        # Between two changes some unit ends, so changes end as well.
        if self._ends == schedule.ends or not (others or abs(self._units - units) >= PART * self._units):
            return False
        if not all(progress.known for progress in schedule.trials.values()):
            return False
        self._seen, self._units, self._ends = seen, units, schedule.ends
        return True

    def _find(self, state: State) -> Iterator[m.Message]:
        schedule, slots = state.schedule, list(state.schedule.slots.values())
        workers = [BusyWorker(slot.devices, _free(schedule, slot)) for slot in slots]
        # Where workers read some partitions only, those that stay might lack what the others take along.
        whole = state.pinned
        change = better_division(_jobs(schedule), workers, schedule.spare, self.scaling, schedule.now, whole=whole)
        if change is not None:
            self._change, self._trials = change, len(schedule.trials)
            for number in change.leave:
                yield state.decide(m.WorkerRetired(slots[number].worker, for_teams=True))


def _jobs(schedule: Schedule) -> list[Job]:
    jobs = []
    for name, progress in schedule.trials.items():
        units, ready = progress.units_left, schedule.now
        if progress.trains_on is not None:
            slot = schedule.slots[progress.trains_on]
            units -= sum(unit.trial == name for unit in slot.told)
            ready = _free(schedule, slot)
        elif name not in schedule.ready:
            ready += TICK  # it is evaluated, or saved
        jobs.append(Job(schedule.unit_seconds(progress), max(0, units), ready))
    return jobs


def _free(schedule: Schedule, slot: Slot) -> float:
    """Return when a worker will have ended what it was told to train."""
    training = [unit for unit in slot.told if unit.trains]
    seconds = (schedule.expected(schedule.trials[unit.trial], slot.worker, unit.partition) for unit in training)
    return max(schedule.now + TICK, slot.started + sum(seconds)) if training else schedule.now


def retire_all(state: State) -> Iterator[m.Message]:
    """Retire all workers that are in use, to make room for teams."""
    for slot in state.schedule.slots.values():
        if not slot.retired:
            yield state.decide(m.WorkerRetired(slot.worker, for_teams=True))


def adds_trials(state: State) -> bool:
    """Whether the search will add trials, now or as others end."""
    search = state.search
    return (search.streams and state.suggested < search.trials) or next_suggestion(state) is not None


def _settled(state: State) -> bool:
    """Whether trials are under way, and neither trials nor workers will follow or are about to leave."""
    busy = state.ending or state.stands or state.schedule.starting or state.waiting or state.requests
    if busy or state.coming or any(slot.retired for slot in state.schedule.slots.values()):
        return False
    return bool(state.schedule.trials and state.schedule.slots) and not adds_trials(state)


def _teams_pay(schedule: Schedule, scaling: Scaling) -> bool:  # pragma: no cover - tested on a Ray cluster
    """Whether teams on each node end all trials sooner, as far as the time of their units is known."""
    slots = list(schedule.slots.values())
    if not all(progress.known for progress in schedule.trials.values()):
        return False
    # A unit that runs ends where it is.
    work = [
        schedule.unit_seconds(progress) * (progress.units_left - (progress.trains_on is not None))
        for progress in schedule.trials.values()
    ]
    wait = max(estimate(schedule, slot) or 0.0 for slot in slots)
    return bool(better_teams(work, [slot.devices for slot in slots], schedule.devices, scaling, wait))
