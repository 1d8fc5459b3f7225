"""Failed trials: when the task is to blame rather than the configurations."""

from __future__ import annotations

import re

from hopfleet.domain.messages import UnitFailed

ALIKE = 3
"""Trials that fail in the same way before any trial has finished a unit, after which the task is blamed and the run
ends."""


class Failures:
    """Trials that failed before any trial has finished a unit. Only those of a ``fail_fast`` run are counted."""

    def __init__(self, *, fail_fast: bool) -> None:
        self._fail_fast = fail_fast
        #: Whether some unit has ended well, also in an earlier run.
        self._proven = False
        self.clear()

    def clear(self) -> None:
        """Note that a run starts."""
        #: Why the run must end, if it must.
        self.hopeless = ""
        #: The trials that failed in each way.
        self._ways: dict[tuple[str, str], set[str]] = {}

    def prove(self) -> None:
        """Note that a unit ended well, so that the task is not to blame."""
        self._proven = True
        self.clear()

    def count(self, failure: UnitFailed) -> None:
        """Count a trial whose code raised."""
        if self._proven or not self._fail_fast:
            return
        # The messages of one mistake may differ, e.g. in the shapes that they name.
        way = (re.split("[: ]", failure.error)[0], failure.place) if failure.place else (failure.error, "")
        trials = self._ways.setdefault(way, set())
        trials.add(failure.trial)
        if len(trials) >= ALIKE:
            told = f"{len(trials)} trials failed in the same way before any had finished a unit"
            self.hopeless = f"{told}: {failure.error}"
