"""Whether workers give way to teams of their devices, because fewer trials than devices are left."""

from __future__ import annotations

from collections.abc import Iterator

from hopfleet.controller.decisions.trials import next_suggestion
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.planner.teams import Scaling, better_teams, even_teams
from hopfleet.scheduler.timeouts import estimate


def regroup(state: State, scaling: Scaling) -> Iterator[m.Message]:
    """Retire all workers if teams of their devices end all trials sooner; form these teams when the workers are gone.

    Trials that end meanwhile leave more devices to the others, and so do workers that join.
    """
    schedule = state.schedule
    if schedule.regrouping:
        yield from retire_all(state)
        if not schedule.slots and schedule.trials and not state.ending:
            sizes = even_teams(len(schedule.trials), schedule.regrouping, scaling)
            yield state.decide(m.FormTeams(tuple(map(scaling.shape, sizes))))
    elif _last_trials(state) and _teams_pay(state, scaling):
        yield from retire_all(state)


def retire_all(state: State) -> Iterator[m.Message]:
    """Retire all workers that are in use, to make room for teams."""
    for slot in state.schedule.slots.values():
        if not slot.retired:
            yield state.decide(m.WorkerRetired(slot.worker))


def adds_trials(state: State) -> bool:
    """Whether the search will add trials, now or as others end."""
    search = state.search
    return (search.streams and state.suggested < search.trials) or next_suggestion(state) is not None


def _last_trials(state: State) -> bool:
    """Whether trials are under way, and neither trials nor workers will follow or are about to leave."""
    busy = state.ending or state.stands or state.schedule.starting or state.waiting or state.requests
    if busy or state.coming or any(slot.retired for slot in state.schedule.slots.values()):
        return False
    return bool(state.schedule.trials and state.schedule.slots) and not adds_trials(state)


def _teams_pay(state: State, scaling: Scaling) -> bool:
    """Whether teams end all trials sooner, as far as the time of their units is known."""
    schedule, slots = state.schedule, list(state.schedule.slots.values())
    if not all(progress.known for progress in schedule.trials.values()):
        return False
    # A unit that runs ends where it is.
    work = [
        schedule.unit_seconds(progress) * (progress.units_left - (progress.trains_on is not None))
        for progress in schedule.trials.values()
    ]
    wait = max(estimate(schedule, slot) or 0.0 for slot in slots)
    return bool(better_teams(work, [slot.devices for slot in slots], schedule.devices, scaling, wait))
