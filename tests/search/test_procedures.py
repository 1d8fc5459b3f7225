"""Successive halving, Hyperband, ASHA, PBT and rules, decision by decision."""

from __future__ import annotations

import json
import math
import random

import pytest

import hopfleet as hop
from hopfleet.domain.trial import Parent, Trial, TrialState
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search.base import UNLIMITED, Goal
from hopfleet.search.sampled import rungs

GOAL = Goal("loss", "min")
NAN = math.nan


class Talk:
    """A search, and short words to talk to it."""

    def __init__(self, search, space=None, goal=GOAL):
        self.search = search
        search.setup(space or {"x": hop.uniform(0, 1)}, seed=3, goal=goal)
        self.trials = {}

    def add(self, count=1, **given):
        """Add trials as suggested, or others where an origin is given."""
        for _ in range(count):
            number = len(self.trials)
            suggested = sum(trial.origin == "search" for trial in self.trials.values())
            suggestion = self.search.suggest(suggested) if not given else None
            values = {"config": {"x": 0.5}, "epochs": self.search.max_epochs, **given}
            if not given:
                assert suggestion is not None
                values = {"config": suggestion.config, "epochs": suggestion.epochs}
            name = f"t{number}"
            self.trials[name] = Trial(name, number, seed=0, **values)
            self.search.added(self.trials[name])
        return self

    def says(self, name, epoch, loss):
        metrics = {} if loss is None else {"loss": loss}
        return list(self.search.observe(self.trials[name], epoch, metrics))

    def ends(self, name, state=TrialState.STOPPED):
        return list(self.search.ended(self.trials[name], state))


def trained(decisions):
    return {d.trial: d.epochs for d in decisions if isinstance(d, hop.Train)}


def stopped(decisions):
    return {d.trial for d in decisions if isinstance(d, hop.Stop)}


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
    """Train everybody as told, the lower its number the better, and count who trained until which epoch."""
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


# ------------------------------------------------------------------------------------------------------------ PBT


def clone_of(talk, decision, **given):
    parent = Parent(decision.parent, 1, talk.trials[decision.parent].config)
    return talk.add(**{"config": decision.config, "origin": "clone", "parent": parent, **given})


def test_the_worst_goes_on_from_the_best():
    talk = Talk(hop.PBT(population=4, max_epochs=3)).add(4)
    assert talk.search.suggest(4) is None
    assert talk.says("t0", 1, 0.1) == talk.says("t1", 1, 0.2) == talk.says("t2", 1, 0.3) == []
    (clone,) = talk.says("t3", 1, 0.4)
    assert (clone.parent, clone.replaces, clone.warm, clone.epochs) == ("t0", "t3", True, 0)
    assert clone.config != talk.trials["t0"].config
    clone_of(talk, clone)
    assert talk.ends("t3") == []
    # The clone stands where its parent stood; the worst is another one now.
    (again,) = talk.says("t2", 2, 0.3)
    assert again.parent in ("t0", "t4")
    assert talk.says("t4", 2, 0.05) == []


def test_a_dropped_clone_changes_nothing():
    talk = Talk(hop.PBT(population=4, max_epochs=9)).add(4)
    for number in range(3):
        assert talk.says(f"t{number}", 1, number) == []
    (first,) = talk.says("t3", 1, 9.0)
    (second,) = talk.says("t3", 2, 9.0)
    assert first.config != second.config
    clone_of(talk, first)  # a stranger's now
    assert talk.says("t4", 2, 99.0) == []
    clone_of(talk, second, parent=Parent("t1", 1, {}))
    assert talk.says("t5", 2, 99.0) == []
    assert talk.ends("t3") == []
    clone_of(talk, second)  # its place is gone
    assert talk.says("t6", 2, 99.0) == []


def test_a_parent_may_be_replaced_before_its_clone_is_there():
    talk = Talk(hop.PBT(population=2, max_epochs=9, quantile=0.5)).add(2)
    assert talk.says("t0", 1, 0.3) == []
    (first,) = talk.says("t1", 1, 0.5)
    (second,) = talk.says("t0", 2, 0.9)
    assert (first.parent, second.parent) == ("t0", "t1")
    clone_of(clone_of(talk, first), second)
    assert set(talk.search._members) == {"t2", "t3"}


def test_places_change_hands_so_often_and_no_more():
    search = hop.PBT(population=2, max_epochs=4, interval=2, quantile=0.5)
    talk = Talk(search).add(2)
    assert search.trials == 2 * 3
    assert talk.says("t0", 1, 0.1) == talk.says("t1", 1, 0.2) == []
    last = "t1"
    for _ in range(2):
        (clone,) = talk.says(last, 2, 9.0)
        clone_of(talk, clone)
        assert talk.ends(last) == []
        last = f"t{len(talk.trials) - 1}"
    assert talk.says(last, 2, 9.0) == []


def test_nobody_goes_on_from_equals_or_from_the_end_or_at_the_end():
    talk = Talk(hop.PBT(population=2, max_epochs=3)).add(2)
    assert talk.says("t0", 1, NAN) == talk.says("t1", 1, NAN) == []
    assert talk.says("t0", 3, 0.1) == talk.ends("t0", TrialState.COMPLETED) == []
    assert talk.says("t1", 2, 0.5) == []
    assert talk.says("t1", 3, 0.5) == []


def test_those_that_failed_are_out():
    talk = Talk(hop.PBT(population=3, max_epochs=9, quantile=0.4)).add(3)
    assert talk.says("t0", 1, 0.1) == talk.ends("t0", TrialState.FAILED) == []
    assert talk.says("t1", 1, 0.2) == talk.says("t2", 1, 0.9) == []


SPACE = {
    "lr": hop.loguniform(1e-4, 1e-1),
    "deep": {"width": hop.randint(1, 100), "rate": hop.quniform(0.0, 1.0, 0.1), "x": hop.uniform(-1, 1)},
    "kind": hop.choice(["a", "b", "c", "d"]),
    "dict": hop.choice([{"name": "sgd"}, {"name": "adam"}]),
    "grid": hop.grid_search([1, 2]),
    "normal": hop.normal(0, 1),
    "half": hop.sample_from(lambda config: config["deep"]["width"] / 2),
    "fixed": "yes",
}


def test_clones_satisfy_constraints():
    space = {"a": hop.uniform(0, 1), "b": hop.uniform(0, 1)}
    search = hop.PBT(resample=0.5)
    search.setup(space, seed=0, goal=Goal("loss", "min", constraints=(lambda config: config["a"] + config["b"] <= 1,)))
    children = [search._explored({"a": 0.5, "b": 0.5}, random.Random(seed)) for seed in range(40)]
    assert all(child["a"] + child["b"] <= 1 for child in children)
    assert any(child["a"] > 0.5 for child in children)
    search.goal = Goal("loss", "min", constraints=(lambda config: config == {"a": 0.5, "b": 0.5},))
    assert search._explored({"a": 0.5, "b": 0.5}, random.Random(0)) == {"a": 0.5, "b": 0.5}


def test_a_population_needs_a_dimension():
    with pytest.raises(SpaceError, match="PBT has nothing to explore: the space has constants alone"):
        hop.PBT().setup({"lr": 0.1}, seed=0, goal=Goal("loss", "min"))


def explored(config, seed, resample, explore=None):
    search = hop.PBT(resample=resample, explore=explore)
    search.setup(SPACE, seed=0, goal=GOAL)
    return search._explored(config, random.Random(seed))


def test_exploring_moves_a_little():
    parent = {
        "lr": 1e-2,
        "deep": {"width": 50, "rate": 0.5, "x": 0.5},
        "kind": "b",
        "dict": {"name": "sgd"},
        "grid": 1,
        "normal": 2.0,
        "half": 25.0,
        "fixed": "yes",
    }
    seen = [explored(parent, seed, resample=0.0) for seed in range(40)]
    assert {child["lr"] for child in seen} == {1e-2 * 0.8, 1e-2 * 1.2}
    assert {child["deep"]["width"] for child in seen} == {40, 60}
    assert {child["deep"]["rate"] for child in seen} == {0.4, 0.6}
    assert {child["deep"]["x"] for child in seen} == {0.4, 0.6}
    assert {child["kind"] for child in seen} == {"a", "c"}
    assert {child["dict"]["name"] for child in seen} == {"sgd", "adam"}
    assert {child["normal"] for child in seen} == {1.6, 2.4}
    assert {child["half"] for child in seen} == {20.0, 30.0}
    assert {child["fixed"] for child in seen} == {"yes"}


def test_exploring_stays_within_bounds_and_moves_what_rounding_would_hold():
    low = {"lr": 1e-4, "deep": {"width": 2, "rate": 0.1, "x": -1.0}, "kind": "a", "dict": {"name": "sgd"}}
    low |= {"grid": 1, "normal": 1.0, "half": 1.0, "fixed": "yes"}
    seen = [explored(low, seed, resample=0.0) for seed in range(40)]
    assert {child["lr"] for child in seen} == {1e-4, 1e-4 * 1.2}
    assert {child["deep"]["width"] for child in seen} == {1, 3}
    assert {child["deep"]["rate"] for child in seen} == {0.0, 0.2}
    assert {child["deep"]["x"] for child in seen} == {-1.0, -0.8}
    assert {child["kind"] for child in seen} == {"a", "b"}
    high = {**low, "deep": {"width": 99, "rate": 1.0, "x": 1.0}, "kind": "d"}
    seen = [explored(high, seed, resample=0.0) for seed in range(40)]
    assert {child["deep"]["width"] for child in seen} == {79, 99}
    assert {child["kind"] for child in seen} == {"c", "d"}
    assert all(type(child["deep"]["width"]) is int for child in seen)


def test_exploring_leaves_alone_what_is_not_named():
    search = hop.Random()
    search.setup(SPACE, seed=0, goal=GOAL)
    parent = search.suggest(0).config
    for child in (explored(parent, seed, resample=0.5, explore=["lr", "deep.rate"]) for seed in range(10)):
        assert child["lr"] != parent["lr"]
        deep = {**parent["deep"], "rate": child["deep"]["rate"]}
        assert child == {**parent, "lr": child["lr"], "deep": deep}
    with pytest.raises(UsageError, match=r"explore='rate': must be a dimension of the space; it has lr, deep.width,"):
        explored(parent, 0, 0.5, explore=["rate"])


def test_exploring_draws_anew():
    search = hop.Random()
    search.setup(SPACE, seed=0, goal=GOAL)
    children = [explored(search.suggest(0).config, seed, resample=1.0) for seed in range(30)]
    assert len({child["lr"] for child in children}) == 30
    assert {child["kind"] for child in children} == {"a", "b", "c", "d"}
    assert all(child["half"] == child["deep"]["width"] / 2 for child in children)


# ---------------------------------------------------------------------------------------------------------- rules


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
