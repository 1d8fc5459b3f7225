"""Grid and random search, and what every search shares."""

from __future__ import annotations

import math

import pytest

from hopfleet.domain.objectives import Limit
from hopfleet.domain.space import choice, grid_search, sample_from, uniform
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search import SEARCHES, Grid, Random
from hopfleet.search.asha import ASHA
from hopfleet.search.base import MAX_LIVE, UNLIMITED, Earlier, Goal, Search, at_least_one
from hopfleet.search.hyperband import Hyperband
from hopfleet.search.pbt import PBT
from hopfleet.search.stopping import Budget, Patience, Stopping

GOAL = Goal("loss", "min")


def all_of(search, space, seed=0):
    search.setup(space, seed=seed, goal=GOAL)
    configs = []
    while (suggestion := search.suggest(len(configs))) is not None:
        config = suggestion.config
        configs.append(config)
    return configs


def test_by_name():
    names = ["asha", "cmaes", "freeze-thaw", "gp", "grid", "halving", "hyperband", "nsga2", "pbt", "random", "tpe"]
    assert sorted(SEARCHES) == names
    assert SEARCHES["grid"] is Grid
    assert SEARCHES["random"] is Random


def test_grid_tries_every_combination():
    space = {"a": choice([1, 2]), "b": {"c": grid_search(["y", "z"])}, "d": 5}
    search = Grid(max_epochs=3)
    assert all_of(search, space) == [{"a": a, "b": {"c": c}, "d": 5} for a in (1, 2) for c in ("y", "z")]
    assert search.trials == 4
    assert search.describe() == {"search": "Grid", "trials": 4, "max_epochs": 3}


def test_grid_fills_in_derived_values():
    space = {"a": choice([1, 2]), "b": sample_from(lambda config: config["a"] * 10)}
    assert all_of(Grid(), space) == [{"a": 1, "b": 10}, {"a": 2, "b": 20}]


def test_grid_of_constants_is_one_trial():
    assert all_of(Grid(), {"a": 1}) == [{"a": 1}]


def test_grid_refuses_what_it_cannot_enumerate():
    with pytest.raises(
        SpaceError, match=r"net.lr=uniform.*: a grid cannot enumerate it; list its values with hop.grid"
    ):
        Grid().setup({"net": {"lr": uniform(0, 1)}}, seed=0, goal=GOAL)


def test_random_draws_as_many_as_asked():
    search = Random(trials=5, max_epochs=2)
    configs = all_of(search, {"x": uniform(0, 1)})
    assert len(configs) == search.trials == 5
    assert len({config["x"] for config in configs}) == 5
    assert configs == all_of(Random(trials=5), {"x": uniform(0, 1)})
    assert configs != all_of(Random(trials=5), {"x": uniform(0, 1)}, seed=1)


def test_more_trials_begin_with_the_same_ones():
    assert all_of(Random(trials=9), {"x": uniform(0, 1)})[:5] == all_of(Random(trials=5), {"x": uniform(0, 1)})


def test_random_takes_grid_dimensions_in_turn():
    configs = all_of(Random(trials=5), {"g": grid_search([1, 2]), "h": {"i": grid_search([3, 4])}, "x": uniform(0, 1)})
    assert [(config["g"], config["h"]["i"]) for config in configs] == [(1, 3), (1, 4), (2, 3), (2, 4), (1, 3)]


def test_setup_checks_the_space():
    for search in (Grid(), Random()):
        with pytest.raises(SpaceError, match="is empty"):
            search.setup({}, seed=0, goal=GOAL)


def test_trials_go_on_by_default():
    assert Random().observe(Trial("t", 0, {}, 0, 3), 1, {"loss": 1.0}) == ()


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_counts_must_be_positive_integers(value):
    with pytest.raises(UsageError, match=r"trials=.*: must be an integer of at least 1"):
        Random(trials=value)
    with pytest.raises(UsageError, match="max_epochs="):
        Grid(max_epochs=value)
    assert at_least_one("n", 1) == 1


@pytest.mark.parametrize(("mode", "better", "worse"), [("max", 2.0, 1.0), ("min", 1.0, 2.0)])
def test_better(mode, better, worse):
    goal = Goal("m", mode)
    assert goal.better(better, worse)
    assert not goal.better(worse, better)
    assert not goal.better(better, better)
    assert goal.better(worse, math.nan)
    assert not goal.better(math.nan, worse)
    assert not goal.better(math.nan, math.nan)


def test_a_grid_grows_by_new_options_and_old_points_keep_their_numbers():
    search = Grid(max_epochs=2)
    search.setup({"a": choice([1, 2]), "b": choice([5])}, seed=0, goal=GOAL)
    before = search.examples(9)
    search.extend(trials=0, epochs=3, space={"b": choice([5, 6])})
    assert search.max_epochs == 5
    assert search.examples(2) == before
    assert [search.suggest(number).config for number in range(2, 4)] == [{"a": 1, "b": 6}, {"a": 2, "b": 6}]
    assert search.suggest(4) is None


def test_a_grid_refuses_what_it_cannot_enumerate_and_stays_as_it_was():
    search = Grid()
    search.setup({"a": choice([1, 2])}, seed=0, goal=GOAL)
    with pytest.raises(SpaceError, match="a grid cannot enumerate it"):
        search.extend(trials=0, epochs=1, space={"a": uniform(0, 1)})
    with pytest.raises(UsageError, match="change the options of a dimension instead"):
        search.extend(trials=1, epochs=0, space={})
    assert (search.trials, search.max_epochs) == (2, 10)


def test_random_search_without_end():
    search = Random(trials=None)
    search.setup({"a": uniform(0, 1)}, seed=0, goal=GOAL)
    assert search.trials == UNLIMITED
    assert search.suggest(10**9) is not None
    assert search.examples(2) == [search.suggest(number).config for number in range(2)]


def test_costs_are_small_for_what_is_good():
    assert Goal("m", "max").cost({"m": 2.0}) < Goal("m", "max").cost({"m": 1.0})
    assert Goal("m", "min").cost({"m": 1.0}) < Goal("m", "min").cost({"m": 2.0})
    for metrics in ({}, {"m": float("nan")}):
        assert Goal("m", "max").cost(metrics) == float("inf")


def test_objectives_begin_with_the_metric():
    assert Goal("m", "max", (("n", "min"),)).objectives == (("m", "max"), ("n", "min"))


class Least(Search):
    """As little as a search can be."""

    max_epochs = 1
    trials = 3

    def suggest(self, number):
        return None


def test_what_a_search_does_unless_it_knows_better():
    search = Least()
    search.setup({"a": uniform(0, 1)}, seed=0, goal=GOAL)
    assert len(search.examples(2)) == 2
    assert search.concurrency(4) == MAX_LIVE
    assert search.ended(Trial("t", 0, {}, 0, 1), TrialState.FAILED) == ()
    with pytest.raises(UsageError, match="search Least: cannot be extended"):
        search.extend(trials=1, epochs=0, space={})


def test_objectives_and_costs():
    goal = Goal("loss", "min", (("size", "min"), ("accuracy", "max")))
    assert goal.objectives == (("loss", "min"), ("size", "min"), ("accuracy", "max"))
    assert goal.cost({"loss": 2.0}) == 2.0
    assert Goal("accuracy", "max").cost({"accuracy": 2.0}) == -2.0
    assert goal.cost({"loss": math.nan}) == goal.cost({}) == math.inf


def test_examples_are_draws_unless_a_search_knows_better():
    class Plain(Random):
        examples = Search.examples

    search = Plain(trials=3)
    configs = all_of(search, {"x": uniform(0, 1)})
    assert search.examples(3) == configs


def test_better_by_rank_within_limits_first():
    goal = Goal("m", "max", (("n", "min"),), limits=(Limit.parse("params <= 5"),))
    assert goal.metrics == ["m", "n", "params"]
    assert goal.counts_parameters
    assert not GOAL.counts_parameters
    inside, beyond = {"m": 1.0, "params": 5.0}, {"m": 2.0, "params": 6.0}
    assert goal.rank(inside) < goal.rank(beyond) < goal.rank({"m": math.nan, "params": 6.0})
    assert goal.rank({"m": 2.0, "params": 5.0}) < goal.rank(inside) < goal.rank({"params": 5.0})
    assert goal.cost(inside) == -1.0
    assert goal.cost(beyond) == math.inf


def small(config):
    return config["x"] < 0.1


def test_constraints_are_drawn_for():
    goal = Goal("loss", "min", constraints=(small,))
    search = Random(trials=50)
    search.setup({"x": uniform(0, 1)}, seed=0, goal=goal)
    configs = [search.suggest(number).config for number in range(50)]
    assert all(small(config) for config in configs)
    assert search.examples(50) == configs == [search.sample(number) for number in range(50)]
    plain = all_of(Random(trials=50), {"x": uniform(0, 1)})
    assert [config for config in plain if small(config)] == [c for c, p in zip(configs, plain, strict=True) if c == p]
    search.setup({"x": uniform(0.5, 1)}, seed=0, goal=goal)
    with pytest.raises(SpaceError, match="no configuration satisfied small in 1000 draws; make the constraints looser"):
        search.suggest(0)


def test_constraints_that_raise():
    search = Random()
    search.setup({"y": uniform(0, 1)}, seed=0, goal=Goal("loss", "min", constraints=(small,)))
    with pytest.raises(SpaceError, match="constraint small: raised KeyError: 'x' for"):
        search.suggest(0)


def test_constraints_without_a_result():
    search = Random()
    search.setup({"y": uniform(0, 1)}, seed=0, goal=Goal("loss", "min", constraints=(lambda config: None,)))
    with pytest.raises(SpaceError, match="returned None; it must return True or False"):
        search.suggest(0)


def test_grid_leaves_out_what_is_not_allowed():
    goal = Goal("loss", "min", constraints=(lambda config: config["x"] != 2,))
    grid = Grid()
    grid.setup({"x": choice([1, 2, 3])}, seed=0, goal=goal)
    assert grid.examples(9) == [{"x": 1}, {"x": 3}]
    assert grid.suggest(1).config == {"x": 3}
    assert grid.sample(2) is None
    grid.extend(trials=0, epochs=0, space={"x": choice([1, 2, 3, 4])})
    assert grid.examples(9) == [{"x": 1}, {"x": 3}, {"x": 4}]
    with pytest.raises(SpaceError, match="no point of the grid satisfies small; make the constraints looser"):
        grid.setup({"x": choice([1, 2])}, seed=0, goal=Goal("loss", "min", constraints=(small,)))


def test_functions_as_spaces():
    def space(trial):
        return {"x": trial.suggest_float("x", 0, 1)}

    configs = all_of(Random(trials=5), space)
    assert len({config["x"] for config in configs}) == 5
    with pytest.raises(SpaceError, match=r"a grid cannot enumerate what a function .* hop.Random"):
        Grid().setup(space, seed=0, goal=GOAL)
    with pytest.raises(SpaceError, match="no dimensions to change"):
        search = Random()
        search.setup(space, seed=0, goal=GOAL)
        search.extend(trials=0, epochs=0, space={"y": 1})


def test_most_learn_nothing_from_earlier_trials():
    assert Random().learn([Earlier({"x": 1}, {"loss": 1.0})]) == 0


class Scholar(Random):
    """Remembers what it is told of earlier trials."""

    def learn(self, earlier):
        return len(earlier)


def test_whoever_samples_learns_from_earlier_trials():
    told = [Earlier({"x": 1}, {"loss": 1.0})] * 3
    search = Stopping(ASHA(sampler=Scholar()), [Patience()])
    search.setup({"x": uniform(0, 1)}, seed=0, goal=GOAL)
    assert search.learn(told) == 3


def test_a_population_explores_no_functions():
    with pytest.raises(SpaceError, match="PBT cannot explore a space that is a function; write the space as a dict"):
        PBT().setup(lambda trial: {"x": trial.suggest_float("x", 0, 1)}, seed=0, goal=GOAL)


def test_brackets_tell_what_follows_a_trial():
    search = Stopping(Hyperband(max_epochs=9), [Patience()])
    search.setup({"x": uniform(0, 1)}, seed=0, goal=GOAL)
    assert search.samples == search.trials
    for trial, epochs, onward in (("t1", 1, 8), ("t1", 3, 6), ("t1", 9, 0)):
        told = Trial(trial, 0, {}, 0, epochs)
        if epochs == 1:
            search.added(told)
        assert search.onward(told) == onward
    assert search.onward(Trial("of a person", 1, {}, 0, 1)) == 0, "no other trial waits for it"
    assert ASHA().onward(Trial("t1", 0, {}, 0, 1)) == 0


def test_trials_stream_where_nobody_knows_how_many_there_will_be():
    for search, streams in (
        (Random(trials=9), False),
        (Random(trials=None), True),
        (ASHA(), True),
        (Stopping(Random(trials=9), [Patience(), Budget(trials=3)]), False),
        (Stopping(Random(trials=9), [Budget(seconds=60)]), True),
    ):
        search.setup({"x": uniform(0, 1)}, seed=0, goal=GOAL)
        assert search.streams == streams
        assert search.concurrency(3) == (6 if streams else MAX_LIVE)
    fixed = Stopping(ASHA(concurrency=50), [Budget(target=1.0)])
    fixed.setup({"x": uniform(0, 1)}, seed=0, goal=GOAL)
    assert fixed.concurrency(3) == 50
