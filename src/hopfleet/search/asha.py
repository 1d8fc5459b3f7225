"""ASHA: asynchronous successive halving.

Li et al., "A system for massively parallel hyperparameter tuning", 2020. A trial that pauses at a rung keeps its model,
so a promotion, however late, repeats no training.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.errors import UsageError
from hopfleet.search.base import UNLIMITED, Decision, Goal, Search, Suggestion, Train, at_least_one
from hopfleet.search.sampled import Sampled, check_rungs, rungs


class ASHA(Sampled):
    """A search that trains ``trials`` trials until ``min_epochs`` and promotes the best to more epochs.

    ``trials=None`` adds trials until a budget is spent. Rungs are at ``min_epochs`` times powers of ``eta``, the last
    one at ``max_epochs``. Whenever a trial reports at a rung, all trials among the best ``1 / eta`` of the rung that
    have not been promoted yet are promoted to the next rung. The search is done when no trial is left to start and none
    runs; the other trials stay paused with their models, and users may resume them. With few trials, no rung may have
    enough reports for a promotion to the last one: unless ``complete_best`` is False, the best trial of the highest
    rung is then trained until ``max_epochs``.

    Trials that the search did not suggest are not promoted, and do not affect the promotion of others.
    """

    adaptive = True

    def __init__(
        self,
        trials: int | None = 64,
        max_epochs: int = 9,
        eta: int = 3,
        min_epochs: int = 1,
        sampler: Search | None = None,
        concurrency: Concurrency = None,
        complete_best: bool = True,
    ) -> None:
        check_rungs(max_epochs, eta, min_epochs)
        super().__init__(max_epochs, sampler, concurrency)
        self._trials = UNLIMITED if trials is None else at_least_one("trials", trials)
        self.eta, self.min_epochs = eta, min_epochs
        self.levels = rungs(max_epochs, eta, min_epochs)
        self.complete_best = complete_best

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        #: For each rung but the last: the reports, the best first, and the trials promoted from it.
        self._reports: dict[int, list[tuple[float, int, str]]] = {level: [] for level in self.levels[:-1]}
        self._promoted: dict[int, set[str]] = {level: set() for level in self.levels[:-1]}
        #: Whether a trial of this search has trained until ``max_epochs``.
        self._completed = False
        #: Trials of this search that have not ended.
        self._alive: set[str] = set()

    @property
    def trials(self) -> int:
        return self._trials

    @property
    def compared(self) -> Sequence[int]:
        return self.levels

    def suggest(self, number: int) -> Suggestion | None:
        config = self.sample(number) if number < self._trials else None
        return None if config is None else Suggestion(config, self.levels[0])

    def added(self, trial: Trial) -> None:
        super().added(trial)
        if trial.origin == "search":
            self._alive.add(trial.id)

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        super().observe(trial, epoch, metrics)
        self._completed = self._completed or (epoch >= self.max_epochs and trial.id in self._alive)
        if epoch not in self._reports or trial.id not in self._alive:
            return ()
        reports, promoted = self._reports[epoch], self._promoted[epoch]
        bisect.insort(reports, (self.goal.cost(metrics), trial.number, trial.id))
        best = reports[: len(reports) // self.eta]
        promotions = [
            name
            for cost, _, name in best
            if name not in promoted and name in self._alive and cost < math.inf  # others diverged
        ]
        promoted.update(promotions)
        level = self.levels[self.levels.index(epoch) + 1]
        return [Train(name, level) for name in promotions]

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        super().ended(trial, state)
        self._alive.discard(trial.id)
        return ()

    def conclude(self) -> Sequence[Decision]:
        if self._completed or not self.complete_best:
            return ()
        ranked = (entry for level in reversed(self.levels[:-1]) for entry in self._reports[level])
        best = next((name for cost, _, name in ranked if name in self._alive and cost < math.inf), None)
        return () if best is None else [Train(best, self.max_epochs)]

    def planned(self, trials: int) -> Expectation:
        """Expect one in ``eta`` to be promoted, as if all trials of a rung came at once."""
        if trials >= UNLIMITED:
            return Expectation(None, "about")
        counts = [trials // self.eta**rung for rung in range(len(self.levels))]
        if self.complete_best:
            counts = [max(1, count) for count in counts]
        steps = [level - before for before, level in pairwise([0, *self.levels])]
        return Expectation(sum(count * step for count, step in zip(counts, steps, strict=True)), "about")

    @classmethod
    def check_extension(cls, *, trials: int, epochs: int, space: spaces.Space) -> None:
        if epochs:
            raise UsageError(
                f"epochs={epochs}: the rungs of ASHA are fixed; resume single trials until a later epoch instead"
            )

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        self.check_extension(trials=trials, epochs=epochs, space=space)
        if space:
            self.sampler.extend(trials=0, epochs=0, space=space)
            self.space = spaces.widened(self.space, space)
        self._trials += trials
        self._extend_sampler()

    def describe(self) -> dict[str, Any]:
        described = {**super().describe(), "eta": self.eta, "min_epochs": self.min_epochs}
        return described if self.complete_best else {**described, "complete_best": False}
