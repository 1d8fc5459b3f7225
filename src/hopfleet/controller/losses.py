"""Lost workers: which unit is to blame, and when the machine is the likelier cause."""

from __future__ import annotations

from collections.abc import Sequence

from hopfleet.domain.messages import UnitOverdue
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit
from hopfleet.scheduler.progress import Outcome
from hopfleet.scheduler.schedule import Schedule

MAX_LOSSES = 3
"""Lost workers in a row after which a unit counts as poison and its trial fails."""

MANY_LOSSES = 24
"""Lost workers in a row, across all units, after which the machine is blamed and the run ends; with more than eight
workers the limit is three losses per worker."""

REMEDY = "; if units may take that long, set hop.RunOptions(unit_timeout=SECONDS), or None for no limit"
"""What to do about a trial that fails because its units run too long."""


class Losses:
    """Workers that were lost while they ran a unit."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        #: Losses in a row, across all trials.
        self.in_a_row = 0
        #: Why the run must end, if it must.
        self.hopeless = ""

    def clear(self) -> None:
        """Note that a unit ended well, or that a run starts."""
        self.in_a_row, self.hopeless = 0, ""

    def blame(self, unit: Unit, reason: str, log: str, remedy: str = "") -> None:
        """Count a lost worker against the unit that it ran, which may be the cause."""
        losses = self._schedule.blame(unit.trial, reason)
        if len(losses) >= MAX_LOSSES:
            reason = f"{len(losses)} workers in a row were lost while {unit}: {_all(losses)}{remedy}"
            last = log and f"the last lines of its log:\n{log}"
            self._schedule.settle(unit.trial, Outcome(TrialState.FAILED, reason, last))

    def count(self, reason: str, workers: int) -> bool:
        """Count a loss across all trials; return whether no unit has ended well for so long that the run must end."""
        self.in_a_row += 1
        if self.in_a_row < max(MANY_LOSSES, MAX_LOSSES * workers):
            return False
        self.hopeless = (
            f"{self.in_a_row} workers in a row were lost and nothing ended well between, whatever they ran: "
            f"the last time {reason}. It seems to be the machine rather than the trials; mend it and resume"
        )
        return True


def ran_too_long(message: UnitOverdue) -> str:
    """Return why a unit is given up: how long it ran, its limit and its estimate."""
    expected = f"; estimated {message.expected:.3g} s" if message.expected else ""
    source = " that unit_timeout='auto' derived" if message.derived else " of unit_timeout"
    limit = f", above the limit of {message.limit:.3g} s{source}" if message.limit else ""
    return f"it ran for {message.seconds:.3g} s{limit}{expected}"


def _all(reasons: Sequence[str]) -> str:
    return f"each time {reasons[0]}" if len(set(reasons)) == 1 else "; then ".join(reasons)
