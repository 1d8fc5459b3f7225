"""Synthetic learning curves to search among, with the difficulties of real ones.

A model's state is how far it has learned, from 0 to 1. An epoch brings it nearer to 1, by a rate that depends on how
well the learning rate fits the state: large rates are good at first, small ones later, far too large ones never. The
final quality of a model depends on its width and its dropout; wide models take longer. So curves cross, cheap
configurations look good early, and a schedule found on the way beats every constant learning rate. Measurements have
additional noise.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import hopfleet as hop
from hopfleet.domain.trial import Config

SPACE: dict[str, Any] = {
    "lr": hop.loguniform(1e-4, 1.0),
    "momentum": hop.uniform(0.0, 0.99),
    "width": hop.lograndint(16, 1025),
    "dropout": hop.uniform(0.0, 0.7),
}
NOISE = 0.004


def ceiling(config: Config) -> float:
    """Return the accuracy of a fully trained model."""
    wide = math.log2(config["width"]) - 8.5
    return float(0.97 - 0.012 * wide * wide - 0.25 * (config["dropout"] - 0.2) ** 2)


def rate(config: Config, state: float) -> float:
    """Return the share of the remaining progress that an epoch makes."""
    pace = math.log10(config["lr"] / (1.001 - config["momentum"]))
    if pace > 0.7 - state:
        return 0.0
    return 0.45 * math.exp(-((pace + 0.3 + 1.6 * state) ** 2) / (2 * 0.7**2))


def epoch_seconds(config: Config) -> float:
    """Return the seconds of an epoch on one worker."""
    return float(60.0 * (0.4 + config["width"] / 256))


@dataclass
class Landscape:
    """The progress of trials so far. A clone continues from its parent's state."""

    seed: int
    _states: dict[tuple[str, int], float] = field(default_factory=dict)

    def start(self, trial: str, parent: str = "", epoch: int = 0) -> None:
        self._states[trial, epoch] = self._states[parent, epoch] if epoch else 0.0

    def accuracy(self, trial: str, config: Config, epoch: int) -> float:
        state = self._state(trial, config, epoch)
        noise = random.Random(f"{self.seed} {trial} {epoch}").gauss(0.0, NOISE)
        return 0.1 + (ceiling(config) - 0.1) * state + noise

    def _state(self, trial: str, config: Config, epoch: int) -> float:
        if (trial, epoch) not in self._states:
            before = self._state(trial, config, epoch - 1)
            self._states[trial, epoch] = before + (1 - before) * rate(config, before)
        return self._states[trial, epoch]
