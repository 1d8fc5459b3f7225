"""Run in a process of its own by runs/test_control.py, which steers it: its units wait while a file is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import hopfleet as hop
from hopfleet.backends import supervision
from tests.helpers.sample_tasks import Everything, arrays

SEED = 5


class Steered(Everything):
    """Any optimizer, learning rate, schedule and width; every unit waits while the file ``config["hold"]`` is there."""

    def build(self, config: Mapping[str, Any]) -> Any:
        width = config["width"]
        model = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(36, width),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(width, 3),
        )
        lr = config["lr"]
        optimizer: Any
        if config["optimizer"] == "sgd":
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        match config["schedule"]:
            case "step":
                return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            case "lambda":
                return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
            case _:
                return model, optimizer

    def train(self, model: Any, batches: Any, config: Mapping[str, Any]) -> Any:
        hold = Path(config["hold"])
        trained = hold.with_name(f"trained-{config['lr']}")
        if len(batches) > 2:  # not in the check before the run
            while _holds(hold, trained):
                time.sleep(0.01)
            with trained.open("a") as file:
                file.write(".")
        time.sleep(0.02)
        return super().train(model, batches, config)


def _holds(hold: Path, trained: Path) -> bool:
    """Whether a trial waits: the file ``hold`` may contain the number of units that each trial trains before."""
    try:
        units = int(hold.read_text(encoding="utf-8") or 0)
        return (trained.stat().st_size if trained.exists() else 0) >= units
    except FileNotFoundError:
        return False


def experiment(folder: Path, **more: Any) -> hop.Experiment:
    data = folder / "train"
    if not data.exists():
        hop.partition(arrays(160), data, partitions=4, seed=3)
    space = {
        "optimizer": "sgd",
        "lr": hop.grid_search([0.05, 0.1]),
        "schedule": "step",
        "width": 8,
        "hold": str(folder / "hold"),
    }
    options: dict[str, Any] = {"workers": 2, "epochs": 3, **more}
    return hop.Experiment(
        Steered(),
        train=data,
        valid=arrays(60, seed=1),
        space=space,
        search=hop.Grid(max_epochs=options.pop("epochs")),
        metric="accuracy",
        mode="max",
        seed=SEED,
        name="steered",
        batch_size=16,
        worker_options=hop.WorkerOptions(device="cpu"),
        **options,
    )


def run(folder: str, epochs: int) -> None:
    supervision.GIVE_UP_SECONDS = 1.0  # units that wait never react, so tests would wait as long
    experiment(Path(folder), epochs=epochs).fit()
