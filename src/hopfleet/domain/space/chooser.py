"""Spaces that are functions: the object through which such a function asks for values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopfleet.domain.space.arguments import checked_bounds, checked_integers, checked_options, checked_step
from hopfleet.domain.space.dimension import Choice, Dimension, Float, Integer
from hopfleet.errors import SpaceError

OLD_NAMES = {
    "suggest_uniform": "suggest_float(name, low, high)",
    "suggest_loguniform": "suggest_float(name, low, high, log=True)",
    "suggest_discrete_uniform": "suggest_float(name, low, high, step=...)",
}
"""Methods that Optuna had, and what replaces them."""

Draw = Callable[[str, Dimension], Any]
"""Returns the value for the dimension with the given name."""


class Chooser:
    """The argument of a space that is a function; its methods return one value after another, named as in Optuna.

    Asking for a name again returns its first value.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        #: The dimension and the value of each name that the space asked for.
        self.chosen: dict[str, tuple[Dimension, Any]] = {}

    @property
    def params(self) -> dict[str, Any]:
        """Return all values so far by name."""
        return {name: value for name, (_, value) in self.chosen.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        new = OLD_NAMES.get(name) or "suggest_float, suggest_int or suggest_categorical"
        raise SpaceError(f"trial.{name}: the function that is the space can ask with {new} only")

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a float from ``low`` to ``high``; with a step, one of low, low + step, low + 2 * step, ..."""
        if step is not None and log:
            raise SpaceError(f"suggest_float({name!r}, step={step!r}, log=True): use either step or log")
        low, high = checked_bounds(f"suggest_float[{name}]", low, high, positive=log)
        if step is not None:
            step = checked_step(f"suggest_float[{name}]", step)
            high = round(low + math.floor((high - low) / step + 1e-9) * step, 12)
        return float(self._choose(name, Float(low, high, log, step, anchored=step is not None)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer from ``low`` to ``high``, which is inclusive here."""
        if not (type(step) is int and step >= 1) or (log and step != 1):
            raise SpaceError(
                f"suggest_int({name!r}, step={step!r}): must be an integer of at least 1, and exactly 1 with log=True"
            )
        if type(high) is not int:
            raise SpaceError(f"suggest_int({name!r}, {low!r}, {high!r}): both bounds must be integers")
        low, beyond = checked_integers(f"suggest_int[{name}]", low, high + 1)
        if log:
            checked_bounds(f"suggest_int[{name}]", low, beyond, positive=True)
        return int(self._choose(name, Integer(low, beyond, log, step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of ``choices``."""
        return self._choose(name, Choice(checked_options(f"suggest_categorical[{name}]", choices)))

    def _choose(self, name: str, dimension: Dimension) -> Any:
        if name not in self.chosen:
            self.chosen[name] = dimension, self._draw(name, dimension)
        return self.chosen[name][1]


Space = Mapping[str, Any] | Callable[[Chooser], Any]
"""A dict of names to constants, dimensions or nested dicts; or a function that asks a Chooser for values and returns a
configuration. If the function returns None, the values that it asked for are the configuration."""


def function_name(function: Any) -> str:
    """Return the name under which messages mention a space that is a function."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))
