"""A session: one LightningModule on one device, trained by the steps of the adapter of PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batches
from hopfleet.frameworks.lightning.belongings import Belongings
from hopfleet.frameworks.lightning.loop import Logged, Loop
from hopfleet.frameworks.lightning.refusals import overrides
from hopfleet.frameworks.paced import Paced
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import summed
from hopfleet.frameworks.torch.trial import Metrics


class LightningSession(TorchSession):
    """A trial of a LightningModule."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.belongings = Belongings(self.model, self.loop.callbacks)

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
        found = dict(result or {})
        found |= self.loop.with_loss(found.pop("loss")) if "loss" in found else {}
        paced = [each for each in self.schedulers if isinstance(each, Paced)] if self.loop.automatic else []
        for schedule in paced:
            schedule.step("unit")
        found |= _recorded(self.loop.end_unit(last=last))
        for schedule in paced if last else ():
            schedule.step("epoch")
        self.belongings.state()  # what cannot hop is refused while the trial's own code is to blame
        return super().end_unit(found, rows, last=last)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        self.loop.begin_evaluation()
        validates = overrides(self.model, "validation_step", "LightningModule")
        with super().averaged(), self.belongings.unchanged(strict=validates):
            yield

    def extra_state(self) -> Any:
        return {**self.loop.state(), "belongings": self.belongings.state()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        if "belongings" in state:  # release 0.2 had none
            self.belongings.restore(state["belongings"])
        self.loop.restore(state)


def _recorded(logged: Logged) -> dict[str, RowSum]:
    """Return the sums of values that were logged; workers put ``train_`` before each name."""
    found = [({_short(name): value for name, value in values.items()}, rows) for values, rows in logged]
    return summed(found)


def _short(name: str) -> str:
    return name.removeprefix("train_").removeprefix("train/")
