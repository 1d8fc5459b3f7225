"""A small experiment, with whatever a test changes."""

from __future__ import annotations

from typing import Any

import hopfleet as hop
from tests.helpers.sample_tasks import Plain, arrays


def experiment(task: Any = None, **changes: Any) -> hop.Experiment:
    given: dict[str, Any] = {
        "train": arrays(),
        "valid": arrays(60, seed=1),
        "space": {"lr": hop.loguniform(1e-3, 1e-1)},
        "search": hop.Random(trials=2, max_epochs=2),
        "metric": "accuracy",
        "mode": "max",
        "name": "e",
        "backend": "inline",
        "workers": 2,
        "partitions": 3,
        **changes,
    }
    return hop.Experiment(task or Plain(), **given)
