"""The work that a search expects, against the work that it turns out to be."""

from __future__ import annotations

import pytest

from hopfleet.domain.expectation import Expectation
from hopfleet.domain.space import grid_search, uniform
from hopfleet.domain.trial import Trial
from hopfleet.monitor.history import History
from hopfleet.search import Grid, Random
from hopfleet.search.asha import ASHA
from hopfleet.search.base import Goal, Search
from hopfleet.search.halving import SuccessiveHalving
from hopfleet.search.hyperband import Hyperband
from hopfleet.search.optuna import TPE
from hopfleet.search.pbt import PBT
from hopfleet.search.stopping import Budget, Median, Patience, Stopping
from tests.helpers.searched_runs import made

SPACE = {"x": uniform(0, 1)}


def score(trial: Trial, epoch: int) -> dict[str, float]:
    return {"accuracy": trial.config["x"] * epoch}


def prepared(search: Search) -> Search:
    search.setup(SPACE, seed=0, goal=Goal("accuracy", "max"))
    return search


EXACT = [
    Random(trials=5, max_epochs=3),
    TPE(trials=4, max_epochs=2),
    SuccessiveHalving(trials=27, max_epochs=9),
    SuccessiveHalving(trials=2, max_epochs=9),
    Hyperband(max_epochs=9),
    Hyperband(max_epochs=9, trials=20),
    Stopping(Random(trials=None, max_epochs=4), [Budget(epochs=10)]),
    Stopping(Random(trials=30, max_epochs=4), [Budget(trials=6)]),
    Stopping(ASHA(trials=None), [Budget(epochs=12)]),
]


@pytest.mark.parametrize("search", EXACT)
def test_an_exact_expectation_comes_true_and_the_total_never_changes(search: Search) -> None:
    totals: set[int] = set()
    history = made(search, SPACE, score, look=lambda history: totals.add(history.progress().planned))
    expected = history.expected
    assert expected is not None and expected.epochs is not None and expected.bound == "exactly"
    assert history.progress().units() == f"{2 * expected.epochs}/{2 * expected.epochs} units"
    assert totals == {2 * expected.epochs}


@pytest.mark.parametrize(
    "search", [ASHA(trials=27), ASHA(trials=4), ASHA(trials=4, complete_best=False), PBT(population=6, max_epochs=6)]
)
def test_a_rough_expectation_is_near(search: Search) -> None:
    totals: list[int] = []

    def look(history: History) -> None:
        progress = history.progress()
        totals.append(progress.planned)
        assert progress.remaining() != "eta 0s"

    history = made(search, SPACE, score, look=look)
    assert history.expected is not None and history.expected.bound == "about"
    assert 0.5 * totals[0] <= min(totals) <= max(totals) <= 2 * totals[0]
    assert history.progress().planned == history.progress().done == totals[-1]


def test_a_grid_trains_every_point_in_full() -> None:
    grid = Grid(max_epochs=3)
    grid.setup({"a": grid_search([1, 2])}, seed=0, goal=Goal("accuracy", "max"))
    assert grid.expected() == Expectation(6)


class Own(Search):
    """A search of a user, which says nothing about its work."""

    max_epochs = 5
    trials = 3  # type: ignore[assignment]

    def suggest(self, number: int) -> None:
        return None


def test_rules_and_budgets_limit_the_expectation() -> None:
    random = Random(trials=4, max_epochs=5)
    for rules, expected in [
        ([Median()], Expectation(20, "at most")),
        ([Patience(), Budget(epochs=8)], Expectation(8, "at most", capped=True)),
        ([Budget(epochs=8)], Expectation(8, capped=True)),
        ([Budget(epochs=50)], Expectation(20)),
        ([Budget(seconds=60), Budget(seconds=30, target=0.9)], Expectation(20, "at most", seconds=30.0)),
        ([Budget(trials=2)], Expectation(10)),
    ]:
        assert prepared(Stopping(random, rules)).expected() == expected
    unlimited = prepared(Stopping(ASHA(trials=None), [Budget(seconds=60)]))
    assert unlimited.expected() == Expectation(None, "about", seconds=60.0)
    assert prepared(Hyperband(trials=None)).expected().epochs is None
    assert prepared(Own()).expected() == Expectation(15, "at most")


def test_points_to_try_first_come_on_top() -> None:
    assert prepared(Random(trials=4, max_epochs=5)).expected(2) == Expectation(30)
    assert prepared(Random(trials=None)).expected(2) == Expectation(None)
    budget = prepared(Stopping(Random(trials=4, max_epochs=5), [Budget(epochs=22)]))
    assert budget.expected(2) == Expectation(22, capped=True)


def test_an_expectation_survives_its_definition() -> None:
    expected = Expectation(8, "at most", capped=True, seconds=3.0)
    assert Expectation.parse(expected.as_json()) == expected
    for damaged in (None, 3, {}, {"epochs": "x", "bound": "exactly"}, {"epochs": 3, "bound": "maybe"}):
        assert Expectation.parse(damaged) is None
    assert Expectation.parse({"epochs": 3, "bound": "about", "seconds": "x", "more": 1}) == Expectation(3, "about")
