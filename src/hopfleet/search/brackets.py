"""Brackets: many trials train for a few epochs, the best of them longer, and the best of those longer still.

Trials pause at the end of a rung until all trials of the rung have reported or ended; trials of other brackets do not
wait. Promoted trials continue from where they paused; the others are stopped, and their models are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.search.base import UNLIMITED, Decision, Goal, Search, Stop, Suggestion, Train
from hopfleet.search.sampled import Sampled


class Bracket:
    """A group of ``size`` trials that train until the first of ``levels``; one in ``eta`` is promoted to the next."""

    def __init__(self, size: int, levels: Sequence[int], eta: int) -> None:
        self.size, self.levels, self.eta = size, levels, eta
        self.begun = 0
        self.rung = 0
        #: The trials of this rung, in the order in which they started.
        self.members: list[str] = []
        self._costs: dict[tuple[str, int], float] = {}
        self._newest: dict[str, int] = {}
        self._ended: set[str] = set()

    def add(self, trial: str) -> None:
        """Add a trial that starts."""
        self.begun += 1
        self.members.append(trial)

    def report(self, trial: str, epoch: int, cost: float) -> None:
        """Record the cost of a trial after an epoch."""
        self._costs[trial, epoch] = cost
        self._newest[trial] = epoch

    def end(self, trial: str) -> None:
        """Remove a trial from the competition, even if a user resumes it later."""
        self._ended.add(trial)

    @property
    def open(self) -> bool:
        """Whether the bracket takes more trials."""
        return self.rung == 0 and self.begun < self.size

    @property
    def waits(self) -> bool:
        """Whether a trial of this rung has yet to report, or the last rung is reached."""
        level = self.levels[self.rung]
        reported = all(trial in self._ended or (trial, level) in self._costs for trial in self.members)
        return not self.members or not reported or level == self.levels[-1]

    def decide(self) -> list[Decision]:
        """Promote and stop trials if the rung is complete."""
        decisions: list[Decision] = []
        while not self.waits:  # users may have trained trials of the next rung already
            decisions += self._next_rung()
        return decisions

    def _next_rung(self) -> list[Decision]:
        level = self.levels[self.rung]
        alive = [trial for trial in self.members if trial not in self._ended]
        # A trial that diverged is not worth more epochs, even if all others have ended.
        ranked = sorted((t for t in alive if self._costs[t, level] < math.inf), key=lambda t: self._costs[t, level])
        self.rung += 1
        self.members = ranked[: max(1, self.begun // self.eta**self.rung)]
        reason = f"not among the best {len(self.members)} after epoch {level}"
        return [
            *(Train(trial, self.levels[self.rung]) for trial in self.members),
            # Trials beyond this level were resumed by a user, and are not stopped.
            *(Stop(t, reason) for t in alive if t not in self.members and self._newest[t] == level),
        ]


class Bracketed(Sampled):
    """A search with one or several brackets, which start in order and run side by side.

    The table of brackets is repeated until ``most`` trials have started.
    """

    whole = True

    def __init__(
        self,
        max_epochs: int,
        eta: int,
        table: Sequence[tuple[int, Sequence[int]]],
        sampler: Search | None,
        concurrency: Concurrency,
    ) -> None:
        super().__init__(max_epochs, sampler, concurrency)
        self.eta = eta
        self.adaptive = self.sampler.adaptive
        #: The size and the rungs of each bracket.
        self.table = table
        self.most = sum(size for size, _ in table)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        self._brackets: list[Bracket] = []
        self._begun = 0
        self._bracket_of: dict[str, Bracket] = {}

    @property
    def trials(self) -> int:
        return self.most

    @property
    def compared(self) -> Sequence[int]:
        return sorted({level for _, levels in self.table for level in levels})

    def suggest(self, number: int) -> Suggestion | None:
        bracket = self._filling()
        config = None if bracket is None else self.sample(number)
        return None if bracket is None or config is None else Suggestion(config, bracket.levels[0])

    def _filling(self) -> Bracket | None:
        """Return the bracket that takes the next trial; None if all trials have begun."""
        if self._brackets and self._brackets[-1].open:
            return self._brackets[-1]
        if self._begun >= self.most:
            return None
        size, levels = self.table[len(self._brackets) % len(self.table)]
        self._brackets.append(Bracket(min(size, self.most - self._begun), levels, self.eta))
        return self._brackets[-1]

    def added(self, trial: Trial) -> None:
        super().added(trial)
        bracket = self._filling() if trial.origin == "search" else None
        if bracket is not None:
            self._bracket_of[trial.id] = bracket
            bracket.add(trial.id)
            self._begun += 1

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        super().observe(trial, epoch, metrics)
        bracket = self._bracket_of.get(trial.id)
        if bracket is None:
            return ()
        bracket.report(trial.id, epoch, self.goal.cost(metrics))
        return self._decide(bracket)

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        super().ended(trial, state)
        bracket = self._bracket_of.get(trial.id)
        if bracket is None:
            return ()
        bracket.end(trial.id)
        return self._decide(bracket)

    def _decide(self, bracket: Bracket) -> Sequence[Decision]:
        if bracket.waits:
            return ()
        # An exhausted sampler cannot fill the bracket.
        return () if bracket.open and self.sample(self._begun) is not None else bracket.decide()

    def onward(self, trial: Trial) -> int:
        # Some trial of the bracket will be trained until the last rung, once all of this rung have reported.
        return max(0, self.max_epochs - trial.epochs) if trial.id in self._bracket_of else 0

    def planned(self, trials: int) -> Expectation:
        if trials >= UNLIMITED:
            return Expectation(None, "about")
        epochs = 0
        brackets = cycle(self.table)
        while trials > 0:
            size, levels = next(brackets)
            begun = min(size, trials)
            trials -= begun
            for rung, (before, level) in enumerate(pairwise([0, *levels])):
                epochs += max(1, begun // self.eta**rung) * (level - before)
        return Expectation(epochs)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "eta": self.eta}
