"""Values of single steps that a trial's code logs, such as a learning rate: how many are kept, and their form.

A report of a unit has a bounded number of them, so that journals stay small however many steps a unit has. Which steps
are kept follows from the steps at which a value was logged and from nothing else, so a unit that runs again, on any
worker, reports the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.domain.bounds import NAME

POINTS = 100
"""Most values of one name in the report of a unit."""

NAMES = 20
"""Most names in the report of a unit."""

Column = tuple[Sequence[int], Sequence[float]]
"""The steps at which one value was logged, in ascending order, and the value in each."""


@dataclass(frozen=True, slots=True)
class StepValues:
    """The values that one unit logged, by name. Steps are counted from the beginning of the unit."""

    columns: Mapping[str, Column]
    batches_per_step: int = 1


def bad_name(name: object, known: Sequence[str]) -> str:
    """Return why a value cannot be logged under a name, and the remedy; empty if it can.

    ``known`` are the names that the unit has logged already.
    """
    if not isinstance(name, str) or not name or len(name) > NAME:
        return f"the name must be text of 1 to {NAME} characters; give the value a short name, e.g. 'lr'"
    if name not in known and len(known) >= NAMES:
        return f"a unit must log at most {NAMES} names, got one more; log fewer values, or their mean"
    return ""


def thinned(steps: Sequence[Any], most: int) -> list[int]:
    """Return the places of at most ``most`` steps, evenly spread: the first and the last are among them."""
    stride = -(-max(1, len(steps) - 1) // (most - 1))
    places = list(range(0, len(steps), stride))
    return places if not steps or places[-1] == len(steps) - 1 else [*places, len(steps) - 1]
