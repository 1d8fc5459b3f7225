"""Policies by name. One file each; ``Policy`` in ``scheduler.dispatch`` says what they promise."""

from __future__ import annotations

from collections.abc import Mapping

from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.policies.longest_remaining import longest_remaining
from hopfleet.scheduler.policies.random import random_choice

POLICIES: Mapping[str, Policy] = {"longest-remaining": longest_remaining, "random": random_choice}
DEFAULT = "longest-remaining"
