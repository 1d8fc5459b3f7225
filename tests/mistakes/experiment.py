"""Mistakes in the arguments of an experiment."""

from __future__ import annotations

from hopfleet.errors import UsageError
from tests.helpers.mistakes import Mistake, experiment

MISTAKES = [
    Mistake("no batch", lambda: experiment(batch_size=0), UsageError, ("batch_size=0", "at least 1")),
]
