"""Searches and rules at their edges: defaults, ties, what is full or spent, and what a sampler is asked for."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.domain.bounds import MOST
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.trial import Parent, Trial, TrialState
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search.base import UNLIMITED, Goal, Search
from hopfleet.search.sampled import Sampled

LOSS = Goal("loss", "min")
SPACE = {"x": hop.uniform(0, 1)}
OPTIONS = {"x": hop.choice([1, 2])}


def ready(search: Search, space: Any = None, goal: Goal = LOSS) -> Any:
    search.setup(SPACE if space is None else space, seed=3, goal=goal)
    return search


def trial(number: int, config: Any = None, epochs: int = 9, **given: Any) -> Trial:
    return Trial(f"t{number}", number, {"x": 0.5} if config is None else config, 0, epochs, **given)


def begin(search: Search, count: int) -> list[Trial]:
    """Add the first trials that a search suggests."""
    trials = []
    for number in range(count):
        suggestion = search.suggest(number)
        assert suggestion is not None
        trials.append(trial(number, suggestion.config, suggestion.epochs))
        search.added(trials[-1])
    return trials


# ------------------------------------------------------------------------------------------------- defaults

NONE: dict[str, Any] = {}
RANDOM = {"search": "Random"}
HALVED = {"eta": 3, "sampler": RANDOM}
POPULATION = {"population": 16, "interval": 1, "quantile": 0.25, "resample": 0.25, "explore": None}
TPE = {"sampler": "TPESampler", "options": {"constant_liar": True}}
QUIET = {"warn_independent_sampling": False}
DESCRIBED: list[tuple[Any, int, int, dict[str, Any]]] = [
    (hop.Random, 16, 10, NONE),
    (hop.Grid, 2, 10, NONE),
    (hop.ASHA, 64, 9, {**HALVED, "min_epochs": 1}),
    (hop.SuccessiveHalving, 27, 9, {**HALVED, "min_epochs": 1}),
    (hop.Hyperband, 143, 81, HALVED),
    (hop.PBT, 16 * 21, 20, {**POPULATION, "perturb": [0.8, 1.2], "sampler": RANDOM}),
    (hop.TPE, 16, 10, TPE),
    (hop.Optuna, 16, 10, TPE),
    (hop.GP, 16, 10, {"sampler": "GPSampler", "options": QUIET}),
    (hop.CMAES, 16, 10, {"sampler": "CmaEsSampler", "options": QUIET}),
    (hop.NSGA2, 16, 10, {"sampler": "NSGAIISampler", "options": {}}),
]


@pytest.mark.parametrize(("make", "trials", "epochs", "more"), DESCRIBED, ids=[make.__name__ for make, *_ in DESCRIBED])
def test_a_search_without_arguments(make: Any, trials: int, epochs: int, more: dict[str, Any]) -> None:
    expected = {"search": make.__name__, "trials": trials, "max_epochs": epochs, **more}
    assert ready(make(), OPTIONS).describe() == expected


def test_hyperband_without_end() -> None:
    described = ready(hop.Hyperband(trials=None)).describe()
    assert (described["trials"], described["repeats"]) == (UNLIMITED, True)


def test_rules_without_arguments_and_what_a_budget_leaves_out() -> None:
    assert hop.Median().describe() == {"rule": "Median", "grace_epochs": 1, "min_trials": 3}
    assert hop.Patience().describe() == {"rule": "Patience", "epochs": 3, "min_delta": 0.0}
    assert hop.Budget(epochs=4).describe() == {"rule": "Budget", "epochs": 4}
    assert hop.Budget(seconds=2, target=0.0).describe() == {"rule": "Budget", "seconds": 2.0, "target": 0.0}


@pytest.mark.parametrize("make", [hop.Random, hop.Grid, hop.ASHA, hop.TPE, hop.CMAES])
def test_a_concurrency_is_described_and_bounded(make: Any) -> None:
    for value in (5, MOST, "workers"):
        search = ready(make(concurrency=value), OPTIONS)
        assert search.describe()["concurrency"] == value
        assert search.concurrency(7) == (7 if value == "workers" else value)
    with pytest.raises(UsageError, match=f"concurrency={MOST + 1}: must be a number of trials"):
        make(concurrency=MOST + 1)


class Mine(Search):
    """As little as a search can be."""

    max_epochs = trials = 1  # type: ignore[assignment]

    def suggest(self, number: int) -> None:
        return None


def test_searches_and_rules_of_users_explain_wrong_arguments() -> None:
    class Better(Mine):
        def __init__(self, trials: int) -> None:
            pass

    class Rule(hop.StoppingRule):
        def __init__(self, epochs: int) -> None:
            pass

    with pytest.raises(TypeError, match=r"Better\(\).*'n_trials'; did you mean 'trials'\?"):
        Better(n_trials=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Rule\(\).*'patience'; did you mean 'epochs'\?"):
        Rule(patience=3)  # type: ignore[call-arg]


def test_what_a_search_or_a_rule_does_unless_it_knows_better() -> None:
    search = ready(Mine())
    assert search.over(1e9) == "" and search.observe(trial(0), 1, {}) == search.conclude() == ()
    for rule in (hop.StoppingRule(), hop.Median(), hop.Budget(epochs=9)):
        rule.setup(LOSS)
        assert rule.observe(trial(0), 1, {"loss": 1.0}) == ""
        assert rule.over(1e9) == ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hop.PBT(perturb=(0, 2)), r"perturb=\(0, 2\): must be numbers above 0"),
        (lambda: hop.PBT(perturb=(math.inf,)), r"perturb=\(inf,\): must be numbers above 0"),
        (lambda: hop.Budget(seconds=math.inf), r"seconds=inf: must be a number of at least 0"),
        (lambda: hop.Patience(min_delta=math.inf), r"min_delta=inf: must be a number of at least 0"),
    ],
)
def test_numbers_without_end_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


# ---------------------------------------------------------------------------------------- rungs and brackets


def test_the_brackets_of_few_epochs() -> None:
    """As in the paper, with S = 0, 1 and 3."""
    assert hop.Hyperband(max_epochs=2, eta=3).table == [(1, [2])]
    assert hop.Hyperband(max_epochs=3, eta=3).table == [(3, [1, 3]), (2, [3])]
    assert [size for size, _ in hop.Hyperband(max_epochs=27, eta=3).table] == [27, 12, 6, 4]


def test_a_bracket_of_one_trial_counts() -> None:
    assert hop.SuccessiveHalving(trials=1, max_epochs=9).planned(1) == Expectation(9)
    assert hop.SuccessiveHalving(trials=27, max_epochs=9).planned(28) == Expectation(27 + 9 * 2 + 3 * 6 + 9)


def test_the_best_of_the_highest_rung_is_completed_whatever_others_did_before() -> None:
    search = ready(hop.ASHA(trials=4, max_epochs=9))
    trials = begin(search, 4)
    for number, loss in enumerate((0.4, 0.1, 0.3)):
        decisions = search.observe(trials[number], 1, {"loss": loss})
    assert decisions == [hop.Train("t1", 3)]
    search.observe(trials[1], 3, {"loss": 0.9})
    search.observe(trials[3], 1, {"loss": 0.05})
    assert search.conclude() == [hop.Train("t1", 9)]


def test_a_trial_that_diverged_is_not_completed() -> None:
    search = ready(hop.ASHA(trials=1, max_epochs=9))
    (only,) = begin(search, 1)
    search.observe(only, 1, {"loss": math.nan})
    assert search.conclude() == ()


# ------------------------------------------------------------------------------------------------ samplers


def test_a_sampler_gets_new_dimensions_and_nothing_else() -> None:
    """A grid takes no more trials, and the rungs of ASHA no more epochs."""
    grid = ready(hop.ASHA(trials=2, sampler=hop.Grid()), OPTIONS)
    grid.extend(trials=0, epochs=0, space={"x": hop.choice([1, 2, 3])})
    assert (grid.sampler.trials, grid.sampler.max_epochs) == (3, 10)
    assert grid.space == {"x": hop.choice([1, 2, 3])}
    for trials in (2, 3):
        nested = ready(hop.ASHA(trials=trials, sampler=hop.ASHA(trials=2)))
        assert (nested.sampler.trials, nested.suggest(2) is None) == (trials, trials == 2)
        nested.extend(trials=1, epochs=0, space={"x": hop.uniform(5, 6)})
        assert nested.sampler.trials == trials + 1 and nested.suggest(trials).config["x"] >= 5


class Counted(hop.Random):
    extensions = 0

    def extend(self, *, trials: int, epochs: int, space: Any) -> None:
        self.extensions += 1
        super().extend(trials=trials, epochs=epochs, space=space)


@pytest.mark.parametrize(("trials", "extensions"), [(3, 0), (4, 0), (5, 1)])
def test_a_sampler_with_enough_trials_is_left_alone(trials: int, extensions: int) -> None:
    search = ready(hop.ASHA(trials=trials, sampler=Counted(trials=4)))
    assert (search.sampler.extensions, search.sampler.trials) == (extensions, max(4, trials))
    assert len(search.examples(9)) == trials


class Through(Sampled):
    """A search that only passes on what its sampler suggests."""

    trials = 3  # type: ignore[assignment]

    def suggest(self, number: int) -> None:
        return None


def test_a_search_with_a_sampler_decides_nothing_unless_it_knows_better() -> None:
    search = ready(Through(3, None))
    assert search.observe(trial(0), 1, {"loss": 1.0}) == search.ended(trial(0), TrialState.FAILED) == ()


def test_a_grid_grows_more_than_once() -> None:
    grid = ready(hop.Grid(), {"a": hop.choice([1, 2]), "b": hop.choice([5])})
    grid.extend(trials=0, epochs=0, space={"a": hop.choice([1, 2, 3])})
    grid.extend(trials=0, epochs=0, space={"b": hop.choice([5, 6])})
    configs = [grid.suggest(number).config for number in range(grid.trials)]
    assert len(configs) == 6 and {"a": 3, "b": 6} in configs


def test_a_grid_says_what_it_cannot_enumerate_before_it_is_asked_to_grow() -> None:
    with pytest.raises(SpaceError, match="a grid cannot enumerate it"):
        hop.Grid.check_extension(trials=0, epochs=0, space=SPACE)


# ----------------------------------------------------------------------------------------------- populations


def test_a_quarter_of_eight_is_two() -> None:
    """Also where the quarter is not exact in binary, and while only some have reported."""
    search = ready(hop.PBT(population=8, max_epochs=9))
    trials = begin(search, 8)
    decided = [bool(search.observe(each, 1, {"loss": float(each.number)})) for each in trials]
    assert decided == [False] * 3 + [True] * 5, "of four that have reported, the worst is one"
    decided = [bool(search.observe(each, 2, {"loss": float(each.number)})) for each in trials]
    assert decided == [False] * 6 + [True] * 2
    search = ready(hop.PBT(population=100, max_epochs=9, quantile=0.29))
    for each in begin(search, 100):
        search.observe(each, 1, {"loss": float(each.number)})
    assert 0.29 * 100 < 29 and search.observe(trial(71), 2, {"loss": 71.0})


def test_ties_go_to_the_member_that_began_first() -> None:
    search = ready(hop.PBT(population=4, max_epochs=9))
    trials = begin(search, 4)
    for each in trials[:3]:
        search.observe(each, 1, {"loss": 1.0})
    assert [clone.parent for clone in search.observe(trials[3], 1, {"loss": 2.0})] == ["t0"]
    assert search.observe(trials[2], 2, {"loss": 2.0}) == (), "t3 is as bad, and began later"
    assert search.observe(trials[3], 2, {"loss": 2.0})


def replaced(search: Any, decision: Any, number: int, **given: Any) -> Trial:
    clone = trial(number, decision.config, origin="clone", parent=Parent(decision.parent, 1, {}), **given)
    search.added(clone)
    return clone


def test_a_trial_takes_the_place_of_a_member_once() -> None:
    search = ready(hop.PBT(population=2, max_epochs=9, quantile=0.5))
    first, second = begin(search, 2)
    search.observe(first, 1, {"loss": 0.1})
    (wanted,) = search.observe(second, 1, {"loss": 0.9})
    replaced(search, wanted, 2)
    stranger = replaced(search, wanted, 3)  # a person has cloned the same
    assert search.observe(stranger, 1, {"loss": 9.0}) == ()
    assert search.observe(trial(2), 1, {"loss": 9.0})


def test_a_trial_whose_clone_was_dropped_keeps_its_place() -> None:
    search = ready(hop.PBT(population=2, max_epochs=9, interval=2, quantile=0.5))
    first, second = begin(search, 2)
    search.observe(first, 2, {"loss": 0.1})
    (wanted,) = search.observe(second, 2, {"loss": 0.9})
    assert search.observe(second, 3, {"loss": 0.9}) == ()
    replaced(search, wanted, 2)  # by a person, and too late
    assert [clone.replaces for clone in search.observe(second, 4, {"loss": 0.9})] == ["t1"]


def test_places_change_hands_once_per_whole_interval() -> None:
    search = ready(hop.PBT(population=2, max_epochs=5, interval=2, quantile=0.5))
    assert search.trials == 2 * (1 + 2)
    first, last = begin(search, 2)
    search.observe(first, 1, {"loss": 0.1})
    for number in (2, 3):
        (wanted,) = search.observe(last, 2, {"loss": 0.9})
        last = replaced(search, wanted, number)
    assert search.observe(last, 2, {"loss": 0.9}) == ()


def test_a_trial_that_has_trained_to_the_end_is_not_replaced() -> None:
    search = ready(hop.PBT(population=2, max_epochs=3, quantile=0.5))
    first, second = begin(search, 2)
    search.observe(first, 2, {"loss": 0.1})
    assert search.observe(second, 3, {"loss": 0.9}) == ()


def test_derived_values_follow_what_is_explored() -> None:
    space = {"x": hop.uniform(0, 1), "twice": hop.sample_from(lambda config: 2 * config["x"])}
    search = ready(hop.PBT(explore=["twice", "x"]), space)
    child = search._explored({"x": 0.25, "twice": 0.5}, random.Random(0))
    assert child["x"] != 0.25 and child["twice"] == 2 * child["x"]


class Zero(random.Random):
    """The smallest draw there is."""

    def random(self) -> float:
        return 0.0


def test_without_resampling_nothing_is_drawn_again() -> None:
    search = ready(hop.PBT(resample=0, perturb=(1.2,)))
    assert search._moved(SPACE["x"], 0.5, Zero()) == pytest.approx(0.6)


def test_a_population_is_expected_to_train_in_full() -> None:
    search = hop.PBT(population=4, max_epochs=6)
    assert search.planned(99) == Expectation(24, "about") and search.planned(3) == Expectation(18, "about")


# ---------------------------------------------------------------------------------------------- stopping rules


def test_who_listens_to_results() -> None:
    for search, rules, listens in [
        (hop.Random(), [], False),
        (hop.Random(), [hop.Median()], True),
        (hop.ASHA(), [], True),
    ]:
        assert hop.Stopping(search, rules).listens is listens


class Recorded(hop.StoppingRule):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def added(self, trial: Trial) -> None:
        self.heard.append(f"added {trial.id}")

    def ended(self, trial: Trial) -> None:
        self.heard.append(f"ended {trial.id}")


def test_a_rule_hears_of_every_trial() -> None:
    rule = Recorded()
    search = ready(hop.Stopping(hop.Random(), [rule]))
    (first,) = begin(search, 1)
    search.ended(first, TrialState.COMPLETED)
    assert rule.heard == ["added t0", "ended t0"]


def test_patience_begins_anew_for_a_trial_that_a_person_resumes() -> None:
    rule = hop.Patience(epochs=2)
    rule.setup(LOSS)
    only = trial(0)
    for loss in (1.0, 1.0):
        assert rule.observe(only, 1, {"loss": loss}) == ""
    rule.ended(only)
    assert [rule.observe(only, 2, {"loss": 1.0}) for _ in range(3)] == ["", "", "no better for 2 epochs"]


def test_a_trial_that_ended_is_not_stopped_again() -> None:
    search = ready(hop.Stopping(hop.Random(max_epochs=9), [hop.Patience(epochs=1)]))
    (only,) = begin(search, 1)
    search.observe(only, 1, {"loss": 1.0})
    search.ended(only, TrialState.STOPPED)
    assert [search.observe(only, epoch, {"loss": 1.0}) for epoch in (2, 3)] == [[], []]


class Eager(hop.Random):
    def observe(self, trial: Trial, epoch: int, metrics: Any) -> list[Any]:
        return [hop.Clone("t0", {"x": 0.1}), hop.Train("t0", 3)]


def test_a_full_budget_of_trials_drops_clones_alone() -> None:
    search = ready(hop.Stopping(Eager(), [hop.Budget(trials=2)]))
    first, *_ = begin(search, 1)
    assert search.observe(first, 1, {"loss": 1.0}) == [hop.Clone("t0", {"x": 0.1}), hop.Train("t0", 3)]
    search.added(trial(1))
    assert search.observe(first, 2, {"loss": 1.0}) == [hop.Train("t0", 3)]


def test_the_tightest_of_several_budgets_counts() -> None:
    search = hop.Stopping(hop.Random(), [hop.Budget(epochs=9), hop.Budget(epochs=4), hop.Median()])
    assert search.epoch_limit == 4 and search.streams
    assert hop.Stopping(hop.Random(), [hop.Median()]).epoch_limit is None
    assert hop.Stopping(hop.Stopping(hop.Random(), [hop.Budget(epochs=3)]), []).epoch_limit == 3


def test_a_budget_of_as_many_epochs_as_expected_caps_nothing() -> None:
    search = ready(hop.Stopping(hop.Random(trials=4, max_epochs=5), [hop.Budget(epochs=20)]))
    assert search.expected() == Expectation(20)
