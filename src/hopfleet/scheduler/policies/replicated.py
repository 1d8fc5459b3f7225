"""The policy for replicated partitions that selects by rehearsals: balanced, longest-remaining, or a plan of all units.

Balanced shares are best where workers differ in speed or some trial has hardly any slack; where there are many short
units, a rule that never waits may end sooner. Rehearsals of both are cheap where few units are left, and there the two
differ the most. A plan is better than both where units are few and take as long as expected. The choice is made again
when workers come or go, and, unless a plan is followed, each time that a part of the units has ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy

from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.dryrun import rehearse
from hopfleet.scheduler.policies.assigned import Assigned, possible
from hopfleet.scheduler.policies.balanced import Balanced
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment

UNITS = 600
"""Units of a rehearsal at most; with more, both policies end at about the same time."""
LAPS = 1
"""Epochs after the current one that a rehearsal covers."""
PART = 0.2
"""Part of all units after which the choice is made again."""
LOOSE = 0.2
"""Noise above which rehearsals cannot tell the policies apart."""
CLEAR = 0.01
"""Relative gain that a rehearsal must show in the presence of noise."""
SLIGHT = 0.02
"""Noise up to which units take as long as expected."""


class Replicated:
    """The policy's state for one controller."""

    def __init__(self) -> None:
        self._balanced = Balanced()
        self._chosen: Policy = self._balanced
        #: The basis of the choice: which worker reads what, and the units left.
        self._layouts: int | None = None
        self._units = 0

    def __call__(self, schedule: Schedule, rng: random.Random) -> Assignment | None:
        units = sum(schedule.owed)
        if isinstance(self._chosen, Assigned):
            if schedule.estimates.noise <= SLIGHT and self._chosen.fits(schedule):
                return self._chosen(schedule, rng)
            self._layouts = None
        if schedule.layouts != self._layouts or abs(units - self._units) > PART * self._units:
            self._layouts, self._units = schedule.layouts, units
            self._chosen = self._choice(schedule)
        return self._chosen(schedule, rng)

    def _choice(self, schedule: Schedule) -> Policy:
        noise, units = schedule.estimates.noise, sum(schedule.owed)
        if noise > LOOSE or len(schedule.trials) * schedule.partitions * (LAPS + 1) > UNITS:
            return self._balanced
        # A plan is for all epochs, so it is compared with rehearsals of all.
        laps = LAPS if units > UNITS else max((each.trial.epochs for each in schedule.trials.values()), default=1)
        gain = 1 - CLEAR if noise > SLIGHT else 1.0
        best = gain * rehearse(schedule, deepcopy(self._balanced), laps=laps)
        chosen: Policy = self._balanced
        others: tuple[Callable[[], Policy], ...] = (Balanced, lambda: longest_remaining)
        for make in others:
            seconds = rehearse(schedule, make(), laps=laps)
            if seconds < best:
                best, chosen = seconds, make()
        if isinstance(chosen, Balanced):
            self._balanced = chosen
        if noise <= SLIGHT and units <= UNITS and possible(schedule):
            planned = Assigned(schedule)
            if planned.end - schedule.now < best:
                return planned
        return chosen
