"""Bounds on what people, pages and files may send: every accepted value can be written, read back and acted on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopfleet.errors import UsageError
from hopfleet.phrases import shown

MOST = 1_000_000
"""Largest number of trials, of epochs and of a level, and most points of a grid."""

MOST_WORKERS = 10_000
"""Most workers of an experiment, wherever they are."""

ROWS = 1 << 40
"""Most rows of a batch."""

DEPTH = 20
"""Most levels of dicts and lists in a value."""

SIZE = 1_000_000
"""Most characters and values that a value consists of; most characters of a request's arguments as JSON."""

NAME = 200
"""Most characters of the name of a trial or of a person."""

INTEGERS = 1 << 64
"""Bound on the magnitude of integers in configurations."""


def integer(name: str, value: Any, least: int = 1, most: int = MOST, remedy: str = "") -> int:
    """Return ``value`` if it is an integer from ``least`` to ``most``, else raise UsageError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={shown(value)}: must be an integer of at least {least}{remedy}")
    if value > most:
        raise UsageError(f"{name}={shown(value)}: must be at most {most:,}{remedy or '; give a smaller number'}")
    return value


def excess(value: Any, name: str = "value") -> str:
    """Return which part of a value exceeds a bound, and the remedy; empty if no part does.

    Needs no recursion, so a value of any depth can be checked.
    """
    size, parts = 0, [(name, value, 0)]
    while parts:
        path, part, depth = parts.pop()
        size += 1
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, int) and not -INTEGERS < part < INTEGERS:
            return f"{path}={shown(part)}: must be an integer of at most 64 bits; use a float, or text"
        elif isinstance(part, Mapping | list | tuple):
            if depth == DEPTH:
                return f"{name}: must have at most {DEPTH} levels of dicts and lists, got more; use fewer levels"
            if isinstance(part, Mapping):
                size += sum(len(str(key)) for key in part)
                parts += [(f"{path}.{key}", entry, depth + 1) for key, entry in part.items()]
            else:
                parts += [(path, entry, depth + 1) for entry in part]
        if size > SIZE:
            return f"{name}: must have at most {SIZE:,} characters, got more; use the name of a file instead"
    return ""
