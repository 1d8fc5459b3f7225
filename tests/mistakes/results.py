"""Mistakes in reading the results."""

from __future__ import annotations

import hopfleet as hop
from hopfleet.errors import NotFound, UsageError
from tests.helpers.mistakes import Mistake, fit

MISTAKES = [
    Mistake("a trial that does not exist", lambda: fit()["t0009"], NotFound, ("'t0009'", "no such trial", "t0001")),
    Mistake(
        "the weights of an empty folder",
        lambda: hop.state_dict("."),
        UsageError,
        ("best/model.safetensors", "hop.load"),
    ),
    Mistake("the weights of a number", lambda: hop.state_dict(3), UsageError, ("state_dict(3)", "pass a file")),
]
