"""Policies by name, one file each; ``scheduler.dispatch.Policy`` states their contract.

Each name maps to a factory, because some policies keep state: every controller has its own instance. Other packages
register further names as entry points (``support.registry``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.policies.auto import Auto
from hopfleet.scheduler.policies.exact import Exact
from hopfleet.scheduler.policies.fleet import fleet
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.policies.match_reserve import MatchReserve
from hopfleet.scheduler.policies.monte_carlo import MonteCarlo
from hopfleet.scheduler.policies.nearly_done import nearly_done
from hopfleet.scheduler.policies.portfolio import Portfolio
from hopfleet.scheduler.policies.random import random_choice
from hopfleet.scheduler.policies.vector_rearrangement import VectorRearrangement

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "auto": Auto,
    "exact": Exact,
    "fleet": lambda: fleet,
    "longest-remaining": lambda: longest_remaining,
    "match-reserve": MatchReserve,
    "monte-carlo": MonteCarlo,
    "nearly-done": lambda: nearly_done,
    "portfolio": Portfolio,
    "random": lambda: random_choice,
    "vector-rearrangement": VectorRearrangement,
}
DEFAULT = "auto"
