"""Every stopping rule passes the suite that third parties pass, and the suite notices rules that do wrong."""

from __future__ import annotations

import math

import pytest

import hopfleet as hop
from hopfleet.testing.stopping_rules import StoppingRuleSuite


class TestMedian(StoppingRuleSuite):
    def make(self):
        return hop.Median(grace_epochs=2, min_trials=2)


class TestPatience(StoppingRuleSuite):
    def make(self):
        return hop.Patience(epochs=2)


class TestBudget(StoppingRuleSuite):
    def make(self):
        return hop.Budget(seconds=40.0, epochs=18, target=0.2)


class Mine(hop.StoppingRule):
    def describe(self):
        return {"rule": "Mine"}


def suite(rule, **methods):
    class Suite(StoppingRuleSuite):
        experiments = 8

        def make(self):
            return type("Other", (rule,), methods)()

    return Suite()


class Forgetful(Mine):
    """Starts where it ended."""

    count = 0

    def observe(self, trial, epoch, metrics):
        self.count += 1
        return "enough" if self.count > 9 else ""


@pytest.mark.parametrize(
    ("rule", "methods", "test", "words"),
    [
        (Mine, {"observe": lambda *_: None}, "test_answers_are_text", "observe.. returns None"),
        (Mine, {"over": lambda *_: True}, "test_answers_are_text", "over.. returns True"),
        (Mine, {"trials": 0}, "test_a_limit_of_trials_is_a_number_or_none", "trials=0"),
        (Mine, {"describe": lambda _: {}}, "test_the_description_is_json_and_the_same_each_time", "name of the rule"),
        (
            Mine,
            {"describe": lambda _: {"rule": math.nan}},
            "test_the_description_is_json_and_the_same_each_time",
            "differs",
        ),
        (Forgetful, {}, "test_setup_starts_afresh", "another setup"),
    ],
)
def test_the_suite_notices_a_rule_with(rule, methods, test, words):
    with pytest.raises(AssertionError, match=words):
        getattr(suite(rule, **methods), test)()


def test_make_must_be_overridden():
    with pytest.raises(AssertionError, match="override make"):
        StoppingRuleSuite().make()
