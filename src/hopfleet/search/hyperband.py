"""Hyperband: successive halving with several trade-offs between many trials and long training.

Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization", 2018.
"""

from __future__ import annotations

from typing import Any, Literal

from hopfleet.domain.choices import Concurrency
from hopfleet.errors import UsageError
from hopfleet.search.base import UNLIMITED, Search, at_least_one
from hopfleet.search.brackets import Bracketed
from hopfleet.search.sampled import check_rungs


class Hyperband(Bracketed):
    """A search with the brackets of the paper, from the one with the most trials to the one with the longest training.

    Let S be the largest s for which eta**s <= max_epochs. The brackets s = S, ..., 0 start with
    ceil((S + 1) / (s + 1) * eta**s) trials of max_epochs / eta**s epochs.

    By default each bracket runs once. ``trials=None`` repeats the brackets until a budget is spent, and a number
    repeats them until that many trials have started; the last bracket is then smaller if need be.
    """

    def __init__(
        self,
        max_epochs: int = 81,
        eta: int = 3,
        sampler: Search | None = None,
        concurrency: Concurrency = None,
        trials: int | Literal["once"] | None = "once",
    ) -> None:
        check_rungs(max_epochs, eta, 1)
        most = 0
        while eta ** (most + 1) <= max_epochs:
            most += 1
        table = [
            (-(-(most + 1) * eta**s // (s + 1)), [max_epochs // eta ** (s - rung) for rung in range(s + 1)])
            for s in range(most, -1, -1)
        ]
        super().__init__(max_epochs, eta, table, sampler, concurrency)
        if isinstance(trials, str) and trials != "once":
            raise UsageError(
                f"trials={trials!r}: must be 'once' (each bracket runs once), a number of trials, or None (brackets "
                "are repeated until a budget is spent)"
            )
        self._repeats = trials != "once"
        if self._repeats:
            self.most = UNLIMITED if trials is None else at_least_one("trials", trials)

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        return {**described, "repeats": True} if self._repeats else described
