"""Experiments to look at: a task whose accuracy follows a made-up curve that depends on its configuration."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.trial import Config
from hopfleet.frameworks.base import Batches, Session
from hopfleet.testing.tasks import CountingSession, CountingTask

SPACE = {
    "lr": hop.loguniform(1e-4, 1e-1),
    "width": hop.choice([32, 64, 128, 256]),
    "activation": hop.choice(["relu", "tanh"]),
    "dropout": hop.uniform(0, 0.5),
}


GATE = "HOPFLEET_TEST_GATE"
"""Names a file: without it, no trial trains more than ``UNGATED`` units. So a run lasts until it was looked at."""

UNGATED = 12


class CurveSession(CountingSession):
    """Learns as fast as its configuration allows."""

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        gate = os.environ.get(GATE)
        while gate and self.units >= UNGATED and not Path(gate).exists():
            time.sleep(0.05)
        return super().train(batches, last=last)

    def logged(self) -> StepValues | None:
        """Log a learning rate of each of two steps, if the configuration asks for that."""
        if not self.config.get("logs"):
            return None
        rates = [self.config["lr"] * 0.9**self.units * factor for factor in (1.0, 0.95)]
        return StepValues({"lr": ((0, 1), tuple(rates)), "<b>noise": ((0, 1), (math.nan, math.sin(self.units)))})

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        rows = sum(len(batch["x"]) for batch in batches)
        config = self.config
        limit = 0.97 - 0.11 * abs(math.log10(config["lr"]) + 2) - 3 / config["width"]
        limit -= 0.05 * (config["activation"] == "tanh")
        accuracy = max(0.1, limit * (1 - math.exp(-self.units / (6 + 20 * config["dropout"]))))
        print(f"accuracy {accuracy:.4f} after {self.units} units")  # into the log of the trial
        return {"accuracy": RowSum.of(accuracy, rows), "loss": RowSum.of(-math.log(accuracy), rows)}


class CurveTask(CountingTask):
    """A task that needs no framework and has curves worth a look."""

    def open(self, config: Config, *, seed: int, placement: Placement, threads: int) -> Session:
        return CurveSession(config)


def asked(trial: Any) -> dict[str, Any]:
    """A space that is a function; the names that it asks for are not those of its configurations."""
    activation = trial.suggest_categorical("act.name", ["relu", "tanh"])
    rate = trial.suggest_float("rate", 0.1, 0.5) if activation == "tanh" else 0.0
    width = 32 * trial.suggest_int("blocks", 1, 4)
    return {
        "lr": 10 ** trial.suggest_float("log_lr", -4, -1),
        "width": width,
        "dropout": rate,
        "activation": activation,
    }


def curve_experiment(name: str, **more: Any) -> hop.Experiment:
    return hop.Experiment(
        CurveTask(),
        **{
            "train": {"x": np.arange(400.0)},
            "valid": {"x": np.arange(40.0)},
            "space": SPACE,
            "search": hop.Random(trials=12, max_epochs=6),
            "metric": "accuracy",
            "mode": "max",
            "partitions": 4,
            "batch_size": 50,
            "backend": "inline",
            "name": name,
            **more,
        },
    )
