"""Visit orders that depend on the seed alone, for experiments whose bits must not depend on the schedule.

All trials go round the same circle of partitions, each from a starting point of its own, so that trials of equal pace
never meet at a partition.
"""

from __future__ import annotations

import random

from hopfleet.domain.seeds import derive


def fixed_order(seed: int, number: int, *, partitions: int, epochs: int) -> list[int]:
    """The partitions that trial ``number`` visits, all epochs in a row."""
    circle = list(range(partitions))
    random.Random(derive(seed, "circle")).shuffle(circle)
    start = number % partitions
    return (circle[start:] + circle[:start]) * epochs
