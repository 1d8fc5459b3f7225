"""A session: one LightningModule on one device, trained by the steps of the adapter of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batches
from hopfleet.frameworks.lightning.loop import Logged, Loop
from hopfleet.frameworks.paced import Paced
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import summed
from hopfleet.frameworks.torch.trial import Metrics


class LightningSession(TorchSession):
    """A trial of a LightningModule."""

    @property
    def loop(self) -> Loop:
        """The loop that stands in for a Trainer."""
        return self.model.trainer  # type: ignore[return-value]

    def check_goal(self, metric: str, mode: str) -> None:
        super().check_goal(metric, mode)
        for monitor in self.loop.monitors:
            if monitor and monitor != metric:
                raise TaskError(
                    f"ReduceLROnPlateau monitors {monitor!r}, but schedules follow the metric of the experiment, "
                    f"{metric!r}: set metric={monitor!r}, or monitor {metric!r}"
                )

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        self.loop.closing = len(batches) if last else 0
        return super().train(batches, last=last)

    def end_unit(self, result: Metrics | None, rows: int, *, last: bool) -> dict[str, RowSum]:
        paced = [each for each in self.schedulers if isinstance(each, Paced)] if self.loop.automatic else []
        for schedule in paced:
            schedule.step("unit")
        logged = self.loop.end_unit(rows, last=last)
        for schedule in paced if last else ():
            schedule.step("epoch")
        return super().end_unit({**_recorded(logged), **(result or {})}, rows, last=last)

    def extra_state(self) -> Any:
        return self.loop.state()

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        self.loop.restore(state)


def _recorded(logged: Logged) -> dict[str, RowSum]:
    """Return the sums of values that were logged; workers put ``train_`` before each name."""
    found = [({_short(name): value for name, value in values.items()}, rows) for values, rows in logged]
    return summed(found)


def _short(name: str) -> str:
    return name.removeprefix("train_").removeprefix("train/")
