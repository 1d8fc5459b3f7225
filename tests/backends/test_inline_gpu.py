"""Experiments on a GPU in the user's own process: what the device has for one is free for the next."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import hopfleet as hop
from tests.helpers.sample_tasks import arrays

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


class Wide(hop.TorchTask):
    def build(self, config: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(36, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch["x"].flatten(1).float()).square().mean()


@pytest.mark.parametrize("fuse", ["fast", "exact"])
def test_experiments_one_after_another_leave_nothing_on_the_device(fuse: Any) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    gc.disable()  # no collection by chance
    try:
        for number in range(3):
            results = hop.Experiment(
                Wide(),
                train=arrays(240),
                valid=arrays(60, seed=1),
                space={"lr": hop.loguniform(1e-4, 1e-2)},
                search=hop.Random(trials=3, max_epochs=2),
                metric="loss",
                batch_size=32,
                backend="inline",
                name=f"{fuse}{number}",
                worker_options=hop.WorkerOptions(fuse=fuse, device="cuda"),
            ).fit(quiet=True)
            log = "".join(file.read_text() for file in results.folder.logs.glob("*.log"))
            assert "in turn" not in log
            assert torch.cuda.memory_allocated() - before < 4096 * 4096 * 4
    finally:
        gc.enable()
