"""The workloads on a small machine: models, data and configurations, the same for all contenders."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.flights import Arrays, flights, parted

Config = Mapping[str, Any]


def layers(*widths: int) -> Any:
    """Build a perceptron with these widths."""
    parts: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        parts += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def loss(model: Any, batch: Mapping[str, Any]) -> Any:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def accuracy(model: Any, batch: Mapping[str, Any]) -> Any:
    return (model(batch["x"]).argmax(1) == batch["y"]).float().mean()


@dataclass(frozen=True)
class Workload:
    """Trials of one kind. ``grid`` spans their configurations, the learning rates ``lr`` among them."""

    what: str
    grid: Mapping[str, Sequence[Any]]
    epochs: int
    batch_size: int
    #: Returns the widths of a perceptron for a configuration.
    widths: Callable[[Config], tuple[int, ...]]
    #: Returns training and validation rows, of a tiny size if asked.
    data: Callable[[bool], tuple[Arrays, Arrays]]
    #: Partitions, for our own runs: a model is saved or hops at most once per partition.
    partitions: int | None = None
    #: Prepares a batch of arrays for the model.
    transform: Callable[[Arrays, Any], Arrays] | None = None

    @property
    def configs(self) -> list[dict[str, Any]]:
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    @property
    def tiny(self) -> Workload:
        """Return the first few trials, for one epoch."""
        return replace(self, grid={key: values[:2] for key, values in self.grid.items()}, epochs=1)

    def build(self, config: Config) -> Any:
        model = layers(*self.widths(config))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])


def rates(count: int) -> list[float]:
    return [float(rate) for rate in np.geomspace(3e-4, 1e-2, count)]


# ------------------------------------------------------------------------------------------------------------- others


def digits(quick: bool) -> tuple[Arrays, Arrays]:
    """Return scikit-learn's images of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = (found.data / 16).astype(np.float32), found.target.astype(np.int64)
    return parted(x[:400], y[:400]) if quick else parted(x, y)


def wide(quick: bool) -> tuple[Arrays, Arrays]:
    """Return rows of 1024 numbers whose first ones determine the class."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000 if quick else 5120, 1024), np.float32)
    return parted(x, (x[:, :8].sum(1) > 0).astype(np.int64))


TONES, SAMPLES, WINDOW = 8, 2048, 256


def sounds(quick: bool) -> tuple[Arrays, Arrays]:
    """Return tones in noise, as the samples of a microphone."""
    rng = np.random.default_rng(0)
    rows = 600 if quick else 6000
    y = rng.integers(0, TONES, rows)
    when = np.arange(SAMPLES, dtype=np.float32) / SAMPLES
    pitch = (60 + 40 * y[:, None]) * (1 + 0.02 * rng.standard_normal((rows, 1)))
    x = np.sin(2 * np.pi * pitch * when + rng.uniform(0, 6, (rows, 1))) + 2 * rng.standard_normal((rows, SAMPLES))
    return parted(x.astype(np.float32), y)


def spectrum(batch: Arrays, rng: Any, moments: int = 12) -> Arrays:
    """Return the mean loudness of each pitch over some windows. In training the sound starts at a random place."""
    sound = batch["x"]
    if rng is not None:
        sound = np.roll(sound, int(rng.integers(SAMPLES)), axis=1)
    window = np.hanning(WINDOW).astype(np.float32)
    loud = np.zeros((len(sound), WINDOW // 4), np.float32)
    # One after another: small arrays take the same time everywhere.
    for start in np.linspace(0, SAMPLES - WINDOW, moments).astype(int):
        found = np.fft.rfft(sound[:, start : start + WINDOW] * window, axis=1)
        loud += np.log1p(np.abs(found[:, : WINDOW // 4])) / moments
    return {"x": loud.astype(np.float32), "y": batch["y"]}


WORKLOADS = {
    "flights": Workload(
        "32 perceptrons 27-w-w/2-2, w from 32 to 128, on 295,000 flights, 2 epochs in batches of 256",
        {"w": [32, 64, 96, 128], "lr": rates(8)},
        2,
        256,
        lambda config: (27, config["w"], config["w"] // 2, 2),
        flights,
    ),
    "short": Workload(
        "64 trials of about a second: perceptrons 64-w-10 on digits, 10 epochs in batches of 32",
        {"w": [32, 64], "lr": rates(32)},
        10,
        32,
        lambda config: (64, config["w"], 10),
        digits,
        partitions=1,
    ),
    "large": Workload(
        "8 perceptrons 1024-1000-500-2, 2 epochs of 4,608 rows in batches of 256",
        {"lr": rates(8)},
        2,
        256,
        lambda config: (1024, 1000, 500, 2),
        wide,
        partitions=2,
    ),
    "preprocessing": Workload(
        "16 perceptrons on spectra, which take four times as long to make as to train on, 2 epochs in batches of 64",
        {"lr": rates(16)},
        2,
        64,
        lambda config: (WINDOW // 4, 128, TONES),
        sounds,
        partitions=2,
        transform=spectrum,
    ),
}


def workload(name: str, quick: bool, weight: int | None = None) -> Workload:
    """Return a workload whose batches cost as much as ``weight`` was calibrated for."""
    found = WORKLOADS[name].tiny if quick else WORKLOADS[name]
    return found if weight is None else replace(found, transform=partial(spectrum, moments=weight))


COST = 4.0
"""Time to make a batch, as a multiple of the time to train one model on it."""

FEW, MANY = 4, 16
"""Windows used for the calibration."""


def weigh(name: str, arrays: Arrays) -> int:
    """Return the weight with which making a batch has its intended cost on this machine."""
    few, many = (cost_of_transform(workload(name, False, moments), arrays) for moments in (FEW, MANY))
    return max(1, round(FEW + (COST - few) * (MANY - FEW) / (many - few)))


def cost_of_transform(workload: Workload, arrays: Arrays) -> float:
    """Return the processor time to make a batch, as a multiple of a step of one model on it."""
    assert workload.transform is not None
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    raw = {key: array[: workload.batch_size] for key, array in arrays.items()}
    model, optimizer = workload.build(workload.configs[0])

    def step() -> None:
        error = loss(model, batch)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()

    batch = {key: torch.as_tensor(value) for key, value in workload.transform(raw, rng).items()}
    rounds = [
        (_seconds(lambda: workload.transform(raw, rng), 10), _seconds(step, 30))  # type: ignore[misc]
        for _ in range(ROUNDS)
    ]
    makes, steps = (sorted(times)[ROUNDS // 2] for times in zip(*rounds, strict=True))
    return float(makes / steps)


ROUNDS = 7


def _seconds(work: Callable[[], object], times: int) -> float:
    work()
    began = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - began) / times
