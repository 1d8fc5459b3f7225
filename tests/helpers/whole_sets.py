"""Experiments with metrics over the whole set, for tests on all backends."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

import hopfleet as hop
from hopfleet.data.dataset import open_dataset
from tests.helpers.sample_tasks import Plain, arrays

DIES = "DIES_AT_SCORE"
"""The variable with the number of scores after which a process kills itself."""


def f1(targets: Any, outputs: Any) -> float:
    """Return the F1 score of class 2, which is rare in some partitions."""
    hits = np.sum((targets == 2) & (outputs == 2))
    return float(2 * hits / max(1, np.sum(targets == 2) + np.sum(outputs == 2)))


class Scored(Plain):
    def metrics(self, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
        logits = model(batch["x"])
        found = super().metrics(model, batch)
        return {
            **found,
            "f1": hop.WholeSet(f1, logits.argmax(1), batch["y"]),
            "order": hop.WholeSet(order, logits, logits),
            "rows": hop.WholeSet(count, logits, batch["y"]),
            "fixed": hop.WholeSet(f1, guessed(batch["x"]), batch["y"]),
        }


def count(targets: Any, outputs: Any) -> int:
    """Return how many rows are scored at once. With a number of calls to die at, this may be the last call."""
    if limit := os.environ.get(DIES):
        os.environ[DIES] = str(int(limit) - 1)
        if limit == "1":
            os.kill(os.getpid(), signal.SIGKILL)
    return len(targets)


def guessed(x: Any) -> Any:
    """Return outputs that no model has a part in."""
    return (x.mean((1, 2, 3)) > 1.2) * 2


def order(targets: Any, outputs: Any) -> float:
    """Return a number that depends on the order of all rows."""
    return float(np.dot(outputs[:, 0].astype("float64"), np.arange(len(outputs))))


def rows(data: hop.Dataset) -> tuple[Any, Any]:
    some = [batch for part in range(len(data)) for batch in data.batches(part, batch_size=1000)]
    return tuple(np.concatenate([batch[name] for batch in some]) for name in ("x", "y"))


def fitted(valid: Any, overwrite: bool = True, **changes: Any) -> hop.Results:
    given: dict[str, Any] = {
        "train": arrays(),
        "valid": valid,
        "space": {"lr": hop.grid_search([0.003, 0.01, 0.03])},
        "search": hop.Grid(max_epochs=2),
        "metric": "f1",
        "mode": "max",
        "name": "e",
        "backend": "inline",
        "partitions": 1,  # one visit per epoch, so that models do not depend on the order of visits
        **changes,
    }
    return hop.Experiment(Scored(), **given).fit(quiet=True, overwrite=overwrite)


def curves(results: hop.Results) -> list[Any]:
    return [[(epoch["f1"], epoch["order"]) for epoch in trial.history] for trial in results.trials]


def begun(url: str, backend: str) -> hop.Results:
    """Begin an experiment, or go on with it."""
    return fitted(open_dataset(url), overwrite=False, workers=1, backend=backend, name="killed")
