"""Successive halving, Hyperband, ASHA, PBT and rules, decision by decision."""

from __future__ import annotations

import json
import math

import pytest

import hopfleet as hop
from hopfleet.domain.trial import TrialState
from hopfleet.errors import UsageError
from hopfleet.search.base import UNLIMITED, Goal
from hopfleet.search.sampled import rungs
from tests.helpers.search_talk import NAN, Talk, stopped


def trained(decisions):
    return {d.trial: d.epochs for d in decisions if isinstance(d, hop.Train)}


# --------------------------------------------------------------------------------------------- rungs and brackets


@pytest.mark.parametrize(
    ("longest", "eta", "least", "levels"),
    [
        (9, 3, 1, [1, 3, 9]),
        (10, 3, 1, [1, 3, 10]),
        (81, 3, 1, [1, 3, 9, 27, 81]),
        (16, 2, 4, [4, 8, 16]),
        (5, 3, 5, [5]),
        (2, 3, 1, [2]),
    ],
)
def test_rungs(longest, eta, least, levels):
    assert rungs(longest, eta, least) == levels


def test_the_brackets_of_the_paper():
    assert hop.Hyperband(max_epochs=81, eta=3).table == [
        (81, [1, 3, 9, 27, 81]),
        (34, [3, 9, 27, 81]),
        (15, [9, 27, 81]),
        (8, [27, 81]),
        (5, [81]),
    ]
    assert Talk(hop.Hyperband(81)).search.trials == 143


def walk(search):
    """Train all trials as told, the lower the number the better, and count the trials that trained until each epoch."""
    talk = Talk(search)
    talk.add(search.trials)
    counts, todo = {}, [(name, trial.epochs) for name, trial in talk.trials.items()]
    while todo:
        name, epochs = todo.pop(0)
        counts[epochs] = counts.get(epochs, 0) + 1
        todo += trained(talk.says(name, epochs, talk.trials[name].number)).items()
    return counts


def test_hyperband_keeps_as_many_as_the_paper():
    assert walk(hop.Hyperband(max_epochs=81)) == {
        1: 81,
        3: 27 + 34,
        9: 9 + 11 + 15,
        27: 3 + 3 + 5 + 8,
        81: 1 + 1 + 1 + 2 + 5,
    }
    assert walk(hop.Hyperband(max_epochs=10)) == {1: 9, 3: 3 + 5, 10: 1 + 1 + 3}
    assert walk(hop.SuccessiveHalving(trials=27, max_epochs=9)) == {1: 27, 3: 9, 9: 3}
    assert walk(hop.SuccessiveHalving(trials=2, max_epochs=9)) == {1: 2, 3: 1, 9: 1}


def test_a_rung_waits_for_all_of_it():
    talk = Talk(hop.SuccessiveHalving(trials=4, max_epochs=4, eta=2)).add(4)
    assert talk.search.suggest(4) is None
    assert talk.says("t0", 1, 0.4) == talk.says("t1", 1, 0.1) == talk.says("t2", 1, 0.2) == []
    decisions = talk.says("t3", 1, 0.3)
    assert trained(decisions) == {"t1": 2, "t2": 2}
    assert stopped(decisions) == {"t0", "t3"}
    assert {d.reason for d in decisions if isinstance(d, hop.Stop)} == {"not among the best 2 after epoch 1"}
    assert talk.ends("t0") == talk.ends("t3") == talk.says("t1", 2, 0.9) == []
    assert trained(talk.says("t2", 2, 0.8)) == {"t2": 4}
    assert talk.says("t2", 3, 0.8) == talk.says("t2", 4, 0.8) == talk.ends("t2", TrialState.COMPLETED) == []


def test_a_rung_does_not_wait_for_those_that_ended():
    talk = Talk(hop.SuccessiveHalving(trials=4, max_epochs=4, eta=2)).add(4)
    assert talk.says("t0", 1, 0.4) == talk.says("t1", 1, 0.1) == talk.ends("t1") == talk.says("t2", 1, 0.2) == []
    assert trained(talk.ends("t3", TrialState.FAILED)) == {"t2": 2, "t0": 2}


def test_what_diverged_does_not_go_on():
    talk = Talk(hop.SuccessiveHalving(trials=3, max_epochs=4, eta=2)).add(3)
    assert talk.says("t0", 1, NAN) == talk.says("t1", 1, None) == []
    assert stopped(talk.says("t2", 1, math.inf)) == {"t0", "t1", "t2"}
    assert talk.ends("t0") == []


def test_ties_go_to_those_that_began_first():
    talk = Talk(hop.SuccessiveHalving(trials=4, max_epochs=2, eta=2)).add(4)
    for name in ("t3", "t2", "t1"):
        assert talk.says(name, 1, 1.0) == []
    assert trained(talk.says("t0", 1, 1.0)) == {"t0": 2, "t1": 2}


def test_more_is_better_where_it_is():
    talk = Talk(hop.SuccessiveHalving(trials=2, max_epochs=2, eta=2), goal=Goal("loss", "max")).add(2)
    assert talk.says("t0", 1, 0.1) == []
    assert trained(talk.says("t1", 1, 0.2)) == {"t1": 2}


def test_whom_a_person_resumed_is_left_alone_and_counts_as_far_as_it_came():
    talk = Talk(hop.SuccessiveHalving(trials=4, max_epochs=4, eta=2)).add(4)
    for epoch in (1, 2, 3):
        assert talk.says("t0", epoch, 0.1) == talk.says("t1", epoch, 0.9) == []
    assert talk.says("t2", 1, 0.8) == []
    decisions = talk.says("t3", 1, 0.2)
    assert trained(decisions) == {"t0": 2, "t3": 2}
    assert stopped(decisions) == {"t2"}
    assert trained(talk.says("t3", 2, 0.2)) == {"t0": 4}


def test_a_whole_rung_may_have_been_trained_by_a_person():
    talk = Talk(hop.SuccessiveHalving(trials=2, max_epochs=4, eta=2)).add(2)
    assert talk.says("t0", 1, 0.1) == talk.says("t0", 2, 0.1) == []
    assert [d for d in talk.says("t1", 1, 0.2) if isinstance(d, hop.Train)] == [hop.Train("t0", 2), hop.Train("t0", 4)]


@pytest.mark.parametrize("search", [hop.SuccessiveHalving(2, 4, 2), hop.Hyperband(4, 2), hop.ASHA(2, 4, 2), hop.PBT(2)])
def test_strangers_take_no_part(search):
    talk = Talk(search).add(2).add(origin="person").add(origin="point").add(origin="clone")
    for name in ("t2", "t3", "t4"):
        assert talk.says(name, 1, 0.0) == []
        assert talk.ends(name) == []
    assert talk.says("t0", 1, 0.5) == []


def test_brackets_are_filled_in_order_and_run_side_by_side():
    search = hop.Hyperband(max_epochs=4, eta=2)
    talk = Talk(search)
    assert [search.suggest(0).epochs, search.suggest(0).epochs] == [1, 1]
    talk.add(search.trials)
    assert [trial.epochs for trial in talk.trials.values()] == [1] * 4 + [2] * 3 + [4] * 3
    assert talk.says("t4", 2, 0.1) == talk.says("t5", 2, 0.2) == []
    assert trained(talk.says("t6", 2, 0.3)) == {"t4": 4}


def test_a_bracket_that_nobody_fills_is_decided_with_what_it_has():
    search = hop.Hyperband(max_epochs=4, eta=2, sampler=hop.Grid())
    talk = Talk(search, {"a": hop.choice([1, 2, 3])}).add(2)
    assert talk.says("t0", 1, 0.1) == talk.says("t1", 1, 0.2) == []
    talk.add()
    assert search.suggest(3) is None
    assert trained(talk.says("t2", 1, 0.3)) == {"t0": 2}
    # The bracket is closed, should the sampler have more after all.
    search.sampler.extend(trials=0, epochs=0, space={"a": hop.choice([1, 2, 3, 4])})
    assert search.suggest(3).epochs == 2


def test_hyperband_repeats_its_brackets():
    once = Talk(hop.Hyperband(max_epochs=4, eta=2))
    assert once.search.trials == 10
    assert "repeats" not in once.search.describe()
    talk = Talk(hop.Hyperband(max_epochs=4, eta=2, trials=None)).add(25)
    assert talk.search.trials == UNLIMITED
    assert talk.search.describe()["repeats"]
    assert [trial.epochs for trial in talk.trials.values()] == 2 * ([1] * 4 + [2] * 3 + [4] * 3) + [1] * 4 + [2]
    # Each bracket decides by itself.
    for name, loss in zip(("t10", "t11", "t12"), (0.3, 0.2, 0.1), strict=True):
        assert talk.says(name, 1, loss) == []
    assert trained(talk.says("t13", 1, 0.4)) == {"t12": 2, "t11": 2}
    some = Talk(hop.Hyperband(max_epochs=4, eta=2, trials=12)).add(12)
    assert some.search.suggest(12) is None
    assert some.says("t10", 1, 0.1) == []
    assert trained(some.says("t11", 1, 0.2)) == {"t10": 2}
    with pytest.raises(UsageError, match=r"trials='twice': must be 'once' \(each bracket"):
        hop.Hyperband(trials="twice")
    with pytest.raises(
        UsageError, match=r"Budget\(trials=9\): Hyperband decides once .* use Hyperband\(trials=9\), or"
    ):
        Talk(hop.Stopping(hop.Hyperband(trials=None), [hop.Budget(trials=9)]))


# ---------------------------------------------------------------------------------------------------------- ASHA


def test_asha_promotes_the_best_third_at_each_report():
    talk = Talk(hop.ASHA(trials=9, max_epochs=9)).add(9)
    assert {trial.epochs for trial in talk.trials.values()} == {1}
    assert talk.search.suggest(9) is None
    assert talk.says("t0", 1, 0.5) == talk.says("t1", 1, 0.4) == []
    assert talk.says("t2", 1, 0.9) == [hop.Train("t1", 3)]  # paused since long
    assert talk.says("t3", 1, 0.1) == [hop.Train("t3", 3)]  # goes straight on
    assert talk.says("t4", 1, 0.8) == []
    assert talk.says("t5", 1, 0.7) == []  # the best two have gone on
    assert talk.says("t6", 1, 0.05) == [hop.Train("t6", 3)]
    assert talk.says("t1", 2, 0.4) == talk.says("t1", 3, 0.4) == talk.says("t3", 3, 0.3) == []
    assert talk.says("t6", 3, 0.2) == [hop.Train("t6", 9)]
    assert talk.says("t6", 9, 0.2) == talk.ends("t6", TrialState.COMPLETED) == []


def test_one_report_may_promote_several():
    talk = Talk(hop.ASHA(trials=8, max_epochs=4, eta=2)).add(4)
    assert talk.says("t0", 1, NAN) == talk.says("t1", 1, NAN) == []
    assert talk.says("t2", 1, 0.3) == [hop.Train("t2", 2)]
    assert talk.says("t3", 1, 0.2) == [hop.Train("t3", 2)]


def test_asha_promotes_nobody_who_ended_or_diverged():
    talk = Talk(hop.ASHA(trials=8, max_epochs=4, eta=2)).add(4)
    assert talk.says("t0", 1, 0.1) == talk.ends("t0") == []
    assert talk.says("t1", 1, NAN) == talk.says("t2", 1, NAN) == talk.says("t3", 1, None) == []
    assert talk.says("t0", 1, 0.1) == []


def test_a_small_asha_completes_its_best_trial():
    talk = Talk(hop.ASHA(trials=4, max_epochs=9)).add(4)
    assert talk.search.conclude() == ()
    losses = {"t0": 0.4, "t1": 0.1, "t2": 0.3, "t3": NAN}
    decided = [talk.says(name, 1, loss) for name, loss in losses.items()]
    assert decided == [[], [], [hop.Train("t1", 3)], []]
    assert talk.says("t1", 3, 0.2) == []
    assert talk.search.conclude() == [hop.Train("t1", 9)]
    talk.ends("t1")
    assert talk.search.conclude() == [hop.Train("t2", 9)]
    assert hop.Stopping(talk.search, []).conclude() == [hop.Train("t2", 9)]
    talk.says("t2", 9, 0.2)
    assert talk.search.conclude() == ()
    off = Talk(hop.ASHA(trials=1, max_epochs=9, complete_best=False)).add(1)
    assert off.says("t0", 1, 0.1) == []
    assert off.search.conclude() == ()
    assert off.search.describe()["complete_best"] is False
    assert "complete_best" not in talk.search.describe()


def test_asha_takes_more_trials():
    talk = Talk(hop.ASHA(trials=1, max_epochs=3)).add(1)
    with pytest.raises(UsageError, match=r"epochs=2: the rungs of ASHA are fixed; resume"):
        talk.search.extend(trials=1, epochs=2, space={})
    assert talk.search.suggest(1) is None
    talk.search.extend(trials=2, epochs=0, space={"x": hop.uniform(5, 6)})
    assert talk.search.trials == 3
    assert 5 <= talk.search.suggest(1).config["x"] <= 6
    assert talk.search.examples(9)[2] == talk.search.suggest(2).config
    grid = Talk(hop.ASHA(trials=1, sampler=hop.Grid()), {"x": hop.choice([1, 2])})
    with pytest.raises(UsageError, match="no such"):
        Talk(hop.ASHA(sampler=Stubborn())).search.extend(trials=1, epochs=0, space={"x": 1})
    grid.search.extend(trials=5, epochs=0, space={})
    assert grid.search.trials == 6


class Stubborn(hop.Random):
    def extend(self, *, trials, epochs, space):
        raise UsageError("no such thing")


def test_others_cannot_be_extended():
    for search in (hop.PBT(), hop.Hyperband(), hop.SuccessiveHalving()):
        with pytest.raises(UsageError, match=r"cannot be extended; add configurations or clone trials instead"):
            Talk(search).search.extend(trials=1, epochs=0, space={})


# ------------------------------------------------------------------------------------------------------- samplers


class Listening(hop.Random):
    """A sampler with opinions, which do not count."""

    adaptive = True

    def setup(self, space, *, seed, goal):
        super().setup(space, seed=seed, goal=goal)
        self.heard = []

    def added(self, trial):
        self.heard.append(("added", trial.id))

    def observe(self, trial, epoch, metrics):
        self.heard.append((trial.id, epoch, metrics))
        return [hop.Stop(trial.id, "no")]

    def ended(self, trial, state):
        self.heard.append((trial.id, state))
        return [hop.Stop(trial.id, "no")]


@pytest.mark.parametrize("make", [hop.ASHA, hop.Hyperband, hop.SuccessiveHalving, hop.PBT])
def test_a_sampler_hears_everything_and_decides_nothing(make):
    sampler = Listening(trials=2, max_epochs=5)
    talk = Talk(make(sampler=sampler, max_epochs=9)).add(4).add(origin="person")
    assert talk.trials["t3"].config == Talk(hop.Random(trials=9)).search.suggest(3).config
    assert talk.says("t4", 1, 0.5) == talk.says("t0", 1, 0.5) == talk.ends("t4") == []
    added = [("added", f"t{number}") for number in range(5)]
    assert sampler.heard == [*added, ("t4", 1, {"loss": 0.5}), ("t0", 1, {"loss": 0.5}), ("t4", TrialState.STOPPED)]
    assert talk.search.adaptive
    assert talk.search.describe()["sampler"] == {"search": "Listening"}


def test_how_many_at_once():
    space = {"x": hop.uniform(0, 1)}
    assert hop.ASHA().concurrency(3) == 6
    assert hop.ASHA(concurrency="workers").concurrency(3) == 3
    assert hop.ASHA(concurrency=5).concurrency(3) == 5
    assert hop.Hyperband().concurrency(3) == 256
    assert hop.Hyperband(sampler=Listening()).concurrency(3) == 6
    assert hop.PBT(population=7).concurrency(3) == 7
    assert hop.ASHA(sampler=hop.Random(concurrency=4)).concurrency(3) == 4
    for make in (hop.Random, hop.Grid, hop.TPE, hop.NSGA2, hop.CMAES, hop.Optuna):
        assert make(concurrency=5).concurrency(3) == 5
        assert make(concurrency="workers").concurrency(3) == 3
        with pytest.raises(UsageError, match="concurrency=0: must be a number of trials under way at once"):
            make(concurrency=0)
    assert Talk(hop.ASHA(concurrency=5), space).search.describe()["concurrency"] == 5
    assert hop.Stopping(hop.ASHA(concurrency=5), []).concurrency(3) == 5


def test_unlimited_trials():
    talk = Talk(hop.ASHA(trials=None, sampler=hop.Random(trials=2)))
    assert talk.search.trials == UNLIMITED
    assert talk.search.suggest(10**9) is not None


# ---------------------------------------------------------------------------------------- descriptions, bad input


def test_descriptions_tell_searches_apart():
    rules = [hop.Median(), hop.Median(2), hop.Patience(), hop.Patience(4)]
    rules += [hop.Budget(seconds=1), hop.Budget(epochs=1), hop.Budget(target=1)]
    searches = [
        hop.ASHA(),
        hop.ASHA(eta=2),
        hop.ASHA(min_epochs=3),
        hop.ASHA(sampler=hop.Grid()),
        hop.ASHA(concurrency=3),
        hop.SuccessiveHalving(),
        hop.SuccessiveHalving(min_epochs=3),
        hop.SuccessiveHalving(eta=2),
        hop.Hyperband(),
        hop.Hyperband(eta=4),
        hop.PBT(),
        hop.PBT(interval=2),
        hop.PBT(quantile=0.5),
        hop.PBT(resample=0.5),
        hop.PBT(perturb=(0.5, 2.0)),
        hop.PBT(explore=["x"]),
        *[hop.Stopping(hop.ASHA(), [rule]) for rule in rules],
    ]
    described = [json.dumps(Talk(search, {"x": hop.choice([1, 2])}).search.describe()) for search in searches]
    assert len(set(described)) == len(searches)
    # How many a sampler would have suggested by itself does not matter.
    assert Talk(hop.ASHA(sampler=hop.Random(3))).search.describe() == Talk(hop.ASHA()).search.describe()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hop.ASHA(min_epochs=10), r"min_epochs=10: must be at most max_epochs=9; raise max_epochs"),
        (lambda: hop.SuccessiveHalving(min_epochs=10), r"min_epochs=10: must be at most max_epochs=9"),
        (lambda: hop.ASHA(eta=1), r"eta=1: must be an integer of at least 2; 3 keeps the best third"),
        (lambda: hop.Hyperband(eta=2.5), r"eta=2.5: must be an integer of at least 2"),
        (lambda: hop.Hyperband(max_epochs=0), r"max_epochs=0: must be an integer of at least 1"),
        (lambda: hop.ASHA(min_epochs=0), r"min_epochs=0: must be an integer of at least 1; 1 decides after"),
        (lambda: hop.ASHA(trials=0), r"trials=0: must be an integer of at least 1"),
        (lambda: hop.SuccessiveHalving(trials=True), r"trials=True: must be an integer of at least 1"),
        (lambda: hop.ASHA(sampler="tpe"), r"sampler='tpe': must be a search, e.g. hop.Random"),
        (lambda: hop.ASHA(concurrency=0), r"concurrency=0: must be a number of trials .* or 'workers'; leave it out"),
        (lambda: hop.ASHA(concurrency="many"), r"concurrency='many': must be"),
        (lambda: hop.PBT(population=1), r"population=1: must be an integer of at least 2"),
        (lambda: hop.PBT(quantile=0), r"quantile=0: must be above 0 and at most 0.5; 0.25"),
        (lambda: hop.PBT(quantile=0.6), r"quantile=0.6: must be above 0 and at most 0.5"),
        (lambda: hop.PBT(quantile="half"), r"quantile='half': must be above 0"),
        (lambda: hop.PBT(max_epochs=3, interval=4), r"interval=4: must be at most max_epochs=3; lower interval"),
        (lambda: hop.PBT(resample=2), r"resample=2: must be a probability from 0 to 1"),
        (lambda: hop.PBT(perturb=()), r"perturb=\(\): must be numbers above 0"),
        (lambda: hop.PBT(perturb=(1, -1)), r"perturb=\(1, -1\): must be numbers above 0"),
        (lambda: hop.Median(grace_epochs=0), r"grace_epochs=0: must be an integer of at least 1"),
        (lambda: hop.Patience(epochs=0), r"epochs=0: must be an integer of at least 1"),
        (lambda: hop.Patience(min_delta=-1), r"min_delta=-1: must be a number of at least 0"),
        (lambda: hop.Budget(), r"Budget\(\): limits nothing; set seconds"),
        (lambda: hop.Budget(seconds=NAN), r"seconds=nan: must be a number of at least 0"),
        (lambda: hop.Budget(epochs=0), r"epochs=0: must be an integer of at least 1"),
        (lambda: hop.Budget(trials=0), r"trials=0: must be an integer of at least 1"),
        (lambda: hop.Budget(target=NAN), r"target=nan: must be a number: a value"),
        (lambda: hop.Budget(target="low"), r"target='low': must be a number"),
        (lambda: hop.Stopping(hop.Random(), ["median"]), r"stop='median': must be a stopping rule, e.g. hop.Median"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(UsageError, match=message):
        make()
