"""Successive halving: all trials train for a few epochs, and at each rung the best are promoted.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016.
"""

from __future__ import annotations

from typing import Any

from hopfleet.domain.choices import Concurrency
from hopfleet.search.base import Search, at_least_one
from hopfleet.search.brackets import Bracketed
from hopfleet.search.sampled import check_rungs, rungs


class SuccessiveHalving(Bracketed):
    """A search that trains ``trials`` trials until ``min_epochs`` and promotes one in ``eta`` at each rung.

    Each rung has ``eta`` times as many epochs as the one before. The last rung ends at ``max_epochs``, and at least one
    trial gets there unless all fail. A rung is decided when all its trials have reported or ended.
    """

    def __init__(
        self,
        trials: int = 27,
        max_epochs: int = 9,
        eta: int = 3,
        min_epochs: int = 1,
        sampler: Search | None = None,
        concurrency: Concurrency = None,
    ) -> None:
        check_rungs(max_epochs, eta, min_epochs)
        table = [(at_least_one("trials", trials), rungs(max_epochs, eta, min_epochs))]
        super().__init__(max_epochs, eta, table, sampler, concurrency)
        self.min_epochs = min_epochs

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "min_epochs": self.min_epochs}
