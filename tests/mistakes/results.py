"""Mistakes in reading the results."""

from __future__ import annotations

from hopfleet.errors import NotFound
from tests.helpers.mistakes import Mistake, fit

MISTAKES = [
    Mistake("a trial that does not exist", lambda: fit()["t0009"], NotFound, ("'t0009'", "no such trial", "t0001")),
]
