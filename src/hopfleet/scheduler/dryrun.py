"""Dry runs inside a decision, in virtual time: of a dispatch rule on the shop state, or of a policy on the schedule.

Both see expected times only, as in a real run. A rule's actual times are the expected times multiplied by a factor. A
policy's units take as long as expected, with or without replicas, and every model is at hand at once; evaluations and
flotillas are left out.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.dispatch import Policy, possible
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import TICK, DispatchRule, ShopState

Seconds = Callable[[str, str, int], float]
"""Returns the expected seconds of a unit, by trial, worker and partition."""

Factor = Callable[[int, int, int], float]
"""Actual by expected unit time, by trial, partition and epoch."""

DRAWN = 10007
"""Random numbers shared by all dry runs, each from its own offset; prime, so that units rarely share a number."""


def exact(trial: int, partition: int, epoch: int) -> float:
    """Return the factor of a unit that takes exactly its expected time."""
    return 1.0


def lognormal(sigma: float, seed: int) -> Factor:
    """Return independent factors with mean 1; a unit gets the same factor under every dispatch rule."""
    normals, shift, exp = _normals(), -sigma * sigma / 2, math.exp

    def factor(trial: int, partition: int, epoch: int) -> float:
        return exp(shift + sigma * normals[(seed + 8191 * trial + 131 * partition + 17 * epoch) % DRAWN])

    return factor


@cache
def _normals() -> list[float]:
    rng = random.Random(0)
    return [rng.gauss(0.0, 1.0) for _ in range(DRAWN)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a dry run. ``bound`` is a lower bound on the makespan with the same actual times."""

    makespan: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.makespan / self.bound if self.bound else 1.0


def dry_run(state: ShopState, rule: DispatchRule, *, laps: int = 0, factor: Factor = exact) -> Outcome:
    """Simulate the units of a state, with at most ``laps`` further epochs. Running units end as expected."""
    return _simulate(state.copy(laps), rule, factor, math.inf)


def later(state: ShopState, rule: DispatchRule, *, laps: int, ends: int) -> ShopState:
    """Return the state after the next ``ends`` ends of units, or after all, if units take as long as expected."""
    state = state.copy(laps)
    _simulate(state, rule, exact, ends)
    return state


def _simulate(state: ShopState, rule: DispatchRule, factor: Factor, ends: float) -> Outcome:
    begun = state.now
    running = [(max(state.worker_free[worker], begun), worker) for worker in state.runs]
    heapq.heapify(running)
    trials = [max(free - begun, 0.0) for free in state.trial_free]
    workers = [max(free - begun, 0.0) for free in state.worker_free]
    seconds, epoch, now = state.seconds, state.epoch, begun
    while True:
        if state.idle_trials and state.idle_workers:
            for trial, worker in rule(state):
                partition = state.start(trial, worker)
                actual = seconds[trial][partition] * factor(trial, partition, epoch[trial])
                trials[trial] += actual
                workers[worker] += actual
                heapq.heappush(running, (now + actual, worker))
        if not running or ends <= 0:
            # A rule that waits for nothing would never end.
            stalled = not running and any(map(state.owes, range(len(trials))))
            return Outcome(math.inf if stalled else now - begun, max(*trials, *workers, 0.0))
        now = state.now = running[0][0]
        # Ends that differ by rounding only are one event.
        same = now + TICK
        while running and running[0][0] <= same:
            state.finish(heapq.heappop(running)[1])
            ends -= 1


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
    copy.now = schedule.now
    copy.measured, copy.seconds = schedule.measured, schedule.seconds
    for worker, slot in schedule.slots.items():
        copy.join(worker, slot.partitions, slot.devices)
        if slot.retired:
            copy.retire(worker)
    copy.layouts, copy.speed = schedule.layouts, schedule.speed
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
