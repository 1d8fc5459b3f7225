"""AutoML procedures: which configurations to try, and how long. Pure: no clock, no I/O, no global RNG."""

from __future__ import annotations

from collections.abc import Mapping

from hopfleet.search.base import Search
from hopfleet.search.grid import Grid
from hopfleet.search.optuna import CMAES, GP, NSGA2, TPE
from hopfleet.search.random import Random

SEARCHES: Mapping[str, type[Search]] = {
    "cmaes": CMAES,
    "gp": GP,
    "grid": Grid,
    "nsga2": NSGA2,
    "random": Random,
    "tpe": TPE,
}
