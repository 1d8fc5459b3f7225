"""Mistakes in the choice of a search, its goal and its stopping rules."""

from __future__ import annotations

from hopfleet.errors import UsageError
from tests.helpers.mistakes import Mistake, experiment

MISTAKES = [
    Mistake(
        "a search that does not exist", lambda: experiment(search="magic"), UsageError, ("search='magic'", "random")
    ),
]
