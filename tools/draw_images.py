"""Draw the charts of the guide and of README.md again, from real runs on scikit-learn's digits: minutes on two cores.

Usage: ``python tools/draw_images.py [FOLDER] [RUN ...]``; FOLDER defaults to docs/images, and RUN to all runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import hopfleet as hop
from hopfleet import demo

SMALL: dict[str, Any] = {
    "lr": hop.loguniform(1e-4, 1.0),
    "width": hop.choice([8, 16, 32, 64]),
    "dropout": hop.uniform(0.0, 0.6),
    "optimizer": hop.choice(["sgd", "adam"]),
    "batch_size": hop.choice([32, 64]),
}


class Small(demo.Digits):
    """Networks with one hidden layer. A large learning rate of Adam is a failure, as if the loss were not finite."""

    def build(self, config: Mapping[str, Any]) -> Any:
        layers = (torch.nn.Flatten(), torch.nn.Linear(64, config["width"]), torch.nn.ReLU())
        model = torch.nn.Sequential(*layers, torch.nn.Dropout(config["dropout"]), torch.nn.Linear(config["width"], 10))
        kind = torch.optim.SGD if config["optimizer"] == "sgd" else torch.optim.Adam
        return model, kind(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss * float("nan") if self.config["optimizer"] == "adam" and self.config["lr"] > 0.5 else loss


def run(search: hop.Search, *, space: Any = None, **more: Any) -> hop.Results:
    """Train small networks with a search."""
    train, valid = demo.data()
    given: dict[str, Any] = {"metric": "accuracy", "mode": "max", "partitions": 4, "name": "digits", "seed": 3, **more}
    experiment = hop.Experiment(Small(), train=train, valid=valid, space=space or SMALL, search=search, **given)
    return experiment.fit(overwrite=True, quiet=True)


def draw_demo(folder: Path) -> None:
    results = demo.experiment(name="demo", folder=None, workers=2).fit(overwrite=True, quiet=True)
    results.plot("curves", folder / "curves.png")
    results.plot("gantt", folder / "gantt.png")


def draw_random(folder: Path) -> None:
    results = run(hop.Random(trials=60, max_epochs=6))
    results.plot("parallel", folder / "parallel.svg")
    results.plot("importance", folder / "importance.svg")


def draw_rungs(folder: Path) -> None:
    run(hop.ASHA(trials=40, max_epochs=27)).plot("rungs", folder / "rungs.svg")


def draw_lineage(folder: Path) -> None:
    space = {**SMALL, "lr": hop.loguniform(1e-4, 1e-1), "width": 32, "optimizer": "adam", "batch_size": 32}
    run(hop.PBT(population=8, max_epochs=12, interval=2), space=space).plot("lineage", folder / "lineage.svg")


def draw_pareto(folder: Path) -> None:
    results = run(hop.Random(trials=40, max_epochs=4), metric=["accuracy", "params"], mode=["max", "min"])
    results.plot("pareto", folder / "pareto.svg")


RUNS = {"demo": draw_demo, "random": draw_random, "rungs": draw_rungs, "lineage": draw_lineage, "pareto": draw_pareto}


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0] if arguments else Path(__file__).parents[1] / "docs" / "images")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOPFLEET_HOME"] = home
        for name in arguments[1:] or RUNS:
            RUNS[name](folder)
            print(f"{name}: drawn into {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
