"""Log records of the user's code that are worth a look now: reported to the run, which shows them on the terminal."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from hopfleet.worker.logs import Capture, Turn

MOST, MOST_OF_ONE = 20, 5
"""Distinct messages that a worker reports, and those of one line of code; further ones are in the logs of trials."""

FURTHER = "; further ones are in the logs of trials"

LONGEST = 500
"""Characters of a message that are reported."""


class RecordReporter(logging.Handler):
    """A handler that reports each distinct message at WARNING and above once, with the name of its trial."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._trial = ""
        self._trials: set[str] = set()
        self._reported: set[str] = set()
        #: Distinct messages by the line of code that logs them.
        self._lines: Counter[tuple[str, int]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        line = (record.pathname, record.lineno)
        if len(self._reported) == MOST or self._lines[line] == MOST_OF_ONE:
            return
        try:
            text = f"{record.levelname} {record.name}: {record.getMessage()}"
        except Exception:
            self.handleError(record)
            return
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
        if text not in self._reported:
            self._reported.add(text)
            self._lines[line] += 1
            last = len(self._reported) == MOST or self._lines[line] == MOST_OF_ONE
            self._report(self._trial, text + FURTHER * last)

    def following(self, capture: Capture) -> Capture:
        """Return ``capture`` such that this handler knows whose output follows."""

        @contextlib.contextmanager
        def followed(*paths: Path) -> Iterator[Turn]:
            with capture(*paths) as turn:

                def both(number: int) -> None:
                    self._turn_to(paths[number].stem)
                    turn(number)

                self._turn_to(paths[0].stem)
                yield both

        return followed

    def _turn_to(self, trial: str) -> None:
        self._trial = trial
        if trial not in self._trials:
            self._trials.add(trial)
            # Python shows most warnings once per process. Leaving this context makes it forget which ones it has
            # shown, so that they appear in the log of this trial as well.
            with warnings.catch_warnings():
                pass
