"""Stopping rules: rules that stop single trials, and budgets that end the experiment. They work with any search.

A stopping rule receives the same calls as the search, and returns reasons: to stop the trial that has just reported, or
to end the experiment; it may also limit the number of trials. ``Stopping`` is a search with stopping rules, and adds
their decisions to those of the search.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import integer
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import UsageError
from hopfleet.phrases import plural, shown
from hopfleet.search.base import (
    UNLIMITED,
    Clone,
    Decision,
    Earlier,
    Goal,
    Search,
    Stop,
    Suggestion,
    at_least,
    at_least_one,
)


class StoppingRule:
    """The base of stopping rules; by default it stops nothing."""

    def __init_subclass__(cls) -> None:
        explained(cls)

    #: The largest number of trials that may start; None for no limit.
    trials: int | None = None
    #: Whether the rule may end the experiment before all trials have started.
    ends_all = False
    #: Epochs that all trials together may train; None for no limit. No epoch begins that would exceed it.
    epoch_limit: int | None = None

    def setup(self, goal: Goal) -> None:
        """Reset the state."""
        self.goal = goal

    def added(self, trial: Trial) -> None:
        """Take note of a trial that was added."""

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> str:
        """Take note of a trial's metrics; return why the trial should stop, or an empty text."""
        return ""

    def ended(self, trial: Trial) -> None:
        """Take note that a trial has ended."""

    def over(self, elapsed: float) -> str:
        """Return why the experiment should end after ``elapsed`` seconds, or an empty text."""
        return ""

    def limited(self, expected: Expectation) -> Expectation:
        """Return the expected work under this rule, by default at most as much."""
        return expected.or_less()

    def describe(self) -> dict[str, Any]:
        """Return the rule as JSON, with its name under ``"rule"``. A rule with arguments adds them."""
        return {"rule": type(self).__name__}


Rule = StoppingRule
"""The former name, still public as ``hop.Rule``."""


class Median(StoppingRule):
    """A rule that stops trials whose best result is worse than the median of the others' running averages.

    This is the rule of Golovin et al., "Google Vizier", 2017, but over all other trials that have reached the same
    epoch, not just completed ones. A trial trains for at least ``grace_epochs``, and at least ``min_trials`` others
    must have reached the epoch.
    """

    def __init__(self, grace_epochs: int = 1, min_trials: int = 3) -> None:
        self.grace_epochs = at_least(1, "grace_epochs", grace_epochs)
        self.min_trials = at_least(1, "min_trials", min_trials)

    def setup(self, goal: Goal) -> None:
        super().setup(goal)
        #: The best cost of each trial; the sum and number of its finite costs; running averages by epoch and trial.
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


class Patience(StoppingRule):
    """A rule that stops trials without an improvement of more than ``min_delta`` for ``epochs`` epochs."""

    def __init__(self, epochs: int = 3, min_delta: float = 0.0) -> None:
        self.epochs = at_least_one("epochs", epochs)
        self.min_delta = _at_least_zero("min_delta", min_delta)

    def setup(self, goal: Goal) -> None:
        super().setup(goal)
        #: The best cost of each trial, and the number of epochs without improvement.
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


class Budget(StoppingRule):
    """A rule that ends the experiment after ``seconds``, after ``epochs`` of all trials together, or at ``target``.

    ``target`` is a value of the metric. At most ``trials`` trials start, and those that have started continue as the
    search decides. ``epochs`` is exact: an epoch counts when it begins, no other begins once all are spent, and those
    under way are finished. When the seconds are spent or the target is reached, running units are finished and saved,
    and no other unit starts.
    """

    def __init__(
        self,
        seconds: float | None = None,
        epochs: int | None = None,
        trials: int | None = None,
        target: float | None = None,
    ) -> None:
        if seconds is epochs is trials is target is None:
            raise UsageError("Budget(): limits nothing; set seconds, epochs, trials or target")
        self.seconds = None if seconds is None else _at_least_zero("seconds", seconds)
        self.epochs = self.epoch_limit = None if epochs is None else integer("epochs", epochs, 1, UNLIMITED)
        self.trials = None if trials is None else at_least_one("trials", trials)
        if target is not None and (not _is_number(target) or target != target):
            raise UsageError(f"target={target!r}: must be a number: a value of the metric that is good enough")
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
            return f"the budget of {plural(self.epochs, 'epoch')} is spent"
        return self._reached

    def limited(self, expected: Expectation) -> Expectation:
        epochs, bound = expected.epochs, expected.bound
        if self.epochs is not None and (epochs is None or self.epochs < epochs):
            exact = epochs is None or bound == "exactly"
            expected = replace(expected, epochs=self.epochs, bound="exactly" if exact else "at most", capped=True)
        if self.target is None and self.seconds is None:
            return expected
        limits = [limit for limit in (self.seconds, expected.seconds) if limit is not None]
        return replace(expected.or_less(), seconds=min(limits, default=None))

    def describe(self) -> dict[str, Any]:
        limits = {name: getattr(self, name) for name in ("seconds", "epochs", "trials", "target")}
        return {"rule": "Budget", **{name: value for name, value in limits.items() if value is not None}}


class Stopping(Search):
    """A search with stopping rules. A trial is stopped at most once: only a user can resume an ended trial."""

    def __init__(self, search: Search, rules: Sequence[StoppingRule] | StoppingRule) -> None:
        if not isinstance(search, Search):
            raise UsageError(f"search={search!r}: must be a search, e.g. hop.Random(trials=16)")
        for rule in rules if isinstance(rules, Sequence) else [rules]:
            if not isinstance(rule, StoppingRule):
                hint = f"an instance, {rule.__name__}()" if isinstance(rule, type) else "a stopping rule"
                raise UsageError(f"stop={shown(rule)}: must be {hint}, e.g. hop.Median() or hop.Budget(seconds=3600)")
        self.search, self.rules = search, list(rules) if isinstance(rules, Sequence) else [rules]
        self.max_epochs, self.adaptive, self.whole = search.max_epochs, search.adaptive, search.whole
        self.listens = search.listens or bool(rules)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        self.search.setup(space, seed=seed, goal=goal)
        if self.whole and self.trials < self.search.trials:
            if self.search.trials >= UNLIMITED:
                name = type(self.search).__name__
                raise UsageError(
                    f"Budget(trials={self.trials}): {name} decides once all trials of a bracket have started; use "
                    f"{name}(trials={self.trials}), or limit the epochs or the seconds"
                )
            raise UsageError(
                f"Budget(trials={self.trials}): must be at least {self.search.trials}, since "
                f"{type(self.search).__name__} decides once all its trials have started; give it fewer trials or epochs"
            )
        for rule in self.rules:
            rule.setup(goal)
        self._begun = 0
        self._ended: set[str] = set()

    @property
    def trials(self) -> int:
        limits = [rule.trials for rule in self.rules if rule.trials is not None]
        return min([self.search.trials, *limits])

    @property
    def samples(self) -> int:
        return min(self.search.samples, self.trials)

    def suggest(self, number: int) -> Suggestion | None:
        return None if self._full else self.search.suggest(number)

    @property
    def _full(self) -> bool:
        return any(rule.trials is not None and self._begun >= rule.trials for rule in self.rules)

    def _affordable(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Return the decisions without those that would start a trial too many."""
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

    def conclude(self) -> Sequence[Decision]:
        return self._affordable(self.search.conclude())

    @property
    def epoch_limit(self) -> int | None:  # type: ignore[override]
        limits = [self.search.epoch_limit, *(rule.epoch_limit for rule in self.rules)]
        return min((limit for limit in limits if limit is not None), default=None)

    def expected(self, points: int = 0) -> Expectation:
        expected = self.search.planned(min(self.search.trials, self.trials)).plus(points * self.max_epochs)
        for rule in self.rules:
            expected = rule.limited(expected)
        return expected

    def onward(self, trial: Trial) -> int:
        return self.search.onward(trial)

    def over(self, elapsed: float) -> str:
        reasons = (self.search.over(elapsed), *(rule.over(elapsed) for rule in self.rules))
        return next(filter(None, reasons), "")

    @property
    def streams(self) -> bool:
        return self.search.streams or any(rule.ends_all for rule in self.rules)

    def concurrency(self, workers: int) -> int:
        most = self.search.concurrency(workers)
        # A few trials that end are worth more than many that have only started.
        return min(most, 2 * workers) if self.streams and self.search.live is None else most

    def examples(self, count: int) -> list[Config]:
        return self.search.examples(min(count, self.trials))

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        self.search.extend(trials=trials, epochs=epochs, space=space)
        self.max_epochs = self.search.max_epochs

    def describe(self) -> dict[str, Any]:
        return {**self.search.describe(), "stop": [rule.describe() for rule in self.rules]}


STOPPING_RULES: Mapping[str, Callable[[], StoppingRule]] = {"median": Median, "patience": Patience}
"""Stopping rules by name, for ``Experiment(stop="median")``. Each name maps to a rule with its defaults."""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _at_least_zero(name: str, value: Any) -> float:
    if not _is_number(value) or not 0 <= value < math.inf:
        raise UsageError(f"{name}={value!r}: must be a number of at least 0")
    return float(value)
