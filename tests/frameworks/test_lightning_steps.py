"""Lightning: the numbers of steps that hooks are told are the steps that are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
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
