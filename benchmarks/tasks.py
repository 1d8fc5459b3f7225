"""The tasks of the benchmarks, in a separate module so that workers can import them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopfleet.frameworks.base import Batch, Batches
from hopfleet.frameworks.torch.task import TorchTask

MATRIX = 256
"""Side of the square matrices whose products are a unit's work."""


class NoWork(TorchTask):
    """Units that do nothing and report when, in seconds since the epoch."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Linear(4, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, model: Any, batches: Batches, config: Mapping[str, Any]) -> Mapping[str, Any]:
        began = time.time()
        time.sleep(config.get("seconds", 0.0))
        return {"loss": 0.0, "began": began, "ended": time.time()}


class Marking(NoWork):
    """Units that leave a file in ``config["marks"]``, named after the start of the unit, its process and its trial."""

    def train(self, model: Any, batches: Batches, config: Mapping[str, Any]) -> Mapping[str, Any]:
        (Path(config["marks"]) / f"{time.time():.6f}-{os.getpid()}-{config['number']}").touch()
        return super().train(model, batches, config)


class Slowed(NoWork):
    """Units that take four times as long in the first process that creates the file ``config["claim"]``."""

    def train(self, model: Any, batches: Batches, config: Mapping[str, Any]) -> Mapping[str, Any]:
        claim = Path(config["claim"])
        with contextlib.suppress(FileExistsError), claim.open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
        slow = claim.read_text(encoding="utf-8") == str(os.getpid())
        return super().train(model, batches, {**config, "seconds": config["seconds"] * (4 if slow else 1)})


class Freight(NoWork):
    """Units that do nothing with a model whose saved versions take about ``config["megabytes"]``."""

    def build(self, config: Mapping[str, Any]) -> Any:
        adam = config["optimizer"] == "adam"
        # One layer is 4 MB; Adam keeps two more numbers for each weight.
        layers = max(1, round(config["megabytes"] * 1e6 / (1024 * 1024 * 4) / (3 if adam else 1)))
        width = 1024 if config["megabytes"] >= 4 else 16
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        if not adam:
            return model, torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return model, optimizer


class Products(NoWork):
    """Units of ``config["products"]`` matrix products: real work on one core, and no data."""

    def train(self, model: Any, batches: Batches, config: Mapping[str, Any]) -> Mapping[str, Any]:
        multiply(config["products"])
        return {"loss": 0.0}


def multiply(products: int) -> None:
    left = torch.ones(MATRIX, MATRIX)
    for _ in range(products):
        left @ left


class Reader(NoWork):
    """Units that read every batch and keep nothing."""

    def train(self, model: Any, batches: Batches, config: Mapping[str, Any]) -> Mapping[str, Any]:
        total = 0.0
        for batch in batches:
            total += float(batch["x"].sum())
        return {"loss": total}


class Perceptron(TorchTask):
    """A small network, trained by Hopfleet's own loop."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: Any, batch: Batch) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


class Wide(Perceptron):
    """A network whose steps take longer than the exchange of its gradients."""

    def build(self, config: Mapping[str, Any]) -> Any:
        sizes = (64, 512, 512, 512, 10)
        layers = [torch.nn.Sequential(torch.nn.Linear(*pair), torch.nn.ReLU()) for pair in itertools.pairwise(sizes)]
        model = torch.nn.Sequential(*layers)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


class Augmented(TorchTask):
    """Perceptrons with ``config["layers"]`` hidden layers, over rows that take ``rounds`` matrix products to prepare.

    With ``alone``, preparing reads the configuration, so each trial prepares its own batches.
    """

    def __init__(self, rounds: int, *, alone: bool) -> None:
        self.rounds, self.alone = rounds, alone

    def build(self, config: Mapping[str, Any]) -> Any:
        hidden = [torch.nn.Linear(256, 256) for _ in range(config["layers"])]
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), *hidden, torch.nn.Linear(256, 10))
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def transform(self, batch: Batch, rng: Any) -> Batch:
        if self.alone:
            self.config["layers"]
        x, mix = batch["x"], rng.standard_normal((64, 64)).astype(np.float32) / 8
        for _ in range(self.rounds):
            x = np.tanh(x @ mix)
        return {"x": x, "y": batch["y"]}

    def loss(self, model: Any, batch: Batch) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
