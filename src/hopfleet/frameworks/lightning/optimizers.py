"""The forms in which ``configure_optimizers`` may return optimizers and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hopfleet.errors import TaskError
from hopfleet.frameworks.paced import Paced

FORMS = (
    "return an optimizer, a list of optimizers, two lists of optimizers and schedules, or a dict with 'optimizer' and "
    "'lr_scheduler'"
)


class Configured(NamedTuple):
    """The optimizers and schedules of a module."""

    optimizers: list[Optimizer]
    #: Schedules that follow a metric as they are, all others with their pace.
    schedules: list[Any]
    #: The metrics that schedules monitor.
    monitors: list[str]


def configured(made: Any, accumulate: int) -> Configured:
    """Sort out what ``configure_optimizers`` returned. Raises TaskError for a form that Lightning does not know.

    An update is made after ``accumulate`` batches.
    """
    result = Configured([], [], [])
    if isinstance(made, tuple | list) and len(made) == 2 and all(isinstance(part, tuple | list) for part in made):
        for optimizer in made[0]:
            _add(optimizer, None, accumulate, result)
        for schedule in made[1]:
            _add(None, schedule, accumulate, result)
    else:
        for part in made if isinstance(made, tuple | list) else [made]:
            if isinstance(part, Mapping) and "optimizer" in part:
                _add(part["optimizer"], part.get("lr_scheduler"), accumulate, result)
            elif part is not None:
                _add(part, None, accumulate, result)
    if not result.optimizers:
        raise TaskError(f"configure_optimizers() returned no optimizer: {FORMS}")
    return result


def _add(optimizer: Any, schedule: Any, accumulate: int, result: Configured) -> None:
    if optimizer is not None:
        if not isinstance(optimizer, Optimizer):
            raise TaskError(f"configure_optimizers() returned a {type(optimizer).__name__}: {FORMS}")
        result.optimizers.append(optimizer)
    if schedule is None:
        return
    options = dict(schedule) if isinstance(schedule, Mapping) else {"scheduler": schedule}
    made, interval = options.get("scheduler"), options.get("interval", "epoch")
    if not isinstance(made, LRScheduler):
        raise TaskError(f"configure_optimizers() returned a {type(made).__name__} as a schedule: {FORMS}")
    if interval not in ("step", "epoch"):
        raise TaskError(f"configure_optimizers() returned interval={interval!r}: must be 'step' or 'epoch'")
    if isinstance(made, ReduceLROnPlateau):
        result.schedules.append(made)
        result.monitors.append(str(options.get("monitor", "")))
    else:
        result.schedules.append(Paced(made, interval, int(options.get("frequency", 1)), accumulate))
