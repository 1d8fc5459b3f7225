"""Which groups of trials of different widths are padded to one width, so that one stack takes the place of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hopfleet.frameworks.torch.engines.stacked.layout import Shape, largest

WORTH = 2 << 20
"""Numbers. A further stack takes as long as this many more numbers in one; see ``benchmarks.flotilla.padding``."""


class Alike(NamedTuple):
    """Trials of one architecture: how many there are, and the shapes of the weights of each."""

    members: int
    shapes: Sequence[Shape]

    @property
    def numbers(self) -> int:
        return self.members * sum(map(math.prod, self.shapes))


def together(groups: Sequence[Alike]) -> list[list[int]]:
    """Return the numbers of the groups to pad and stack with each other, from the largest to the smallest."""
    found: list[list[int]] = []
    for number in sorted(range(len(groups)), key=lambda number: -groups[number].numbers / groups[number].members):
        if found and _extra([groups[each] for each in (*found[-1], number)]) <= WORTH * len(found[-1]):
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _extra(groups: Sequence[Alike]) -> int:
    """Return how many zeros the weights of groups need to have one shape."""
    members = sum(group.members for group in groups)
    shapes = [largest(shapes) for shapes in zip(*(group.shapes for group in groups), strict=True)]
    return Alike(members, shapes).numbers - sum(group.numbers for group in groups)
