"""Lightning: the numbers of steps that hooks are told are the steps that are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from tests.helpers.captures import Batches
from tests.helpers.counted_steps import trained

lightning = pytest.importorskip("lightning.pytorch")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps(tmp_path: Path, accumulate: int) -> None:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            schedule, loop = self.lr_schedulers(), self.trainer
            self.log("loss", self.training_step(batch, number))
            self.log("updates", float(loop.global_step))
            self.log("stepped", float(schedule.last_epoch))
            self.log("total", float(loop.estimated_stepping_batches))
            self.log("batches", float(loop.max_epochs * loop.num_training_batches))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Task(hop.LightningTask):
        def build(self, config: Any) -> Any:
            return Module()

    task = Task()
    task.accumulate = accumulate
    best, plan = trained(tmp_path, task)
    found = best.history[-1]
    assert found["updates"] == found["stepped"] == found["total"] == plan.total_steps(accumulate)
    assert found["batches"] == plan.total_steps()


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_values_of_single_steps(manual: bool) -> None:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(20, 3)
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, number: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("mean", loss)
            self.log("each", loss, on_step=True)
            self.log("number", number, False, None, True)
            if manual:
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            self.log_dict({"ended": float(number)}, on_step=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Task(hop.LightningTask):
        log_lr = True

        def build(self, config: Any) -> Any:
            return Module()

    def opened() -> Any:
        return Task().framework.open({}, seed=0, placement=CPU, threads=1)

    session = opened()
    sums = session.train(Batches("cpu", count=4), last=True)
    found = session.logged()
    assert found is not None and found.columns.keys() == {"lr", "each", "number", "ended"}
    every = (0, 1, 2, 3)
    assert found.columns["number"] == found.columns["ended"] == (every, (0.0, 1.0, 2.0, 3.0))
    assert found.columns["lr"] == (every, (0.1,) * 4)
    rows = (64, 64, 64, 40)
    total = sum(value * count for value, count in zip(found.columns["each"][1], rows, strict=True))
    assert float(sums["train_mean"].mean) == pytest.approx(total / sum(rows))
    if not manual:  # evaluations take training steps, too, if there is no validation_step
        session.evaluate(Batches("cpu"), seed=0)
        assert session.logged() is None
        members = [opened(), opened()]
        for fast in (False, True):
            Task().framework.flotilla(members, fast=fast).train(Batches("cpu", count=4), last=[True, True])
            for member in members:
                again = member.logged()
                assert again is not None and again.columns["number"] == found.columns["number"]
