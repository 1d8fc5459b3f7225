"""Visit orders that depend on the seed alone, for experiments whose results must not depend on the schedule.

All trials cycle through the partitions in the same circular order, each from its own starting point, so trials of equal
pace never need the same partition at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hopfleet.domain.seeds import derive


def fixed_order(seed: int, number: int, *, partitions: int, epochs: int) -> list[int]:
    """Return the partitions that trial ``number`` visits, for all epochs in sequence."""
    circle = list(range(partitions))
    random.Random(derive(seed, "circle")).shuffle(circle)
    start = number % partitions
    return (circle[start:] + circle[:start]) * epochs


def remaining_order(order: Sequence[int], visits: Sequence[int], *, partitions: int) -> list[int]:
    """Return what is left of an order after a parent's visits, each partition of an epoch once."""
    begun = len(visits) - len(visits) % partitions
    rest = [partition for partition in order[begun : begun + partitions] if partition not in visits[begun:]]
    return [*rest, *order[begun + partitions :]]
