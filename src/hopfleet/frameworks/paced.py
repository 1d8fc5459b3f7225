"""Schedules of PyTorch that step with updates, every few batches, or every few epochs."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler


class Paced(LRScheduler):
    """A schedule with a pace: it steps after every n-th batch or epoch. Batches are counted anew in each epoch.

    A batch whose gradients wait for an update counts, but the schedule does not step after it.
    """

    def __init__(self, schedule: LRScheduler, interval: str, frequency: int, accumulate: int) -> None:
        self.schedule, self._interval, self._frequency = schedule, interval, frequency
        self.optimizer = schedule.optimizer
        self._accumulate = accumulate
        self._count = self._waiting = 0
        #: Whether batches do not count, because their epoch was ended.
        self.muted = False

    @property
    def regular(self) -> bool:
        """Whether the schedule steps with each epoch or update, and not every few."""
        return self._frequency == 1

    @property
    def by_epoch(self) -> bool:
        """Whether the schedule steps with epochs and not with updates."""
        return self._interval == "epoch"

    def step(self, event: Any = "step") -> None:
        """Take note of the end of a batch ("step"), of a unit or of an epoch."""
        if event == "epoch":
            self._count = self._count + 1 if self._interval == "epoch" else 0
            self._step(self._interval == "epoch")
        elif self._interval == "step" and not (self.muted and event == "step"):
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
        return {"count": self._count, "waiting": self._waiting, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._count, self._waiting = state_dict["count"], state_dict.get("waiting", 0)
        self.schedule.load_state_dict(state_dict["schedule"])

    def get_last_lr(self) -> Any:
        return self.schedule.get_last_lr()
