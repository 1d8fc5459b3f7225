"""Mistakes in requests to an experiment."""

from __future__ import annotations

import hopfleet as hop
from hopfleet.errors import NotFound
from tests.helpers.mistakes import Mistake, fit

MISTAKES = [
    Mistake(
        "control of an experiment that does not exist",
        lambda: (fit(), hop.control("ee")),
        NotFound,
        ("ee", "no such experiment", "there are: e"),
    ),
]
