"""Lost workers: which unit or save is to blame, and when the machine is the likelier cause."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hopfleet.domain.messages import UnitFinished, UnitOverdue, VersionLost, WorkerLost
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Outcome, Progress, Save, Setback
from hopfleet.scheduler.schedule import Schedule

MAX_LOSSES = 3
"""Lost workers in a row after which a unit counts as poison and its trial fails."""

MAX_LOADS = 3
"""Failures in a row to load intact versions of a trial, after which the trial fails: its model cannot be saved."""

MANY_LOSSES = 24
"""Lost workers in a row, across all units, after which the machine is blamed and the run ends; with more than eight
workers the limit is three losses per worker."""

REMEDY = "; if units may take that long, set hop.RunOptions(unit_timeout=SECONDS), or None for no limit"
"""What to do about a trial that fails because its units run too long."""


class Losses:
    """Workers that were lost while they ran a unit."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.clear()

    def clear(self) -> None:
        """Note that a run starts, or that a unit ended well."""
        #: Losses in a row, across all trials.
        self.in_a_row = 0
        #: Why the run must end, if it must.
        self.hopeless = ""

    def forgive(self, finished: UnitFinished) -> None:
        """Note that a unit ended well."""
        self.clear()
        if finished.hopped:
            self._schedule.forgive(finished.trial, Setback.LOAD)

    def blame_units(self, units: Iterable[Unit], lost: WorkerLost, overdue: str) -> None:
        """Count a lost worker against the units that may be the cause.

        ``overdue`` tells why a unit was given up, if the worker was killed for that.
        """
        # A trial that was about to end anyway may have been stopped by a person.
        blamed = [unit for unit in units if self._schedule.trials[unit.trial].outcome is None]
        for unit in blamed:
            losses = self._schedule.blame(unit.trial, Setback.UNIT, overdue or lost.reason)
            if len(losses) >= MAX_LOSSES:
                remedy = REMEDY if overdue else ""
                reason = f"{len(losses)} workers in a row were lost while {unit}: {_all(losses)}{remedy}"
                self._fail(unit.trial, reason, lost.log and f"the last lines of its log:\n{lost.log}")
        if blamed:
            self._count(lost.reason, len(self._schedule.slots) + self._schedule.starting)

    def blame_saves(self, saves: Iterable[tuple[Progress, Save]], beside: Collection[str], reason: str) -> None:
        """Count a lost worker against the trials that it was to save, ``beside`` units of some trials.

        If a unit of another trial may as well be the cause, saves that wait in memory do not count, and it takes twice
        as many losses until the trial fails.
        """
        for progress, save in saves:
            trial = progress.trial.id
            alone = {trial}.issuperset(beside)
            if progress.gives_up or (save.waits and not alone):
                continue
            losses = self._schedule.blame(trial, Setback.SAVE, reason)
            if len(losses) >= MAX_LOSSES * (1 if alone else 2):
                text = f"{len(losses)} workers in a row were lost before version {save.version} was saved"
                self._fail(trial, f"{text}: {_all(losses)}")

    def blame_load(self, lost: VersionLost) -> None:
        """Count a lost version against its trial if the file is intact, and no model could be made from it."""
        if not lost.intact:
            return
        failures = self._schedule.blame(lost.trial, Setback.LOAD, lost.reason)
        if len(failures) >= MAX_LOADS:
            text = f"its saved model could not be loaded {len(failures)} times in a row"
            self._fail(lost.trial, f"{text}: {_all(failures)}")

    def _fail(self, trial: str, reason: str, traceback: str = "") -> None:
        self._schedule.settle(trial, Outcome(TrialState.FAILED, reason, traceback))

    def _count(self, reason: str, workers: int) -> None:
        """Count a loss across all trials; the run must end if no unit has ended well for long."""
        self.in_a_row += 1
        if self.in_a_row >= max(MANY_LOSSES, MAX_LOSSES * workers):
            self.hopeless = (
                f"{self.in_a_row} workers in a row were lost and nothing ended well between, whatever they ran: "
                f"the last time {reason}. It seems to be the machine rather than the trials; mend it and resume"
            )


def ran_too_long(message: UnitOverdue) -> str:
    """Return why a unit is given up: how long it ran, its limit and its estimate."""
    expected = f"; estimated {message.expected:.3g} s" if message.expected else ""
    source = " that unit_timeout='auto' derived" if message.derived else " of unit_timeout"
    limit = f", above the limit of {message.limit:.3g} s{source}" if message.limit else ""
    return f"it ran for {message.seconds:.3g} s{limit}{expected}"


def _all(reasons: Sequence[str]) -> str:
    different = set(reasons)
    return f"each time {different.pop()}" if len(different) == 1 else "; then ".join(reasons)
