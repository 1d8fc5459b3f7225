"""The search space: the set of configurations that an experiment may try.

A space is a dict of names to constants, dimensions or nested dicts. Every dimension draws from its own random stream,
named by (seed, trial number, path), so adding or removing a dimension never changes the values of another. Names follow
Ray Tune: the upper bounds of integers are exclusive, those of floats inclusive.

A space in which one choice decides whether another exists is a function instead. The function gets a ``Chooser`` and
asks it for values, with the method names of Optuna.
"""

from hopfleet.domain.space.chooser import Chooser, Draw, Space
from hopfleet.domain.space.configuration import (
    check,
    configure,
    dimensions,
    exhaustive_points,
    grid,
    values,
    walk,
)
from hopfleet.domain.space.constructors import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    normal,
    qloguniform,
    quniform,
    randint,
    sample_from,
    uniform,
)
from hopfleet.domain.space.dimension import Choice, Derived, Dimension, Float, Integer, Normal
from hopfleet.domain.space.json_values import flatten, plain
from hopfleet.domain.space.points import changed, check_dimensions, check_values, chosen, complete, find, widened
from hopfleet.domain.space.text import CONSTRUCTORS, describe, parse, recalled

__all__ = [
    "CONSTRUCTORS",
    "Choice",
    "Chooser",
    "Derived",
    "Dimension",
    "Draw",
    "Float",
    "Integer",
    "Normal",
    "Space",
    "changed",
    "check",
    "check_dimensions",
    "check_values",
    "choice",
    "chosen",
    "complete",
    "configure",
    "describe",
    "dimensions",
    "exhaustive_points",
    "find",
    "flatten",
    "grid",
    "grid_search",
    "lograndint",
    "loguniform",
    "normal",
    "parse",
    "plain",
    "qloguniform",
    "quniform",
    "randint",
    "recalled",
    "sample_from",
    "uniform",
    "values",
    "walk",
    "widened",
]
