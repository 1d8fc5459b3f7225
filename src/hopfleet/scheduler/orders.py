"""Visit orders that depend on the seed alone, for experiments whose results must not depend on the schedule.

All trials cycle through the partitions in the same circular order, each from its own starting point, so trials of equal
pace never need the same partition at once.
"""

from __future__ import annotations

import random

from hopfleet.domain.seeds import derive


def fixed_order(seed: int, number: int, *, partitions: int, epochs: int) -> list[int]:
    """Return the partitions that trial ``number`` visits, for all epochs in sequence."""
    circle = list(range(partitions))
    random.Random(derive(seed, "circle")).shuffle(circle)
    start = number % partitions
    return (circle[start:] + circle[:start]) * epochs
