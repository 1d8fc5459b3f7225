"""AutoML procedures: which configurations to try, and for how many epochs. Pure: no clock, no I/O, no global RNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hopfleet.search.asha import ASHA
from hopfleet.search.base import Search
from hopfleet.search.freeze_thaw import FreezeThaw
from hopfleet.search.grid import Grid
from hopfleet.search.halving import SuccessiveHalving
from hopfleet.search.hyperband import Hyperband
from hopfleet.search.optuna import CMAES, GP, NSGA2, TPE
from hopfleet.search.pbt import PBT
from hopfleet.search.random import Random

SEARCHES: Mapping[str, Callable[[], Search]] = {
    "asha": ASHA,
    "cmaes": CMAES,
    "freeze-thaw": FreezeThaw,
    "gp": GP,
    "grid": Grid,
    "halving": SuccessiveHalving,
    "hyperband": Hyperband,
    "nsga2": NSGA2,
    "pbt": PBT,
    "random": Random,
    "tpe": TPE,
}
