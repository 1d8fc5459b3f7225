"""Which units start next, alone or as a flotilla, now or after the worker's current unit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hopfleet.controller.decisions.versions import at_risk, ref_of, save_ahead
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.domain.unit import Unit
from hopfleet.scheduler.dispatch import Policy, foreseen, next_assignment, possible
from hopfleet.scheduler.fusion import Fusion, companions
from hopfleet.scheduler.invariants import stall
from hopfleet.scheduler.slots import Assignment, Slot
from hopfleet.scheduler.timeouts import estimate

HALF = 0.5
"""Part of a unit's expected time after which its worker learns what comes next: late enough to know which trials are
free, and early enough for a model to arrive."""

SOON = 2.0
"""Expected seconds of a flotilla's unit up to which the next one is told ahead: as long as a person waits longer for a
pause or an end."""

SLACK = 2
"""Groups of trials per worker that let models travel while others train."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """The policy, and what a unit may start with."""

    policy: Policy
    rng: random.Random
    fusion: Fusion | None = None
    #: Whether workers learn ahead of time what comes next, so that models travel while others train.
    lookahead: bool = False

    def dispatch(self, state: State, policy: Policy | None = None) -> Iterator[m.RunUnit]:
        """Start units until no idle worker can take another one; ``policy`` may take the place of the usual one."""
        while _may_start(state):
            assignment = next_assignment(state.schedule, policy or self.policy, self.rng)
            if assignment is None:
                return
            yield from self._begin(state, assignment)

    def overrule(self, state: State) -> Iterator[m.Message]:
        """Start what is possible if the policy waits although no unit runs and no model is being saved."""
        if not _may_start(state) or state.schedule.under_way:
            return
        while (assignment := possible(state.schedule)) is not None:
            if not state.stalled:
                yield state.decide(m.RunStalled(stall(state.schedule), overruled=True))
            yield from self._begin(state, assignment)

    def go_on(self, state: State) -> Iterator[m.RunUnit]:
        """Tell the only worker what its flotilla does next in this epoch, so that it goes on without an answer.

        No other trial waits for the worker, so it would go on with the same trials anyway.
        """
        schedule = state.schedule
        if self.fusion is None or len(schedule.slots) != 1 or schedule.starting or state.ending or _waits(state):
            return
        (slot,) = schedule.slots.values()
        if slot.unit is None or not slot.flotilla or slot.lookahead or slot.retired or slot.overdue or state.stopped:
            return
        expected = estimate(schedule, slot) if slot.unit.trains else None
        if expected is None or expected > SOON or schedule.ready or schedule.awaiting:
            return
        members = [schedule.trials[unit.trial] for unit in slot.units]
        owed = set.intersection(*(progress.owed_after(slot.unit.partition, slot.partitions) for progress in members))
        if owed and not any(progress.outcome or at_risk(state, progress, progress.version + 1) for progress in members):
            units = [Unit(progress.trial.id, slot.unit.epoch, min(owed)) for progress in members]
            yield from self._start(state, slot, units, lookahead=True)

    def look_ahead(self, state: State, ages: Mapping[str, float]) -> Iterator[m.Message]:
        """Tell workers what comes next, given for how many seconds each has run its current unit."""
        due = {
            slot.worker: slot
            for slot in state.schedule.slots.values()
            if (half := self._half_time(state, slot)) is not None and ages.get(slot.worker, 0.0) >= half
        }
        while due:
            assignment = foreseen(state.schedule, self.policy, self.rng, due)
            if assignment is None:
                return
            yield from save_ahead(state, due.pop(assignment.worker))
            yield from self._begin(state, assignment, lookahead=True)

    def next_look(self, state: State, ages: Mapping[str, float]) -> float:
        """Return the seconds until ``look_ahead`` may have more to tell."""
        halves = ((self._half_time(state, slot), ages.get(slot.worker, 0.0)) for slot in state.schedule.slots.values())
        return min((half - age for half, age in halves if half is not None and age < half), default=math.inf)

    def _half_time(self, state: State, slot: Slot) -> float | None:
        """Return the seconds after which a worker may learn what comes next; None if it has to wait for that."""
        stands = not self.lookahead or state.ending or state.stands
        if stands or slot.unit is None or slot.lookahead or slot.retired or slot.overdue or state.schedule.keeps(slot):
            return None
        expected = estimate(state.schedule, slot)
        return None if expected is None else HALF * expected

    def _begin(self, state: State, assignment: Assignment, *, lookahead: bool = False) -> Iterator[m.RunUnit]:
        """Start the chosen unit together with its companions."""
        slot = state.schedule.slots[assignment.worker]
        units = [assignment.unit]
        if self.fusion is not None and slot.devices == 1:
            groups = SLACK if self.lookahead else 1
            units += companions(
                state.schedule, slot, assignment.unit, self.fusion, state.schedule.starting, groups, assignment.together
            )
            units = state.schedule.affordable(units)
        return self._start(state, slot, units, lookahead=lookahead)

    def _start(self, state: State, slot: Slot, units: Sequence[Unit], *, lookahead: bool) -> Iterator[m.RunUnit]:
        flotilla = state.next_attempt if len(units) > 1 else 0
        for unit in units:
            start = _command(state, slot.worker, unit, flotilla, more=unit is not units[-1], lookahead=lookahead)
            state.decide(start)
            yield start


def check_liveness(state: State) -> Iterator[m.Message]:
    """Tell, once in a run, that work remains while nothing runs and nothing is coming."""
    schedule = state.schedule
    expected = schedule.starting or state.coming or state.stopped or state.waiting or state.requests
    missing = state.missing or state.missing_valid
    told = state.finished or state.stalled or state.held or missing or not schedule.slots
    if told or expected or schedule.under_way or any(slot.retired for slot in schedule.slots.values()):
        return
    if not any(progress.saves for progress in schedule.trials.values()):
        yield state.decide(m.RunStalled(stall(schedule), overruled=False))


def _may_start(state: State) -> bool:
    """Whether units may start: the run does not end, and waits neither for a person nor for a disk."""
    return not (state.ending or _waits(state))


def _command(state: State, worker: str, unit: Unit, flotilla: int, *, more: bool, lookahead: bool) -> m.RunUnit:
    progress = state.schedule.trials[unit.trial]
    goes_on = progress.trains_on is not None
    version = progress.version + goes_on
    model, digest = ref_of(progress, version)
    last = unit.trains and (version + 1) % state.schedule.partitions == 0
    metric = progress.last_metric if unit.trains and not goes_on else None
    return m.RunUnit(worker, unit, state.next_attempt, model, last, digest, flotilla, more, lookahead, metric)


def _waits(state: State) -> bool:
    """Whether no unit may start: a person holds the run, or a disk refuses a version."""
    return state.held or bool(state.schedule.delayed)
