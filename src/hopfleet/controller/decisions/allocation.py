"""How many devices each trial has until which epoch, and the teams that this takes: FLEET's rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hopfleet.controller.decisions.teams import adds_trials, retire_all
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.planner.fleet.allocation import Allocation, Fleet, RemainingWork, allocate
from hopfleet.scheduler.progress import Progress


def allocate_devices(state: State, fleet: Fleet) -> Iterator[m.Message]:
    """Give trials devices when none can go on with those that it has; have teams formed if there are others.

    All workers retire before teams are formed, when they have saved what they hold.
    """
    schedule = state.schedule
    if schedule.regrouping:
        yield from retire_all(state)
        if not schedule.slots and schedule.trials and not state.ending:
            yield from _allocate(state, fleet, schedule.regrouping)
            yield state.decide(m.FormTeams(tuple(map(fleet.scaling.shape, schedule.allocations.teams))))
    elif not _waits(state):
        yield from _allocate(state, fleet, schedule.devices)
        lacking = Counter(schedule.allocations.teams) - Counter(slot.devices for slot in schedule.slots.values())
        if lacking and any(_given(state, progress) in lacking for progress in schedule.trials.values()):
            yield from retire_all(state)


def _waits(state: State) -> bool:
    """Whether workers or requests are about to arrive, workers are about to leave, or nothing may start."""
    schedule = state.schedule
    busy = state.ending or state.stands or schedule.starting or state.waiting or state.requests or state.coming
    return bool(busy) or not schedule.slots or any(slot.retired for slot in schedule.slots.values())


def _given(state: State, progress: Progress) -> int:
    """Return the number of devices on which a trial may train now; 0 if it may not, or was given none."""
    return state.schedule.allocations.devices(progress) if state.schedule.may_train(progress) else 0


def _allocate(state: State, fleet: Fleet, devices: int) -> Iterator[m.Message]:
    teams, singles = state.schedule.allocations.teams, (1,) * devices
    if max(teams, default=1) == 1 and adds_trials(state):
        yield from _give(state, Allocation(singles, *_one_device_each(_without(state))))
        return
    live = state.schedule.trials.values()
    given = {count for progress in live if (count := _given(state, progress))}
    if sum(teams) <= devices:
        under_way = any(each.trains_on or each.evaluates_on or each.awaits_evaluation for each in live)
        if under_way or not given.isdisjoint(teams):
            return
        if again := _fitting(given, devices):
            # Versions were lost, and epochs run again that trained on other teams.
            yield state.decide(m.DevicesAllocated(again))
            return
    free = [progress for progress in live if progress.outcome is None and state.schedule.may_train(progress)]
    if free:
        work = RemainingWork(
            {progress.trial.id: _epochs_left(progress) for progress in free},
            {progress.trial.id: fleet.epoch_seconds(progress.trial, devices) for progress in free},
        )
        listens = state.search.listens
        yield from _give(state, allocate(work, devices, teams or singles, fleet.scaling.form_seconds, lap=listens))


def _without(state: State) -> list[Progress]:
    """Return the trials that were given no devices for their next epoch."""
    trials = state.schedule.trials.values()
    return [each for each in trials if each.outcome is None and not state.schedule.allocations.devices(each)]


def _one_device_each(trials: list[Progress]) -> tuple[dict[str, int], dict[str, int]]:
    return (
        {progress.trial.id: 1 for progress in trials},
        {progress.trial.id: _epochs_left(progress) for progress in trials},
    )


def _epochs_left(progress: Progress) -> int:
    """Return the epochs that a trial has left, with one that it has begun."""
    return progress.trial.epochs - progress.epoch + 1


def _fitting(sizes: set[int], devices: int) -> tuple[int, ...]:
    """Return the teams of these sizes that fit on some devices together, largest first."""
    teams: list[int] = []
    for size in sorted(sizes, reverse=True):
        if sum(teams) + size <= devices:
            teams.append(size)
    return tuple(teams)


def _give(state: State, given: Allocation) -> Iterator[m.Message]:
    if given.devices:
        trials = state.schedule.trials
        until = {trial: trials[trial].epoch - 1 + epochs for trial, epochs in given.epochs.items()}
        yield state.decide(m.DevicesAllocated(given.teams, given.devices, until))
