"""The functions that users write in a space, such as ``loguniform(1e-4, 1e-1)``; names and meanings follow Ray Tune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hopfleet.domain.signatures import explained
from hopfleet.domain.space.arguments import checked_bounds, checked_integers, checked_options, checked_step
from hopfleet.domain.space.dimension import Choice, Derived, Dimension, Float, Integer, Normal
from hopfleet.domain.space.json_values import is_number
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError


@explained
def choice(options: Sequence[Any], *others: Any) -> Dimension:
    """Draw one of ``options`` with equal probability; a grid search tries each.

    ``others`` takes options outside of a list, only to refuse them.
    """
    return Choice(checked_options("choice", options, *others))


@explained
def grid_search(options: Sequence[Any], *others: Any) -> Dimension:
    """Try every one of ``options``: a grid search crosses them, a random search cycles through them.

    ``others`` takes options outside of a list, only to refuse them.
    """
    return Choice(checked_options("grid_search", options, *others), exhaustive=True)


@explained
def uniform(low: float, high: float) -> Dimension:
    """Draw a float between ``low`` and ``high``."""
    return Float(*checked_bounds("uniform", low, high))


@explained
def loguniform(low: float, high: float) -> Dimension:
    """Draw a float between ``low`` and ``high`` whose logarithm is uniform."""
    return Float(*checked_bounds("loguniform", low, high, positive=True), log=True)


@explained
def quniform(low: float, high: float, q: float) -> Dimension:
    """Draw like ``uniform``, rounded to multiples of ``q``."""
    return Float(*checked_bounds("quniform", low, high), step=checked_step("quniform", q))


@explained
def qloguniform(low: float, high: float, q: float) -> Dimension:
    """Draw like ``loguniform``, rounded to multiples of ``q``."""
    return Float(
        *checked_bounds("qloguniform", low, high, positive=True), log=True, step=checked_step("qloguniform", q)
    )


@explained
def randint(low: int, high: int) -> Dimension:
    """Draw an integer from ``low`` to ``high - 1``."""
    return Integer(*checked_integers("randint", low, high))


@explained
def lograndint(low: int, high: int) -> Dimension:
    """Draw an integer from ``low`` to ``high - 1`` whose logarithm is uniform."""
    checked_bounds("lograndint", low, high, positive=True)
    return Integer(*checked_integers("lograndint", low, high), log=True)


@explained
def normal(mean: float, sd: float) -> Dimension:
    """Draw a float from a normal distribution."""
    if not (is_number(mean) and is_number(sd) and sd > 0):
        raise SpaceError(f"normal({mean!r}, {sd!r}): mean must be a number and sd a number above 0")
    return Normal(float(mean), float(sd))


@explained
def sample_from(function: Callable[[Config], Any]) -> Dimension:
    """Compute a value with ``function``, which gets the rest of the configuration as a dict."""
    if not callable(function):
        raise SpaceError(f"sample_from({function!r}): must be a function of the configuration")
    return Derived(function)
