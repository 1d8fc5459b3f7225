"""The kinds of dimensions: how each samples a value, and which values it contains."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hopfleet.domain.space.json_values import alike, is_number
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError


class Dimension:
    """A part of a space that yields a value for each trial. Its ``repr`` is the text that ``parse`` reads."""

    __slots__ = ()

    def sample(self, rng: random.Random) -> Any:
        """Draw a value."""
        raise SpaceError(f"{self}: cannot be sampled by itself")

    def contains(self, value: Any) -> bool:
        """Whether the dimension can yield this value."""
        raise SpaceError(f"{self}: contains nothing by itself")


@dataclass(frozen=True, slots=True)
class Choice(Dimension):
    """One of several options."""

    options: tuple[Any, ...]
    exhaustive: bool = False  #: made by ``grid_search``: every set of trials covers all options

    def sample(self, rng: random.Random) -> Any:
        return self.options[rng.randrange(len(self.options))]

    def __repr__(self) -> str:
        return f"{'grid_search' if self.exhaustive else 'choice'}({list(self.options)!r})"

    def contains(self, value: Any) -> bool:
        return self.place(value) is not None

    def place(self, value: Any) -> int | None:
        """Return the index of a value among the options, or None; True does not equal 1 here."""
        places = (place for place, option in enumerate(self.options) if alike(option, value))
        return next(places, None)


@dataclass(frozen=True, slots=True)
class Float(Dimension):
    """A float between two bounds."""

    low: float
    high: float
    log: bool = False
    step: float | None = None  #: the distance between values, which are multiples of the step
    anchored: bool = field(default=False, repr=False)  #: values are ``low`` plus multiples of the step

    def sample(self, rng: random.Random) -> float:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return self.nearest(value)

    def nearest(self, value: float) -> float:
        """Return the value of this dimension that is nearest to ``value``."""
        if self.step is not None:
            value = self.at(self.steps(value))
        return min(max(value, self.low), self.high)

    def __repr__(self) -> str:
        name = f"{'q' * (self.step is not None)}{'log' * self.log}uniform"
        return f"{name}({self.low!r}, {self.high!r}{'' if self.step is None else f', {self.step!r}'})"

    def steps(self, value: float) -> int:
        """Return the number of steps that leads nearest to ``value``."""
        assert self.step is not None
        return round((value - (self.low if self.anchored else 0.0)) / self.step)

    def at(self, steps: int) -> float:
        """Return the value after a number of steps."""
        assert self.step is not None
        # Rounding removes the floating-point noise of a product like 3 * 0.1.
        value = round((self.low if self.anchored else 0.0) + steps * self.step, 12)
        return min(max(value, self.low), self.high)

    def contains(self, value: Any) -> bool:
        return (
            is_number(value)
            and self.low <= value <= self.high
            and (self.step is None or math.isclose(self.nearest(value), value, rel_tol=1e-9))
        )


@dataclass(frozen=True, slots=True)
class Integer(Dimension):
    """An integer between two bounds."""

    low: int
    high: int  #: exclusive
    log: bool = False
    step: int = field(default=1, repr=False)

    def sample(self, rng: random.Random) -> int:
        if self.log:
            return self.nearest(int(math.exp(rng.uniform(math.log(self.low), math.log(self.high)))))
        return rng.randrange(self.low, self.high, self.step)

    def contains(self, value: Any) -> bool:
        return type(value) is int and value in range(self.low, self.high, self.step)

    def nearest(self, value: float) -> int:
        """Return the value of this dimension that is nearest to ``value``."""
        steps = round((value - self.low) / self.step)
        return self.low + self.step * min(max(steps, 0), (self.high - 1 - self.low) // self.step)

    def __repr__(self) -> str:
        return f"{'log' * self.log}randint({self.low!r}, {self.high!r})"


@dataclass(frozen=True, slots=True)
class Normal(Dimension):
    """A float from a normal distribution."""

    mean: float
    sd: float

    def sample(self, rng: random.Random) -> float:
        return rng.gauss(self.mean, self.sd)

    def __repr__(self) -> str:
        return f"normal({self.mean!r}, {self.sd!r})"

    def contains(self, value: Any) -> bool:
        return is_number(value)


@dataclass(frozen=True, slots=True)
class Derived(Dimension):
    """A value computed from the rest of the configuration."""

    function: Callable[[Config], Any]

    def __repr__(self) -> str:
        return f"sample_from({getattr(self.function, '__qualname__', 'function')})"
