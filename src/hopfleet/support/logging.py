"""The logger "hopfleet": messages about a run for people, on standard error unless the user configures it otherwise."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TextIO

from hopfleet.safe_text import visible

REPORTED = STORAGE, TEAMS, BATCHES, SCHEDULES, SETTINGS = "storage", "teams", "batches", "schedules", "settings"
"""The parts whose messages a worker also reports to the run: a unit may wait for the storage for long, a model may
train differently on a team, a transform may change the number of rows, a schedule may be too short, and a trial may
change what others see."""


FORMAT = "HOPFLEET_LOG"
"""The environment variable that chooses the form of messages on standard error: ``json``, or text otherwise."""

FIELDS = ("experiment", "trial", "worker", "epoch", "partition", "seconds", "metrics", "config")
"""Attributes of records that a line of JSON has, where a record has them."""


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and the ids of its trial and worker, if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class StandardError(logging.StreamHandler[TextIO]):
    """A handler for the standard error of the moment, which workers redirect to the log of a trial."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        as_json = os.environ.get(FORMAT) == "json"
        self.setFormatter(JsonFormatter() if as_json else logging.Formatter("%(name)s: %(message)s"))

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
