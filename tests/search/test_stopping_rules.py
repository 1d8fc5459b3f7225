"""Stopping rules beside a search."""

from __future__ import annotations

import math

import pytest

import hopfleet as hop
from hopfleet.errors import UsageError
from hopfleet.search.base import Goal
from tests.helpers.search_talk import NAN, Talk, stopped


def ruled(*rules, trials=8, epochs=9):
    return Talk(hop.Stopping(hop.Random(trials=trials, max_epochs=epochs), rules))


def test_median():
    talk = ruled(hop.Median(grace_epochs=2, min_trials=2)).add(4)
    for name, losses in {"t0": (1.0, 0.8), "t1": (2.0, 1.0)}.items():
        assert [talk.says(name, epoch, loss) for epoch, loss in enumerate(losses, 1)] == [[], []]
    # The running averages are 0.9 and 1.5, their median is 1.2.
    assert talk.says("t2", 1, 5.0) == talk.says("t2", 2, 1.2) == []
    assert talk.says("t3", 1, 5.0) == []
    (stop,) = talk.says("t3", 2, 1.6)  # 0.9, 1.5, 3.1
    assert stop == hop.Stop("t3", "its best is worse than the median of 3 others after epoch 2")


def test_the_best_so_far_counts_for_the_median():
    talk = ruled(hop.Median(min_trials=1)).add(2)
    assert talk.says("t0", 1, 0.5) == talk.says("t0", 2, 0.5) == []
    assert talk.says("t1", 1, 0.4) == talk.says("t1", 2, 9.0) == []


def test_the_median_and_what_is_not_a_number():
    talk = ruled(hop.Median(min_trials=1)).add(3)
    assert talk.says("t0", 1, NAN) == talk.says("t1", 1, -math.inf) == talk.says("t2", 1, None) == []
    assert talk.says("t1", 2, 0.5) == talk.says("t1", 3, NAN) == []
    assert stopped(talk.says("t0", 2, NAN)) == {"t0"}


def test_patience():
    talk = ruled(hop.Patience(epochs=2, min_delta=0.1)).add(2)
    assert talk.says("t0", 1, 1.0) == talk.says("t0", 2, 0.95) == talk.says("t0", 3, 0.8) == []
    assert talk.says("t0", 4, NAN) == []
    assert talk.says("t0", 5, 0.75) == [hop.Stop("t0", "no better for 2 epochs")]
    assert talk.says("t1", 1, NAN) == []
    assert stopped(talk.says("t1", 2, NAN)) == {"t1"}


def test_no_rule_stops_at_the_end_or_whom_a_person_resumed():
    talk = ruled(hop.Patience(epochs=1), epochs=3).add(2)
    assert talk.says("t0", 1, 1.0) == []
    assert stopped(talk.says("t0", 2, 1.0)) == {"t0"}
    assert talk.says("t0", 3, 1.0) == []
    assert talk.says("t1", 1, 1.0) == talk.ends("t1") == talk.says("t1", 2, 1.0) == talk.says("t1", 3, 1.0) == []


def test_budgets():
    talk = ruled(hop.Budget(seconds=5), hop.Budget(epochs=2), hop.Budget(target=0.5)).add(2)
    assert talk.search.over(4.9) == ""
    assert talk.search.over(5.0) == "the budget of 5 seconds is spent"
    assert talk.says("t0", 1, NAN) == []
    assert talk.search.over(0.0) == ""
    assert talk.says("t0", 2, 0.4) == []
    assert talk.search.over(0.0) == "the budget of 2 epochs is spent"
    talk = ruled(hop.Budget(target=0.5)).add(2)
    assert talk.says("t0", 1, 0.51) == talk.says("t0", 2, 0.5) == talk.says("t1", 1, 0.1) == []
    assert talk.search.over(0.0) == "t0 reached loss=0.5"
    talk = Talk(hop.Stopping(hop.Random(), [hop.Budget(target=0.9)]), goal=Goal("loss", "max")).add(1)
    assert talk.says("t0", 1, 0.8) == []
    assert talk.search.over(0.0) == ""
    assert talk.says("t0", 2, 0.95) == []
    assert talk.search.over(0.0) == "t0 reached loss=0.95"


def test_a_budget_of_trials():
    talk = ruled(hop.Budget(trials=3), trials=8).add(2)
    assert talk.search.trials == 3
    assert len(talk.search.examples(9)) == 3
    talk.add(origin="person")
    assert talk.search.suggest(2) is None
    assert talk.search.over(1e9) == ""
    talk = Talk(hop.Stopping(hop.PBT(population=2, max_epochs=3), [hop.Budget(trials=2)])).add(2)
    assert talk.says("t0", 1, 0.1) == talk.says("t1", 1, 0.2) == []
    with pytest.raises(UsageError, match=r"Budget\(trials=5\): must be at least 143, since Hyperband decides once all"):
        Talk(hop.Stopping(hop.Hyperband(), [hop.Budget(trials=5)]))
    Talk(hop.Stopping(hop.Hyperband(), [hop.Budget(trials=143)]))


class Ending(hop.Random):
    def over(self, elapsed):
        return "its own reasons"

    def ended(self, trial, state):
        return [hop.Stop("t9", "in its wake")]


def test_the_search_below_has_its_say():
    talk = Talk(hop.Stopping(Ending(max_epochs=4), [hop.Patience()])).add(1)
    assert talk.search.over(0.0) == "its own reasons"
    assert talk.ends("t0") == [hop.Stop("t9", "in its wake")]
    talk.search.extend(trials=2, epochs=3, space={})
    assert (talk.search.trials, talk.search.max_epochs) == (18, 7)


def test_a_rule_of_ones_own():
    class Never(hop.StoppingRule):
        pass

    talk = ruled(Never()).add(1)
    assert talk.says("t0", 1, 0.1) == talk.ends("t0") == []
    assert talk.search.over(1e9) == ""
    assert talk.search.describe()["stop"] == [{"rule": "Never"}]
    assert hop.Rule is hop.StoppingRule
