"""Synthetic unit times for planning without measurements: matrices of configurations (rows) by workers (columns).

``cnns`` is the heterogeneous setting of the Cerebro paper (its figure 6): costs of well-known networks on GPUs of
several generations.
"""

from __future__ import annotations

import json
import random
from functools import cache
from importlib import resources

Times = list[list[float]]


def homogeneous(configs: int, workers: int) -> Times:
    """Return times of one second for every unit."""
    return [[1.0] * workers for _ in range(configs)]


def cnns(configs: int, workers: int, rng: random.Random) -> Times:
    """Draw networks and GPUs with replacement; a unit takes cost / speed."""
    megaflops, teraflops = _catalog()
    costs = [rng.choice(megaflops) for _ in range(configs)]
    speeds = [rng.choice(teraflops) for _ in range(workers)]
    return [[cost / speed for speed in speeds] for cost in costs]


def lognormal(configs: int, workers: int, rng: random.Random, sigma: float) -> Times:
    """Draw log-normal times with a median of 1 second; ``sigma`` is the standard deviation of the logarithm."""
    return [[rng.lognormvariate(0.0, sigma) for _ in range(workers)] for _ in range(configs)]


@cache
def _catalog() -> tuple[tuple[float, ...], tuple[float, ...]]:
    data = json.loads(resources.files(__package__).joinpath("data/cnn_flops.json").read_text("utf-8"))
    return tuple(model["mflops"] for model in data["models"]), tuple(data["gpu_tflops"].values())
