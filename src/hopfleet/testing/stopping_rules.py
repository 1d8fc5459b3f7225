"""What every stopping rule must do. Derive ``StoppingRuleSuite`` in a test file and override ``make``:

    class TestMyRule(StoppingRuleSuite):
        def make(self):
            return MyRule(epochs=3)

The suite puts the rule around several searches and runs them through all experiments of ``SearchSuite``: curves that
cross, tie or end in NaN, trials that fail, workers that are lost, requests and restarts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from hopfleet.extend import Goal, Search, StoppingRule, Trial
from hopfleet.search.asha import ASHA
from hopfleet.search.random import Random
from hopfleet.search.stopping import Stopping
from hopfleet.testing.searches import SearchSuite
from hopfleet.testing.virtual import Run, VirtualExperiment

EXPERIMENTS = 20
"""Experiments for each test and each search."""

SEARCHES: tuple[Callable[[], Search], ...] = (
    lambda: Random(trials=8, max_epochs=5),
    lambda: ASHA(trials=9, max_epochs=9),
)

VALUES = (1.0, 0.5, 0.5, math.nan, math.inf, -math.inf, 0.0, 2.0)
"""A learning curve with all that can happen to one."""


class StoppingRuleSuite:
    """The tests."""

    experiments = EXPERIMENTS

    def make(self) -> StoppingRule:
        raise AssertionError("override make()")

    def test_experiments_with_the_rule_end_within_their_bounds(self) -> None:
        for suite in self._suites():
            for seed in range(self.experiments):
                suite.run(VirtualExperiment.made(seed, troubles=seed % 7))

    def test_the_same_seed_gives_the_same_experiment(self) -> None:
        for suite in self._suites():
            for seed in range(self.experiments // 4):
                setting = VirtualExperiment.made(seed, troubles=4)
                assert suite.run(setting).journal() == suite.run(setting).journal(), f"another one with seed {seed}"

    def test_setup_starts_afresh(self) -> None:
        for suite in self._suites():
            search, setting = suite.make(), VirtualExperiment.made(1, troubles=0)
            first = Run(suite, setting, search).go().journal()
            assert Run(suite, setting, search).go().journal() == first, "another experiment after another setup()"

    def test_answers_are_text(self) -> None:
        rule = self.make()
        for mode in ("min", "max"):
            rule.setup(Goal("loss", mode))
            trials = [Trial(f"t{number:04d}", number, {}, 0, len(VALUES)) for number in range(4)]
            for trial in trials:
                rule.added(trial)
            for epoch, value in enumerate(VALUES, 1):
                for trial in trials:
                    reason = rule.observe(trial, epoch, {"loss": value, "other": 1.0})
                    assert isinstance(reason, str), f"observe() returns {reason!r}: must be a reason, or ''"
                over = rule.over(float(epoch))
                assert isinstance(over, str), f"over() returns {over!r}: must be a reason, or ''"
            for trial in trials:
                rule.ended(trial)

    def test_a_limit_of_trials_is_a_number_or_none(self) -> None:
        limit = self.make().trials
        assert limit is None or (isinstance(limit, int) and limit >= 1), (
            f"trials={limit!r}: must be at least 1, or None"
        )

    def test_the_description_is_json_and_the_same_each_time(self) -> None:
        first, second = self.make().describe(), self.make().describe()
        assert json.loads(json.dumps(first)) == second, f"{first}: differs from {second}"
        assert first.get("rule"), f"{first}: give the name of the rule under the key 'rule'"

    def _suites(self) -> list[SearchSuite]:
        return [_Ruled(self.make, search) for search in SEARCHES]


class _Ruled(SearchSuite):
    """Experiments with one search and the rule under test."""

    def __init__(self, rule: Callable[[], StoppingRule], search: Callable[[], Search]) -> None:
        self._rule, self._search = rule, search

    def make(self) -> Search:
        return Stopping(self._search(), [self._rule()])
