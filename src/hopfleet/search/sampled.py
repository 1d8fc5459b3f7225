"""Searches that decide how long to train, and leave the choice of configurations to a sampler.

A sampler is any search. Its configurations are used; its decisions and its numbers of trials and epochs are not. The
sampler receives every trial and every epoch, so an adaptive sampler learns from all trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import integer
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import UsageError
from hopfleet.search.base import Decision, Earlier, Goal, Search, check_concurrency
from hopfleet.search.random import Random


class Sampled(Search):
    """The base of ASHA, Hyperband, successive halving and PBT: a search with a ``sampler``."""

    def __init__(self, max_epochs: int, sampler: Search | None, concurrency: Concurrency = None) -> None:
        if sampler is not None and not isinstance(sampler, Search):
            raise UsageError(f"sampler={sampler!r}: must be a search, e.g. hop.Random()")
        self.max_epochs = max_epochs
        self.sampler = sampler or Random(trials=None)
        self.live = self.sampler.live if concurrency is None else check_concurrency(concurrency)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        self.sampler.rungs = self.compared
        self.sampler.setup(space, seed=seed, goal=goal)
        self._extend_sampler()

    @property
    def compared(self) -> Sequence[int]:
        """The epochs at which trials are compared."""
        return ()

    def _extend_sampler(self) -> None:
        """Extend a sampler with too few trials; a sampler that cannot be extended, like a grid, gets exhausted."""
        missing = self.samples - self.sampler.trials
        if missing > 0:
            try:
                self.sampler.extend(trials=missing, epochs=0, space={})
            except UsageError:
                return

    def learn(self, earlier: Sequence[Earlier]) -> int:
        return self.sampler.learn(earlier)

    def sample(self, number: int) -> Config | None:
        """Return the configuration of the suggestion with this number; None if the sampler has none for now."""
        suggestion = self.sampler.suggest(number)
        return None if suggestion is None else suggestion.config

    def added(self, trial: Trial) -> None:
        self.sampler.added(trial)

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        self.sampler.observe(trial, epoch, metrics)
        return ()

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        self.sampler.ended(trial, state)
        return ()

    def examples(self, count: int) -> list[Config]:
        return self.sampler.examples(min(count, self.samples))

    def describe(self) -> dict[str, Any]:
        sampler = self.sampler.describe()
        used = {name: value for name, value in sampler.items() if name not in ("trials", "max_epochs")}
        return {**super().describe(), "sampler": used}


def check_rungs(max_epochs: int, eta: int, min_epochs: int) -> None:
    """Raise UsageError unless these values define rungs."""
    for name, value, least in (("max_epochs", max_epochs, 1), ("eta", eta, 2), ("min_epochs", min_epochs, 1)):
        remedy = {"eta": "; 3 keeps the best third", "min_epochs": "; 1 decides after the first epoch"}
        integer(name, value, least, remedy=remedy.get(name, ""))
    if min_epochs > max_epochs:
        raise UsageError(
            f"min_epochs={min_epochs}: must be at most max_epochs={max_epochs}; raise max_epochs or lower min_epochs"
        )


def rungs(max_epochs: int, eta: int, min_epochs: int) -> list[int]:
    """Return the epochs of the rungs: ``min_epochs`` times powers of ``eta``, and ``max_epochs`` as the last."""
    levels = [min_epochs]
    while levels[-1] * eta <= max_epochs:
        levels.append(levels[-1] * eta)
    levels[-1] = max_epochs
    return levels
