"""Mistakes on the command line."""

from __future__ import annotations

from tests.helpers.mistakes import CommandFailed, Mistake, command, fit

MISTAKES = [
    Mistake(
        "show of an experiment that does not exist",
        lambda: (fit(), command("show", "ee")),
        CommandFailed,
        ("ee", "no such experiment", "there are: e"),
    ),
]
