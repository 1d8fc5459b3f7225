"""Messages of a trial that logs values of single steps."""

from __future__ import annotations

from typing import Any

from hopfleet.domain.messages import TrialAdded, UnitFinished
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.unit import Unit

DEFINITION = {
    "train": {"rows": 25, "partitions": 2},
    "partition_rows": [20, 5],
    "batch_size": 5,
    "drop_last": False,
    "search": {"max_epochs": 2},
}
"""Four steps in partition 0 and one in partition 1."""


def values(*points: tuple[int, float], pace: int = 1) -> StepValues:
    return StepValues({"x": (tuple(step for step, _ in points), tuple(value for _, value in points))}, pace)


def unit(version: int, partition: int, logged: StepValues | None, trial: str = "t1") -> UnitFinished:
    epoch = (version + 1) // 2
    return UnitFinished("w0", Unit(trial, epoch, partition), version, version, 0.0, 1.0, logged=logged)


def added(config: dict[str, Any] | None = None, visits: tuple[int, ...] = ()) -> TrialAdded:
    return TrialAdded("t1", 1, config or {}, seed=1, epochs=2, visits=visits)


FIRST = [unit(1, 1, values((0, 1.0))), unit(2, 0, values((0, 2.0), (3, 3.0))), unit(3, 0, values((1, 4.0)))]
"""Three units: the first epoch of two, and half of the second."""
