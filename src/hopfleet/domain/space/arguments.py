"""Checks of the arguments that users give for bounds, steps and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopfleet.domain.space.json_values import is_number, plain
from hopfleet.errors import SpaceError


def checked_bounds(name: str, low: Any, high: Any, *, positive: bool = False) -> tuple[float, float]:
    if not (is_number(low) and is_number(high) and low < high):
        raise SpaceError(f"{name}({low!r}, {high!r}): both bounds must be numbers, the first below the second")
    if positive and low <= 0:
        raise SpaceError(f"{name}({low!r}, {high!r}): the lower bound must be above 0, since its logarithm is taken")
    return low, high


def checked_integers(name: str, low: Any, high: Any) -> tuple[int, int]:
    if not (isinstance(low, int) and isinstance(high, int) and low < high):
        raise SpaceError(f"{name}({low!r}, {high!r}): both bounds must be integers, the first below the second")
    return low, high


def checked_step(name: str, q: Any) -> float:
    if not (is_number(q) and q > 0):
        raise SpaceError(f"{name}(..., q={q!r}): q must be a number above 0")
    return float(q)


def checked_options(name: str, options: Any) -> tuple[Any, ...]:
    if isinstance(options, (str, bytes)) or not isinstance(options, Sequence):
        raise SpaceError(f"{name}({options!r}): must be a list of options")
    if not options:
        raise SpaceError(f"{name}([]): needs at least one option")
    return tuple(plain(option, [name]) for option in options)
