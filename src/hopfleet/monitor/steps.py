"""The values of single steps that a trial logged: a part of the fold over its messages.

A report counts steps from the beginning of its unit. Here they are counted from the beginning of the trial: the steps
of the units before follow from the partitions that the trial has visited. A unit that runs again replaces its values.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from hopfleet.domain.batching import Batching
from hopfleet.domain.step_values import Column, StepValues
from hopfleet.domain.trial import Config


class LoggedSteps:
    """The values of single steps of one trial, in the units that count."""

    __slots__ = ("_units", "_visits")

    def __init__(self, visits: Sequence[int] = ()) -> None:
        self._visits = array("I", visits)  #: the partitions visited, those of a parent's model included
        self._units: dict[int, StepValues] = {}  #: by the version that the unit made

    def add(self, version: int, partition: int, values: StepValues | None) -> None:
        """Take note of a unit. A unit that made the same version before does not count any more."""
        self.roll_back(version - 1)
        self._visits.append(partition)
        if values is not None:
            columns = {name: (array("Q", steps), array("d", some)) for name, (steps, some) in values.columns.items()}
            self._units[version] = StepValues(columns, values.batches_per_step)

    def roll_back(self, version: int) -> None:
        """Forget the units after a version."""
        del self._visits[max(0, version) :]
        for undone in [each for each in self._units if each > version]:
            del self._units[undone]

    def curves(self, definition: Mapping[str, Any], config: Config, after: int = 0, to: int | None = None) -> Curves:
        """Return for each name the steps and values of the units ``after`` a version and up to another.

        ``definition`` is that of the experiment.
        """
        curves: dict[str, tuple[list[int], list[float]]] = {}
        begins: dict[int, list[int]] = {}  #: for each number of batches per step, the first step of each unit
        for version in sorted(self._units):
            if version <= after or (to is not None and version > to):
                continue
            unit = self._units[version]
            if (pace := unit.batches_per_step) not in begins:
                steps = Batching.recorded(definition).of(config).steps(pace)
                begins[pace] = [0, *accumulate(steps[partition] for partition in self._visits)]
            for name, (places, values) in unit.columns.items():
                curve = curves.setdefault(name, ([], []))
                curve[0].extend(begins[pace][version - 1] + place for place in places)
                curve[1].extend(values)
        return curves

    @property
    def names(self) -> set[str]:
        """The names of all values."""
        return {name for unit in self._units.values() for name in unit.columns}


Curves = Mapping[str, Column]
"""Names to steps, counted from the beginning of a trial, and values."""
