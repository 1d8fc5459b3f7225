"""Rules that stop single trials, and budgets that end everything. They go with any search.

A rule hears what the search hears. It gives reasons: to stop the trial that has just reported, to begin no more trials,
to end the whole experiment. ``Stopping`` is a search with rules, and adds their decisions to those of the search.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import UsageError
from hopfleet.search.base import Clone, Decision, Earlier, Goal, Search, Stop, Suggestion, at_least, at_least_one


class Rule:
    """What rules have in common: nothing is stopped unless one says so."""

    #: No more trials than that begin; None for any number.
    trials: int | None = None
    #: Whether it may end everything before all trials have had their turn.
    ends_all = False

    def setup(self, goal: Goal) -> None:
        """Start afresh."""
        self.goal = goal

    def added(self, trial: Trial) -> None:
        """Hear of a trial that was added."""

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> str:
        """Hear the metrics of a trial; say why it should stop, or nothing."""
        return ""

    def ended(self, trial: Trial) -> None:
        """Hear that a trial has ended."""

    def over(self, elapsed: float) -> str:
        """Say why the whole experiment should end after so many seconds, or nothing."""
        return ""

    def describe(self) -> dict[str, Any]:
        """The rule as JSON."""
        raise NotImplementedError


class Median(Rule):
    """Stop a trial whose best so far is worse than the median of the others' running averages up to the same epoch.

    This is the rule of Golovin et al., "Google Vizier", 2017, over all others that have come that far, not just those
    that completed. A trial trains for ``grace_epochs`` at least; ``min_trials`` others must have come that far.
    """

    def __init__(self, grace_epochs: int = 1, min_trials: int = 3) -> None:
        self.grace_epochs = at_least(1, "grace_epochs", grace_epochs)
        self.min_trials = at_least(1, "min_trials", min_trials)

    def setup(self, goal: Goal) -> None:
        super().setup(goal)
        #: The best cost of each trial; the sum and the number of its finite ones; averages by epoch and trial.
        self._best: dict[str, float] = {}
        self._sums: dict[str, tuple[float, int]] = {}
        self._averages: dict[int, dict[str, float]] = {}

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> str:
        cost = self.goal.cost(metrics)
        best = self._best[trial.id] = min(cost, self._best.get(trial.id, math.inf))
        total, count = self._sums.get(trial.id, (0.0, 0))
        if math.isfinite(cost):
            total, count = total + cost, count + 1
        self._sums[trial.id] = total, count
        others = list(self._averages.setdefault(epoch, {}).values())
        self._averages[epoch][trial.id] = total / count if count else math.inf
        if epoch < self.grace_epochs or len(others) < self.min_trials:
            return ""
        median = statistics.median(others)
        return f"its best is worse than the median of {len(others)} others after epoch {epoch}" if best > median else ""

    def describe(self) -> dict[str, Any]:
        return {"rule": "Median", "grace_epochs": self.grace_epochs, "min_trials": self.min_trials}


class Patience(Rule):
    """Stop a trial that has not become better by more than ``min_delta`` for ``epochs`` epochs."""

    def __init__(self, epochs: int = 3, min_delta: float = 0.0) -> None:
        self.epochs = at_least_one("epochs", epochs)
        self.min_delta = _at_least_zero("min_delta", min_delta)

    def setup(self, goal: Goal) -> None:
        super().setup(goal)
        #: For each trial the cost to be beaten, and for how many epochs it was not.
        self._waiting: dict[str, tuple[float, int]] = {}

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> str:
        cost = self.goal.cost(metrics)
        best, waited = self._waiting.get(trial.id, (math.inf, 0))
        better = cost < best - self.min_delta
        self._waiting[trial.id] = (cost, 0) if better else (best, waited + 1)
        return "" if better or waited + 1 < self.epochs else f"no better for {waited + 1} epochs"

    def ended(self, trial: Trial) -> None:
        self._waiting.pop(trial.id, None)

    def describe(self) -> dict[str, Any]:
        return {"rule": "Patience", "epochs": self.epochs, "min_delta": self.min_delta}


class Budget(Rule):
    """End everything after ``seconds`` of running or ``epochs`` trained by all trials together, or when the metric
    reaches ``target``. Of ``trials``, no more begin, and those that began go on as the search wants.

    What runs when the budget is spent is finished and saved; nothing else starts.
    """

    def __init__(
        self,
        seconds: float | None = None,
        epochs: int | None = None,
        trials: int | None = None,
        target: float | None = None,
    ) -> None:
        if seconds is epochs is trials is target is None:
            raise UsageError("Budget(): limits nothing; give seconds, epochs, trials or target")
        self.seconds = None if seconds is None else _at_least_zero("seconds", seconds)
        self.epochs = None if epochs is None else at_least_one("epochs", epochs)
        self.trials = None if trials is None else at_least_one("trials", trials)
        if target is not None and (not _is_number(target) or target != target):
            raise UsageError(f"target={target!r}: must be a number; give the value of the metric that is good enough")
        self.target = target
        self.ends_all = (seconds, epochs, target) != (None, None, None)

    def setup(self, goal: Goal) -> None:
        super().setup(goal)
        self._trained = 0
        self._reached = ""

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> str:
        self._trained += 1
        cost, target = self.goal.cost(metrics), self.target
        if target is not None and cost <= self.goal.cost({self.goal.metric: target}) and not self._reached:
            self._reached = f"{trial.id} reached {self.goal.metric}={metrics[self.goal.metric]:.6g}"
        return ""

    def over(self, elapsed: float) -> str:
        if self.seconds is not None and elapsed >= self.seconds:
            return f"the budget of {self.seconds:g} seconds is spent"
        if self.epochs is not None and self._trained >= self.epochs:
            return f"the budget of {self.epochs} epochs is spent"
        return self._reached

    def describe(self) -> dict[str, Any]:
        limits = {name: getattr(self, name) for name in ("seconds", "epochs", "trials", "target")}
        return {"rule": "Budget", **{name: value for name, value in limits.items() if value is not None}}


class Stopping(Search):
    """A search with rules. Nobody is stopped twice: who goes on after an end does so because a person wants it."""

    def __init__(self, search: Search, rules: Sequence[Rule]) -> None:
        for rule in rules:
            if not isinstance(rule, Rule):
                raise UsageError(f"stop={rule!r}: must be a rule; give e.g. hop.Median() or hop.Budget(seconds=3600)")
        self.search, self.rules = search, list(rules)
        self.max_epochs, self.adaptive, self.whole = search.max_epochs, search.adaptive, search.whole

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        self.search.setup(space, seed=seed, goal=goal)
        if self.whole and self.trials < self.search.trials:
            raise UsageError(
                f"Budget(trials={self.trials}): must be at least {self.search.trials}, since "
                f"{type(self.search).__name__} decides when all its trials have begun; give it fewer trials or epochs"
            )
        for rule in self.rules:
            rule.setup(goal)
        self._begun = 0
        self._ended: set[str] = set()

    @property
    def trials(self) -> int:
        limits = [rule.trials for rule in self.rules if rule.trials is not None]
        return min([self.search.trials, *limits])

    def suggest(self, number: int) -> Suggestion | None:
        return None if self._full else self.search.suggest(number)

    @property
    def _full(self) -> bool:
        return any(rule.trials is not None and self._begun >= rule.trials for rule in self.rules)

    def _affordable(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Decisions without those that would begin a trial too many."""
        return [decision for decision in decisions if not (self._full and isinstance(decision, Clone))]

    def learn(self, earlier: Sequence[Earlier]) -> int:
        return self.search.learn(earlier)

    def added(self, trial: Trial) -> None:
        self._begun += 1
        self.search.added(trial)
        for rule in self.rules:
            rule.added(trial)

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        decisions = self._affordable(self.search.observe(trial, epoch, metrics))
        reasons = [reason for rule in self.rules if (reason := rule.observe(trial, epoch, metrics))]
        if not reasons or epoch >= self.max_epochs or trial.id in self._ended:
            return decisions
        return [*decisions, Stop(trial.id, reasons[0])]

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        self._ended.add(trial.id)
        for rule in self.rules:
            rule.ended(trial)
        return self._affordable(self.search.ended(trial, state))

    def over(self, elapsed: float) -> str:
        reasons = (self.search.over(elapsed), *(rule.over(elapsed) for rule in self.rules))
        return next(filter(None, reasons), "")

    @property
    def streams(self) -> bool:
        return self.search.streams or any(rule.ends_all for rule in self.rules)

    def concurrency(self, workers: int) -> int:
        most = self.search.concurrency(workers)
        # Few trials that end are worth more than many that were begun.
        return min(most, 2 * workers) if self.streams and self.search.live is None else most

    def examples(self, count: int) -> list[Config]:
        return self.search.examples(min(count, self.trials))

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        self.search.extend(trials=trials, epochs=epochs, space=space)
        self.max_epochs = self.search.max_epochs

    def describe(self) -> dict[str, Any]:
        return {**self.search.describe(), "stop": [rule.describe() for rule in self.rules]}


RULES: Mapping[str, Callable[[], Rule]] = {"median": Median, "patience": Patience}
"""Rules by name, for ``Experiment(stop="median")``. Each name stands for a rule with its defaults."""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _at_least_zero(name: str, value: Any) -> float:
    if not _is_number(value) or not 0 <= value < math.inf:
        raise UsageError(f"{name}={value!r}: must be a number of at least 0")
    return float(value)
