"""The demo: a real model selection among four small networks that read handwritten digits.

The demo needs no network access: the 1,797 images of 8×8 pixels come with scikit-learn. ``hopfleet demo`` runs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import hopfleet as hop
from hopfleet.domain.choices import Auto
from hopfleet.errors import MissingExtra

VALID_ROWS = 360
EPOCHS = 5
SPACE = {
    "network": hop.grid_search(["mlp", "cnn", "resnet", "gru"]),
    "lr": hop.grid_search([0.003, 0.01]),
    "batch_size": hop.grid_search([32, 64]),
}


class Digits(hop.TorchTask):
    """Classification of images into the ten digits."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = NETWORKS[config["network"]]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        return F.cross_entropy(model(batch["image"]), batch["digit"])

    def metrics(self, model: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        scores = model(batch["image"])
        return {
            "accuracy": (scores.argmax(1) == batch["digit"]).float().mean(),
            "loss": F.cross_entropy(scores, batch["digit"]),
        }


def mlp() -> nn.Module:
    """Build a network of two hidden layers that ignores the structure of images."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def cnn() -> nn.Module:
    """Build a network of two convolutions with batch normalisation."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10)),
    )


class Residual(nn.Module):
    """Two convolutions whose output is added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.correction = nn.Sequential(
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.correction(x))


def resnet() -> nn.Module:
    """Build a tiny residual network."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(Residual(16), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10)),
    )


class Reader(nn.Module):
    """A recurrent network that reads the rows of an image from top to bottom."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 64, batch_first=True)
        self.scores = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(x.squeeze(1))
        scores: torch.Tensor = self.scores(states.mean(1))
        return scores


NETWORKS = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "gru": Reader}


def data() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the digits, shuffled with a fixed seed, as training rows and validation rows."""
    try:
        from sklearn.datasets import load_digits  # imported here because workers do not need it, and it is slow
    except ImportError as error:
        raise MissingExtra("scikit-learn", "demo") from error

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    order = np.random.default_rng(0).permutation(len(images))
    valid, train = order[:VALID_ROWS], order[VALID_ROWS:]
    return (
        {"image": images[train], "digit": digits.target[train]},
        {"image": images[valid], "digit": digits.target[valid]},
    )


def experiment(*, name: str, folder: str | os.PathLike[str] | None, workers: int | Auto) -> hop.Experiment:
    """Return the experiment: all 16 combinations of network, learning rate and batch size."""
    train, valid = data()
    return hop.Experiment(
        Digits(),
        train=train,
        valid=valid,
        space=SPACE,
        search=hop.Grid(max_epochs=EPOCHS),
        metric="accuracy",
        mode="max",
        partitions=4,
        name=name,
        workers=workers,
        run_options=hop.RunOptions(folder=folder),
    )
