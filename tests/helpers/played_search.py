"""A whole search without a controller, on made-up learning curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hopfleet as hop
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.search.base import Decision, Goal, Search

LOSS = Goal("loss", "min")
SPACE = {"x": hop.uniform(0, 1), "y": hop.loguniform(1e-3, 1)}

Cost = Callable[[Config, int], float]


def bowl(config: Config, epoch: int) -> float:
    """Fall to a level that is best at x = 0.3."""
    return abs(config["x"] - 0.3) + math.exp(-epoch)


class Played:
    """A whole search without a controller: ``width`` trials take turns, an epoch each."""

    def __init__(self, search: Search, cost: Cost, space: Any = None, width: int = 2, goal: Goal = LOSS) -> None:
        self.search, self.cost, self.width = search, cost, width
        search.setup(space or SPACE, seed=1, goal=goal)
        self.trials: dict[str, Trial] = {}
        self.epochs: Counter[str] = Counter()
        self.running: list[str] = []
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.decisions: list[Decision] = []

    def call(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, arguments))
        for decision in getattr(self.search, method)(*arguments) or ():
            self.execute(decision)

    def execute(self, decision: Decision) -> None:
        assert isinstance(decision, hop.Train)
        assert decision.trial not in self.running, "chose a trial that runs"
        assert self.trials[decision.trial].epochs < decision.epochs <= self.search.max_epochs
        self.decisions.append(decision)
        self.trials[decision.trial] = replace(self.trials[decision.trial], epochs=decision.epochs)
        self.running.append(decision.trial)

    def add(self, config: Config, epochs: int, origin: str = "search") -> str:
        number = len(self.trials)
        trial = Trial(f"t{number}", number, config, 0, epochs, origin=origin)
        self.trials[trial.id] = trial
        self.running.append(trial.id)
        self.call("added", trial)
        return trial.id

    def started(self) -> int:
        return sum(trial.origin == "search" for trial in self.trials.values())

    def advance(self) -> bool:
        while len(self.running) < self.width:
            suggestion = self.search.suggest(self.started())
            if suggestion is None:
                break
            self.add(suggestion.config, suggestion.epochs)
        if not self.running:
            for decision in self.search.conclude():
                self.execute(decision)
        if not self.running:
            return False
        self.report(self.running[0])
        return True

    def report(self, name: str) -> None:
        self.running.remove(name)
        self.epochs[name] += 1
        trial, epoch = self.trials[name], self.epochs[name]
        if epoch < trial.epochs:
            self.running.append(name)
        self.call("observe", trial, epoch, {"loss": self.cost(trial.config, epoch)})
        if name not in self.running and epoch >= self.search.max_epochs:
            self.call("ended", self.trials[name], TrialState.COMPLETED)

    def go(self, reports: int = 10_000) -> Played:
        for _ in range(reports):
            if not self.advance():
                return self
        assert reports < 10_000, "the search does not end"
        return self

    def configs(self) -> list[Config]:
        return [trial.config for trial in self.trials.values()]

    def longest(self) -> set[str]:
        return {name for name, epochs in self.epochs.items() if epochs == self.search.max_epochs}
