"""Mistakes in the space of configurations."""

from __future__ import annotations

import hopfleet as hop
from hopfleet.errors import SpaceError
from tests.helpers.mistakes import Mistake, experiment

MISTAKES = [
    Mistake("an empty space", lambda: experiment(space={}), SpaceError, ("space={}", "is empty", "hop.loguniform")),
    Mistake(
        "bounds in the wrong order",
        lambda: hop.uniform(1, 0),
        SpaceError,
        ("uniform(1, 0)", "the first below the second"),
    ),
]
