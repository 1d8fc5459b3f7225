"""The workload: images of digits, a small network, a grid of configurations.

The images are scikit-learn's 1,797 scanned digits, enlarged and placed at random on a noisy background, so that any
number of them can be made and a network has something to learn. Validation images are made from other scans. The ratios
are realistic at a small scale: the data are a hundred times the size of a model, and an epoch has hundreds of batches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import hopfleet as hop
from hopfleet.frameworks.base import Batch

SIDE = 22
"""Side of an image, in pixels. A digit takes 16 of them."""

HELD_BACK = 397
"""Number of scans from which validation images are made."""

WHOLE = "valid-whole"
"""Name of the validation data in one partition: a model evaluated where it was trained last need not hop."""

RATES = (0.02, 0.05, 0.1, 0.2)
DECAYS = (0.0, 1e-4)


class Images(hop.TorchTask):
    """Classification of digits with one hidden layer and plain SGD, so that a model's state is its weights.

    A batch takes ``waits`` seconds longer than its processor time, as if a device did most of the work.
    """

    def __init__(self, waits: float = 0.0) -> None:
        self.waits = waits

    def build(self, config: Mapping[str, Any]) -> Any:
        width = config["width"]
        model = torch.nn.Sequential(torch.nn.Linear(SIDE * SIDE, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])

    def loss(self, model: Any, batch: Batch) -> Any:
        if self.waits:
            time.sleep(self.waits)
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model: Any, batch: Batch) -> Mapping[str, Any]:
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


@dataclass(frozen=True, slots=True)
class Workload:
    """The size of the workload. The default takes from seconds to minutes, by paradigm, at 200 Mbit/s."""

    rows: int = 25_600
    valid_rows: int = 1_024
    partitions: int = 4
    trials: int = 8
    epochs: int = 3
    batch_size: int = 32
    width: int = 200
    seed: int = 7
    waits: float = 0.0  #: seconds for each batch, besides its processor time

    @property
    def space(self) -> dict[str, Any]:
        """Return the grid, as an experiment takes it."""
        return {
            "width": self.width,
            "lr": hop.grid_search(list(RATES[: self.trials // len(DECAYS)])),
            "weight_decay": hop.grid_search(list(DECAYS)),
        }

    @property
    def configs(self) -> list[dict[str, Any]]:
        """Return the same configurations one by one, in the same order."""
        grid = itertools.product(RATES, DECAYS)
        every = [{"width": self.width, "lr": lr, "weight_decay": decay} for lr, decay in grid]
        return every[: self.trials]

    def write(self, folder: Path) -> None:
        """Make the data sets ``train`` and ``valid`` in a folder, and the latter once more in one partition."""
        from sklearn.datasets import load_digits

        scans, labels = load_digits(return_X_y=True)
        rng = np.random.default_rng(self.seed)
        train = _images(scans[HELD_BACK:], labels[HELD_BACK:], self.rows, rng)
        valid = _images(scans[:HELD_BACK], labels[:HELD_BACK], self.valid_rows, rng)
        for name, data, partitions in (
            ("train", train, self.partitions),
            ("valid", valid, self.partitions),
            (WHOLE, valid, 1),
        ):
            hop.partition(data, folder / name, partitions=partitions, seed=self.seed)


def _images(
    scans: npt.NDArray[Any], labels: npt.NDArray[Any], rows: int, rng: np.random.Generator
) -> dict[str, npt.NDArray[Any]]:
    chosen = rng.integers(len(scans), size=rows)
    large = np.repeat(np.repeat(scans[chosen].reshape(-1, 8, 8) / 16, 2, axis=1), 2, axis=2)
    images = rng.normal(0, 0.3, size=(rows, SIDE, SIDE)).astype("float32")
    across, down = rng.integers(SIDE - 16 + 1, size=(2, rows))
    for number in range(rows):
        images[number, down[number] : down[number] + 16, across[number] : across[number] + 16] += large[number]
    return {"x": images.reshape(rows, -1), "y": labels[chosen].astype("int64")}
