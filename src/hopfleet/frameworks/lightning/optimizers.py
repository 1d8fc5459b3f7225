"""The forms in which ``configure_optimizers`` may return optimizers and schedules, and schedules with a pace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hopfleet.errors import TaskError

FORMS = (
    "return an optimizer, a list of optimizers, two lists of optimizers and schedules, or a dict with 'optimizer' and "
    "'lr_scheduler'"
)


class Paced(LRScheduler):
    """A schedule with a pace: it steps after every n-th batch or epoch. Batches are counted anew in each epoch.

    A batch whose gradients wait for an update counts, but the schedule does not step after it.
    """

    def __init__(self, schedule: LRScheduler, interval: str, frequency: int, accumulate: int) -> None:
        self.schedule, self._interval, self._frequency = schedule, interval, frequency
        self.optimizer = schedule.optimizer
        self._accumulate = accumulate
        self._count = self._waiting = 0

    def step(self, event: Any = "step") -> None:
        """Take note of the end of a batch ("step"), of a unit or of an epoch."""
        if event == "epoch":
            self._count = self._count + 1 if self._interval == "epoch" else 0
            self._step(self._interval == "epoch")
        elif self._interval == "step":
            if event == "step":
                self._count += 1
                self._waiting += 1
            # The gradients that wait at the end of a unit are applied there.
            updated = self._waiting == self._accumulate if event == "step" else self._waiting > 0
            if updated:
                self._waiting = 0
            self._step(updated)

    def _step(self, due: bool) -> None:
        if due and self._count % self._frequency == 0:
            self.schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._count = state_dict["count"]
        self.schedule.load_state_dict(state_dict["schedule"])

    def get_last_lr(self) -> Any:
        return self.schedule.get_last_lr()


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
