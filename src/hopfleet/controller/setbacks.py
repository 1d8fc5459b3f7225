"""Setbacks of a run: lost workers and failed trials, and when they mean that the run must end."""

from __future__ import annotations

import re

from hopfleet.domain.messages import UnitFailed

MAX_LOSSES = 3
"""Lost workers in a row after which a unit counts as poison and its trial fails."""

MANY_LOSSES = 24
"""Lost workers in a row, across all units, after which the machine is blamed and the run ends; with more than eight
workers the limit is three losses per worker."""

ALIKE = 3
"""Trials that fail in the same way before any trial has finished a unit, after which the task is blamed and the run
ends."""


class Setbacks:
    """What went wrong since a unit last ended well.

    ``fail_fast`` ends a run in which the first trials fail in the same way.
    """

    def __init__(self, *, fail_fast: bool) -> None:
        self._fail_fast = fail_fast
        #: Workers lost in a row while they ran a unit.
        self.losses = 0
        #: Why the run must end, if it must.
        self.reason = ""
        #: Whether the run must end because its trials fail in the same way.
        self.alike = False
        #: Whether some unit has ended well, also in an earlier run.
        self._proven = False
        #: The trials that failed in each way.
        self._ways: dict[tuple[str, str], set[str]] = {}

    def clear(self) -> None:
        """Start counting anew: a run has begun."""
        self.losses, self.reason, self.alike = 0, "", False
        self._ways.clear()

    def unit_finished(self) -> None:
        """Note that a unit has ended well, so that neither the machine nor the task is to blame."""
        self._proven = True
        self.clear()

    def worker_lost(self, reason: str, workers: int) -> bool:
        """Count a worker that was lost while it ran a unit. Return whether the machine is the likelier cause."""
        self.losses += 1
        if self.losses < max(MANY_LOSSES, MAX_LOSSES * workers):
            return False
        self.reason = (
            f"{self.losses} workers in a row were lost and nothing ended well between, whatever they ran: "
            f"the last time {reason}. It seems to be the machine rather than the trials; mend it and resume"
        )
        return True

    def unit_failed(self, failure: UnitFailed) -> bool:
        """Count a trial whose code raised. Return whether the task is to blame rather than the configurations."""
        if self._proven or not self._fail_fast:
            return False
        # The messages of one mistake may differ, e.g. in the shapes that they name.
        way = (re.split("[: ]", failure.error)[0], failure.place) if failure.place else (failure.error, "")
        trials = self._ways.setdefault(way, set())
        trials.add(failure.trial)
        if len(trials) < ALIKE:
            return False
        self.reason = f"{len(trials)} trials failed in the same way before any had finished a unit: {failure.error}"
        self.alike = True
        return True
