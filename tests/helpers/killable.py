"""Run as a script by test_resume.py, which kills it: an experiment with everything that has a state."""

from __future__ import annotations

import sys

import hopfleet as hop
from tests.helpers.sample_tasks import Everything, arrays


def experiment(backend: str, workers: int, batch_size: int = 8) -> hop.Experiment:
    space = {"optimizer": hop.grid_search(["sgd", "adam", "adamw"]), "schedule": hop.grid_search(["step", "cosine"])}
    return hop.Experiment(
        Everything(),
        train=arrays(),
        valid=arrays(60, seed=1),
        space=space,
        search=hop.Grid(max_epochs=4),
        metric="accuracy",
        mode="max",
        seed=5,
        name="killed",
        backend=backend,
        workers=workers,
        batch_size=batch_size,
        partitions=4,
    )


if __name__ == "__main__":
    experiment(sys.argv[1], int(sys.argv[2])).fit(quiet=True)
