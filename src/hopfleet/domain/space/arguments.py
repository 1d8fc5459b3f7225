"""Checks of the arguments that users give for bounds, steps and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopfleet.domain.space.dimension import Dimension
from hopfleet.domain.space.json_values import is_number, plain
from hopfleet.errors import SpaceError
from hopfleet.phrases import shown


def checked_bounds(name: str, low: Any, high: Any, *, positive: bool = False) -> tuple[float, float]:
    low, high = _number(low), _number(high)
    if not (is_number(low) and is_number(high) and low < high):
        raise SpaceError(
            f"{name}({shown(low)}, {shown(high)}): both bounds must be finite numbers, the first below the second"
        )
    if positive and low <= 0:
        raise SpaceError(
            f"{name}({low!r}, {high!r}): the lower bound must be above 0, since its logarithm is taken; give the "
            "bounds themselves, such as 1e-4, not their exponents"
        )
    return low, high


def checked_integers(name: str, low: Any, high: Any) -> tuple[int, int]:
    low, high = _number(low), _number(high)
    if not (isinstance(low, int) and isinstance(high, int) and low < high and is_number(low) and is_number(high)):
        raise SpaceError(
            f"{name}({shown(low)}, {shown(high)}): both bounds must be integers, the first below the second, and of at "
            "most 64 bits"
        )
    return low, high


def checked_step(name: str, q: Any) -> float:
    q = _number(q)
    if not (is_number(q) and q > 0):
        raise SpaceError(f"{name}(..., q={q!r}): q must be a number above 0")
    return float(q)


def checked_options(name: str, options: Any, *others: Any) -> tuple[Any, ...]:
    if others:
        together = ", ".join(map(shown, (options, *others)))
        raise SpaceError(f"{name}({together}): must be one list of options; write {name}([{together}])")
    if hasattr(options, "tolist"):
        options = options.tolist()
    if isinstance(options, (str, bytes)) or not isinstance(options, Sequence):
        raise SpaceError(f"{name}({shown(options)}): must be a list of options, e.g. {name}([16, 32, 64])")
    if not options:
        raise SpaceError(f"{name}([]): needs at least one option")
    for option in options:
        if isinstance(option, Dimension):
            raise SpaceError(
                f"{name}([{option}, ...]): an option cannot be a dimension; write the space as a function of a trial "
                "that asks for one value after another"
            )
    return tuple(plain(option, [name]) for option in options)


def _number(value: Any) -> Any:
    """Return a numpy scalar as a Python number, and every other value as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
