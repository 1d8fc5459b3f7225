"""Workers as the scheduler sees them, and the assignment of a unit to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Readable


@dataclass(slots=True)
class Slot:
    """One worker, as the scheduler sees it."""

    worker: str
    partitions: Readable
    devices: int = 1
    #: The validation partitions that it can read.
    valid: Readable = None
    #: The units that it runs now, with their attempts: one, or those of a flotilla.
    units: dict[Unit, int] = field(default_factory=dict)
    flotilla: int = 0
    #: The same for the units that come next: of other trials, or of trials that go on here.
    lookahead: dict[Unit, int] = field(default_factory=dict)
    lookahead_flotilla: int = 0
    #: The schedule's time when its current units began; no part of what a journal gives back.
    started: float = field(default=0.0, compare=False)
    #: The training partition that it read last.
    warm: int | None = None
    #: Whether it gets no more work.
    retired: bool = False
    #: Whether teams will have its devices.
    for_teams: bool = False
    #: Whether it was told to go.
    released: bool = False
    #: Why its current unit is given up as too slow; empty if it is not.
    overdue: str = ""

    @property
    def unit(self) -> Unit | None:
        """The unit that it runs, or the first of a flotilla, whose units differ in the trial alone."""
        return next(iter(self.units), None)

    @property
    def attempt(self) -> int:
        """The attempt of that unit; 0 if it runs none."""
        return next(iter(self.units.values()), 0)

    @property
    def told(self) -> dict[Unit, int]:
        """All units that it was told to run and that have not ended, current ones first."""
        return self.units | self.lookahead if self.lookahead else self.units

    def readable(self, valid: bool) -> Readable:
        """Return the validation partitions that it can read, or else the training partitions."""
        return self.valid if valid else self.partitions

    def trains(self, trial: str) -> bool:
        """Whether it was told to run a training unit of a trial that has not ended."""
        for units in (self.units, self.lookahead):
            first = next(iter(units), None)  # units of one flotilla differ in the trial alone
            if first is not None and first.trains and Unit(trial, first.epoch, first.partition) in units:
                return True
        return False

    def unit_of(self, trial: str) -> Unit:
        """Return the unit of a trial on this worker."""
        return next(unit for unit in self.told if unit.trial == trial)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A policy's choice: this unit on this worker."""

    worker: str
    unit: Unit
    #: The trials to train together with it, as far as they can; None leaves the choice to ``scheduler.fusion``.
    together: Sequence[str] | None = None
