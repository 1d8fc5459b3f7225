"""Optuna's samplers as searches."""

from __future__ import annotations

import copy
import math
import sys
import warnings

import optuna
import pytest

from hopfleet.domain import space as spaces
from hopfleet.domain.objectives import Limit
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.errors import MissingExtra, SpaceError, UsageError
from hopfleet.search import optuna as bridge
from hopfleet.search.base import DRAWS, Earlier, Goal
from hopfleet.search.optuna import CMAES, GP, NSGA2, TPE, Optuna
from hopfleet.search.study import decode, distribution, encode
from tests.helpers.optuna_runs import LOSS, SPACE, Run, conditional, named

MANY = Goal("loss", "min", (("params", "max"),))
LIMITED = Goal(
    "loss", "min", limits=(Limit.parse("params >= 5"),), constraints=(lambda config: config.get("fixed") != 6,)
)
SEARCHES = {
    "tpe": lambda: TPE(trials=None),
    "gp": lambda: GP(trials=None, n_startup_trials=4),
    "cmaes": lambda: CMAES(trials=None, popsize=4),
    "nsga2": lambda: NSGA2(trials=None, population_size=4),
    "given": lambda: Optuna(optuna.samplers.NSGAIISampler(seed=5, population_size=4), trials=None),
    "default": lambda: Optuna(trials=None),
}
GOALS = {"one": LOSS, "two": MANY, "limited": LIMITED}
SPACES = {"dict": SPACE, "conditional": conditional, "named": named}
SOME_SLOW = [
    pytest.param(
        search,
        GOALS[goal],
        SPACES[space],
        id=f"{search}-{goal}-{space}",
        # make test sees each search, goal and space, but not all of their products.
        marks=[pytest.mark.slow] * (search == "gp" or (goal, space) not in zip(GOALS, SPACES, strict=True)),
    )
    for search in SEARCHES
    for goal in GOALS
    for space in SPACES
]


@pytest.mark.parametrize(("name", "goal", "space"), SOME_SLOW)
def test_a_resumed_search_goes_on_as_an_undisturbed_one(name, goal, space):
    if (name == "cmaes" and goal is MANY) or (name == "gp" and (space is not named or goal is not LOSS)):
        pytest.skip("not for this search, or too slow")
    count = 8 if name == "gp" else 24
    undisturbed = Run(SEARCHES[name], space, goal).steps(count)
    disturbed = Run(SEARCHES[name], space, goal).steps(count // 2)
    disturbed.search.suggest(disturbed.suggested)  # nothing comes of it
    disturbed.resume()
    disturbed.steps(count - count // 2)
    assert disturbed.configs == undisturbed.configs
    assert Run(SEARCHES[name], space, goal, seed=4).steps(count).configs != undisturbed.configs or name == "given"


@pytest.mark.parametrize("name", ["tpe", "cmaes", "nsga2"])
def test_asking_leaves_nothing_behind(name):
    run = Run(SEARCHES[name]).steps(13)
    first = run.search.suggest(run.suggested)
    assert run.search.suggest(run.suggested + 1) != first
    assert run.search.suggest(run.suggested) == first


def test_it_learns():
    run = Run(lambda: TPE(trials=None), {"x": spaces.uniform(-1, 1)}).steps(60)
    early, late = run.configs[:10], run.configs[-10:]
    assert sum(abs(config["x"]) for config in late) < sum(abs(config["x"]) for config in early) / 2


def test_every_part_of_the_space_is_filled():
    run = Run(lambda: TPE(trials=None)).steps(20)
    for config in run.configs:
        assert spaces.find(SPACE, config) is not None
    mine = [config for number, config in enumerate(run.configs) if number % 5 != 4]
    assert [config["turn"] for config in mine] == [10, 20] * 8


@pytest.mark.parametrize(
    ("dimension", "values"),
    [
        (spaces.choice(["a", [1, 2], None]), ["a", [1, 2], None]),
        (spaces.quniform(0.05, 0.5, 0.1), [0.05, 0.1, 0.3, 0.5]),
        (spaces.qloguniform(0.01, 1.0, 0.1), [0.01, 0.1, 1.0]),
        (spaces.uniform(-1, 1), [-1.0, 0.25]),
        (spaces.lograndint(1, 100), [1, 99]),
        (spaces.Integer(1, 7, step=2), [1, 5]),
        (spaces.Float(0.05, 0.45, step=0.1, anchored=True), [0.05, 0.15, 0.45]),
    ],
)
def test_dimensions_there_and_back(dimension, values):
    for value in values:
        there = encode(dimension, value)
        assert distribution(dimension)._contains(distribution(dimension).to_internal_repr(there))
        assert decode(dimension, there) == value


def test_a_normal_dimension_is_searched_by_its_quantile():
    bell = spaces.normal(10, 2)
    assert decode(bell, 0.5) == 10
    assert encode(bell, 10) == 0.5
    assert decode(bell, encode(bell, 13.0)) == pytest.approx(13.0)
    assert 0 < encode(bell, -1000) < encode(bell, 1000) < 1


def test_nothing_else_is_searched():
    with pytest.raises(AssertionError, match="nothing to search for"):
        distribution(SPACE["twice"])


# --------------------------------------------------------------------------------------------- what trials count as


def trials_of(run):
    return run.search._study._study.get_trials(deepcopy=False)


def one_trial(goal=LOSS, make=lambda: TPE()):
    run = Run(make, {"x": spaces.uniform(-1, 1)}, goal)
    run.configs.append({"x": 0.5})
    run.call("added", run.trial(0))
    return run


def test_a_trial_runs_until_it_rests():
    run = one_trial()
    run.call("observe", run.trial(0), 1, {"loss": 3.0})
    assert trials_of(run)[0].state == optuna.trial.TrialState.RUNNING
    run.call("observe", run.trial(0), 2, {"loss": 2.0})
    assert (trials_of(run)[0].state, trials_of(run)[0].value) == (optuna.trial.TrialState.COMPLETE, 2.0)
    # It was paused, and goes on.
    longer = Trial("t0", 0, run.configs[0], 0, 4)
    run.call("observe", longer, 3, {"loss": 1.0})
    assert trials_of(run)[0].value == 1.0
    run.call("ended", longer, TrialState.COMPLETED)
    assert trials_of(run)[0].value == 1.0


def test_a_stopped_trial_counts_with_its_last_value():
    run = one_trial()
    run.call("observe", run.trial(0), 1, {"loss": 3.0})
    run.call("ended", run.trial(0), TrialState.STOPPED)
    assert trials_of(run)[0].value == 3.0


@pytest.mark.parametrize(
    ("metrics", "state"),
    [({}, TrialState.STOPPED), ({"loss": math.nan}, TrialState.COMPLETED), ({"loss": 1.0}, TrialState.FAILED)],
)
def test_a_trial_without_a_value_failed(metrics, state):
    run = one_trial()
    run.call("observe", run.trial(0), 1, metrics)
    run.call("ended", run.trial(0), state)
    assert trials_of(run)[0].state == optuna.trial.TrialState.FAIL


def test_trials_that_fit_nowhere_are_not_heard_of():
    run = one_trial()
    run.configs.append({"x": 5.0})
    run.call("added", run.trial(1))
    run.call("observe", run.trial(1), 2, {"loss": 3.0})
    run.call("ended", run.trial(1), TrialState.COMPLETED)
    assert len(trials_of(run)) == 1


def test_limits_are_told():
    goal = Goal("loss", "min", limits=(Limit.parse("params <= 5"),))
    run = one_trial(goal)
    run.call("observe", run.trial(0), 2, {"loss": 3.0, "params": 7.0})
    assert trials_of(run)[0].constraints == {"params <= 5": 2.0}
    run = one_trial(goal)
    run.call("observe", run.trial(0), 2, {"loss": 3.0})
    assert trials_of(run)[0].state == optuna.trial.TrialState.FAIL


@pytest.mark.parametrize(("mode", "value"), [("min", math.inf), ("max", -math.inf)])
def test_who_knows_no_limits_is_told_the_worst(mode, value):
    goal = Goal("loss", mode, limits=(Limit.parse("params <= 5"),))
    run = one_trial(goal, lambda: CMAES())
    run.call("observe", run.trial(0), 2, {"loss": 3.0, "params": 7.0})
    assert trials_of(run)[0].value == value
    run.call("observe", run.trial(0), 3, {"loss": 3.0, "params": 5.0})
    assert trials_of(run)[0].value == 3.0


def test_all_objectives_are_told():
    run = one_trial(Goal("loss", "min", (("accuracy", "max"),)), lambda: NSGA2())
    run.call("observe", run.trial(0), 2, {"loss": 3.0, "accuracy": 0.5})
    assert trials_of(run)[0].values == [3.0, 0.5]
    assert [direction.name for direction in run.search._study._study.directions] == ["MINIMIZE", "MAXIMIZE"]


def test_earlier_trials_are_learnt_from():
    earlier = [Earlier({"x": number / 20 - 1}, {"loss": (number / 20 - 1.4) ** 2}) for number in range(40)]
    useless = [Earlier({"x": 3.0}, {"loss": 0.0}), Earlier({"y": 0.0}, {"loss": 0.0}), Earlier({"x": 0.0}, {})]
    search = TPE(trials=8)
    search.setup({"x": spaces.uniform(-1, 1)}, seed=0, goal=LOSS)
    assert search.learn([*earlier, *useless]) == 40
    warm = [search.suggest(number).config["x"] for number in range(8)]
    search.setup({"x": spaces.uniform(-1, 1)}, seed=0, goal=LOSS)
    cold = [search.suggest(number).config["x"] for number in range(8)]
    assert sum(abs(x - 0.4) for x in warm) < sum(abs(x - 0.4) for x in cold) / 2


# ---------------------------------------------------------------------------------------------------- the rest


def test_as_many_as_asked():
    search = TPE(trials=2, max_epochs=3, n_startup_trials=1, gamma=None)
    search.setup(SPACE, seed=0, goal=LOSS)
    assert search.trials == 2
    assert search.suggest(1).epochs == 3
    assert search.suggest(2) is None
    assert search.sample(2) is not None
    assert len(search.examples(9)) == 2
    search.extend(trials=1, epochs=2, space={})
    assert search.suggest(2).epochs == 5
    with pytest.raises(UsageError, match="TPE has learned from the current dimensions"):
        search.extend(trials=0, epochs=0, space={"lr": 1})
    assert copy.deepcopy(search).suggest(1) == search.suggest(1)


def test_a_sampler_that_has_nothing_left_ends_the_search():
    run = Run(
        lambda: Optuna(optuna.samplers.GridSampler({"x": [0, 1]}, seed=0), trials=None), {"x": spaces.choice([1, 2])}
    )
    for number in range(2):
        run.configs.append(run.search.suggest(number).config)
        run.call("added", run.trial(number))
    for number in range(2):
        run.call("observe", run.trial(number), 2, {"loss": 1.0})
    assert {config["x"] for config in run.configs} == {1, 2}
    assert run.search.suggest(2) is None


def test_constraints_are_drawn_for():
    search = TPE(trials=None)
    rule = Goal("loss", "min", constraints=(lambda config: config["x"] > 0.5,))
    search.setup({"x": spaces.uniform(-1, 1)}, seed=0, goal=rule)
    assert all(search.suggest(number).config["x"] > 0.5 for number in range(20))
    never = Goal("loss", "min", constraints=(conditional_never,))
    search.setup({"x": spaces.choice([1])}, seed=0, goal=never)
    with pytest.raises(SpaceError, match=f"no configuration satisfied conditional_never in {DRAWS} draws"):
        search.suggest(0)


def test_a_sampler_leaves_choices_that_a_constraint_rejects(monkeypatch):
    """TPE kept choosing the same rejected options, and the experiment ended."""

    def fits(config):
        return config["width"] * config["depth"] in (192, 256)

    dimensions = {"width": spaces.choice([16, 32, 64, 128, 256]), "depth": spaces.choice([1, 2, 3, 4, 5, 6])}
    rule = Goal("loss", "min", constraints=(fits,))

    def configs():
        search = TPE(trials=None, n_startup_trials=4)
        search.setup(dimensions, seed=0, goal=rule)
        for number in range(12):
            config = search.suggest(number).config
            trial = Trial(f"t{number}", number, config, 0, 1)
            search.added(trial)
            search.observe(trial, 1, {"loss": 1 / config["width"] + 1 / config["depth"]})
            yield config

    with warnings.catch_warnings(action="error"):
        assert all(map(fits, configs()))
    # Without telling the sampler of rejections, random draws stand in; the user is told once.
    monkeypatch.setattr(bridge, "UNTOLD", 99)
    with pytest.warns(UserWarning, match="TPE: chose 64 configurations in a row that test_a_sampler") as said:
        assert all(map(fits, configs()))
    assert len(said) == 1


def test_constraints_that_hardly_any_draw_satisfies_say_which_is_to_blame():
    rule = Goal("loss", "min", constraints=(lambda config: config["x"] > 0, conditional_never))
    search = TPE(trials=None)
    search.setup({"x": spaces.uniform(-1, 1)}, seed=0, goal=rule)
    with pytest.raises(SpaceError, match=r"<lambda> allows \d\d\.\d%, conditional_never allows 0\.0%\); make the"):
        search.suggest(0)


def conditional_never(config):
    return False


def test_descriptions():
    search = TPE(trials=4, max_epochs=2, gamma=None, n_startup_trials=3)
    search.setup(SPACE, seed=0, goal=LOSS)
    assert search.describe() == {
        "search": "TPE",
        "trials": 4,
        "max_epochs": 2,
        "sampler": "TPESampler",
        "options": {"constant_liar": True, "gamma": None, "n_startup_trials": 3},
    }
    given = Optuna(optuna.samplers.RandomSampler(seed=1))
    given.setup(SPACE, seed=0, goal=LOSS)
    assert given.describe()["sampler"] == "RandomSampler"
    assert bridge._described(conditional) == "conditional"


def test_values_that_cannot_work():
    with pytest.raises(
        UsageError, match=r"sampler=3: must be an instance of a sampler, e.g. optuna.samplers.TPESampler\(seed=0\)"
    ):
        Optuna(3)
    with pytest.raises(UsageError, match="sampler=<class"):
        Optuna(optuna.samplers.TPESampler)
    with pytest.raises(UsageError, match=r"TPE: .*'n_trials'; did you mean 'trials'\?"):
        TPE(n_trials=8)
    with pytest.raises(UsageError, match=r"TPE: .*'n_startup'; did you mean 'n_startup_trials'\?"):
        TPE(n_startup=8)
    with pytest.raises(UsageError, match=r"TPE: .*unexpected keyword argument 'colour'"):
        TPE(colour=3)
    with pytest.raises(UsageError, match="seed: is derived from Experiment"):
        TPE(seed=3)
    with pytest.raises(UsageError, match=r"metric=\['loss', 'params'\]: CMAES optimises one metric; use hop.NSGA2"):
        CMAES().setup(SPACE, seed=0, goal=MANY)
    with pytest.raises(UsageError, match="trials=0"):
        NSGA2(trials=0)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(bridge, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"this needs cmaes, .*hopfleet\[optuna\]"):
        CMAES()
    monkeypatch.delitem(sys.modules, "hopfleet.search.study")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"this needs Optuna, .*hopfleet\[optuna\]"):
        TPE()
