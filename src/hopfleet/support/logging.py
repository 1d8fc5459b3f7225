"""The logger "hopfleet": messages about a run for people, on standard error unless the user configures it otherwise."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from hopfleet.support.text import visible

STORAGE, TEAMS, BATCHES = "storage", "teams", "batches"
"""The parts whose messages a worker also reports to the run: a unit may wait for the storage for long, a model may
train differently on a team, and a transform may change the number of rows."""


class StandardError(logging.StreamHandler[TextIO]):
    """A handler for the standard error of the moment, which workers redirect to the log of a trial."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def messages(part: str = "") -> logging.Logger:
    """Return the logger, or that of one part. Give it a handler on first use, unless the user has configured one."""
    logger = logging.getLogger("hopfleet")
    if not logger.handlers:
        logger.addHandler(StandardError())
        logger.propagate = False
    return logger.getChild(part) if part else logger
