"""Populations: who is replaced by whom, and how clones explore."""

from __future__ import annotations

import random

import pytest

import hopfleet as hop
from hopfleet.domain.trial import Parent, TrialState
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search.base import Goal
from tests.helpers.search_talk import GOAL, NAN, Talk


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
