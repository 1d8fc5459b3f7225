"""What a sampler of Optuna sees: the trials so far, rejected choices, and nothing that has to be forgotten."""

from __future__ import annotations

import logging
from typing import Any

import optuna
import pytest

from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.errors import UsageError
from hopfleet.search import optuna as bridge
from hopfleet.search.base import Earlier, Goal
from hopfleet.search.optuna import NSGA2, TPE, Optuna
from hopfleet.search.study import distribution

LOSS = Goal("loss", "min")
LINE = {"x": spaces.uniform(-1, 1)}


class Seeing(optuna.samplers.RandomSampler):
    """Draws at random, and notes what it sees."""

    def __init__(self) -> None:
        super().__init__(seed=0)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        seen = study.user_attrs.get("seen", [])
        assert not study._storage.get_study_system_attrs(study._study_id)
        study._storage.set_study_system_attr(study._study_id, "asked", True)
        study.set_user_attr("seen", [*seen, len(study.get_trials(deepcopy=False))])
        return {}

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        study.set_user_attr("told", [*study.user_attrs.get("told", []), values])


def ready(search: Any, space: Any = None, goal: Goal = LOSS) -> Any:
    search.setup(LINE if space is None else space, seed=3, goal=goal)
    return search


def study_of(search: Any) -> Any:
    return search._study._study


def add(search: Any, number: int, config: Any, epochs: int = 4) -> Trial:
    trial = Trial(f"t{number}", number, config, 0, epochs)
    search.added(trial)
    return trial


def test_rejected_choices_are_seen_as_trials_under_way_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "UNTOLD", 2)
    answers = iter([False] * 6 + [True] * 9)
    search = ready(Optuna(Seeing()), goal=Goal("loss", "min", constraints=(lambda config: next(answers),)))
    config = search.suggest(0).config
    # Each choice is for a trial that is seen as well; the first two that are rejected are not.
    assert study_of(search).user_attrs["seen"] == [1, 1, 1, 2, 3, 4, 5]
    assert study_of(search).get_trials() == []
    trial = add(search, 0, config)
    search.observe(trial, 4, {"loss": 2.0})
    assert [each.value for each in study_of(search).get_trials()] == [2.0]
    search.suggest(1)
    assert study_of(search).user_attrs["seen"][7:] == [2]


def test_a_sampler_of_the_user_hears_of_earlier_trials() -> None:
    search = ready(Optuna(Seeing()))
    assert search.learn([Earlier({"x": 0.5}, {"loss": 7.0})]) == 1
    assert study_of(search).user_attrs["told"] == [[7.0]]


def test_a_trial_that_goes_on_after_its_end_counts_with_its_newest_value() -> None:
    search = ready(TPE())
    trial = add(search, 0, {"x": 0.5})
    search.observe(trial, 1, {"loss": 3.0})
    search.ended(trial, TrialState.STOPPED)
    search.observe(trial, 2, {"loss": 1.0})
    assert study_of(search).get_trials()[0].value == 1.0
    assert study_of(search).best_value == 1.0


@pytest.mark.parametrize("mine", [True, False])
def test_options_that_are_tried_in_turn_are_not_learned(mine: bool) -> None:
    space = {**LINE, "turn": spaces.grid_search([10, 20])}
    search = ready(TPE(), space)
    add(search, 0, search.suggest(0).config if mine else {"x": 0.5, "turn": 20})
    assert list(study_of(search).get_trials()[0].params) == ["x"]


@pytest.mark.parametrize(
    ("space", "shared"), [(LINE, True), (lambda trial: {"x": trial.suggest_float("x", 0, 1)}, False)]
)
def test_what_trials_have_in_common_is_found_once_if_all_have_the_same(space: Any, shared: bool) -> None:
    for search in (ready(TPE(), space), ready(NSGA2(), space)):
        search.suggest(0)
        first = study_of(search).sampler
        search.suggest(1)
        assert study_of(search).sampler is not first
        assert (study_of(search).sampler._search_space is first._search_space) is shared


def test_a_new_study_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.INFO)
    optuna.logging.enable_propagation()
    try:
        with caplog.at_level(logging.INFO):
            ready(TPE())
        assert optuna.logging.get_verbosity() == logging.INFO, "the user's own studies are logged as before"
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(before)
    assert caplog.messages == []


def test_an_option_that_no_sampler_has_is_named_beside_those_that_it_has() -> None:
    with pytest.raises(UsageError, match=r"'n_startup'; did you mean 'n_startup_trials'\?"):
        TPE(gamma=None, n_startup=8)


def test_the_quantiles_of_a_normal_dimension_lie_inside() -> None:
    found = distribution(spaces.normal(0, 1))
    assert 0 < found.low < 1e-3 and found.high == 1 - found.low
