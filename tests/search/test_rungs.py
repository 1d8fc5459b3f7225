"""Samplers inside searches that compare trials at rungs: they learn from one rung at a time."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("optuna")

import optuna

import hopfleet as hop
from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.search import optuna as bridge
from hopfleet.search.base import Earlier, Goal
from tests.helpers.optuna_runs import SPACE, Run

STATE = optuna.trial.TrialState
LOSS = Goal("loss", "min")


class Played:
    """A sampler inside ASHA with rungs at 1, 3 and 9 epochs, and its study."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, points: int = 2) -> None:
        monkeypatch.setattr(bridge, "POINTS", points)
        self.search = hop.ASHA(trials=None, max_epochs=9, sampler=hop.TPE())
        self.search.setup({"x": spaces.uniform(-1, 1)}, seed=0, goal=LOSS)

    def add(self, number: int) -> None:
        suggestion = self.search.suggest(number)
        assert suggestion is not None
        self.search.added(Trial(f"t{number}", number, suggestion.config, 0, 1))

    def reach(self, number: int, epoch: int, loss: float) -> None:
        self.search.observe(Trial(f"t{number}", number, {"x": 0.0}, 0, epoch), epoch, {"loss": loss})

    @property
    def seen(self) -> list[float | None]:
        """The value of each trial as the sampler sees it; None while it runs."""
        trials = self.search.sampler._study._study.get_trials(deepcopy=False)  # type: ignore[attr-defined]
        return [each.value if each.state == STATE.COMPLETE else None for each in trials]


def test_values_of_one_rung_count(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    for number in range(4):
        played.add(number)
        played.reach(number, 1, 10.0 + number)
    assert played.seen == [10.0, 11.0, 12.0, 13.0]
    played.reach(1, 2, 5.0)  # no rung
    played.reach(1, 3, 3.0)
    assert played.seen == [10.0, 11.0, 12.0, 13.0]  # one trial is not enough
    played.reach(2, 3, 4.0)
    assert played.seen == [None, 3.0, 4.0, None]
    played.reach(0, 1, 10.0)
    played.reach(3, 3, 6.0)
    assert played.seen == [None, 3.0, 4.0, 6.0]
    played.add(4)
    played.reach(4, 1, 1.0)
    assert played.seen == [None, 3.0, 4.0, 6.0, None]
    for number, loss in ((1, 0.5), (3, 0.7)):
        played.reach(number, 9, loss)
    assert played.seen == [None, 0.5, None, 0.7, None]


def test_failed_trials_and_those_of_earlier_experiments_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert played.search.learn([Earlier({"x": 0.3}, {"loss": 0.1})]) == 1
    for number in range(4):
        played.add(number)
        played.reach(number, 1, 10.0 + number)
    played.search.ended(Trial("t0", 0, {"x": 0.0}, 0, 1), TrialState.FAILED)
    played.reach(1, 3, math.nan)
    played.reach(2, 3, 4.0)
    trials = played.search.sampler._study._study.get_trials(deepcopy=False)  # type: ignore[attr-defined]
    states = [each.state for each in trials]
    assert states == [STATE.COMPLETE, STATE.FAIL, STATE.FAIL, STATE.COMPLETE, STATE.RUNNING]
    assert trials[0].value == 0.1


def test_every_second_configuration_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    drawn = []
    for number in range(30):
        suggestion = played.search.suggest(number)
        assert suggestion is not None
        drawn.append(suggestion.config == played.search.draw(number))
        played.add(number)
        played.reach(number, 1, abs(suggestion.config["x"] - 0.5))
    assert drawn[1::2] == [True] * 15 and not any(drawn[0::2])


@pytest.mark.parametrize("make", [hop.SuccessiveHalving, hop.Hyperband, hop.ASHA])
def test_searches_with_rungs_say_where_they_are(make: type) -> None:
    search = make(max_epochs=9, sampler=hop.TPE())
    search.setup({"x": spaces.uniform(-1, 1)}, seed=0, goal=LOSS)
    assert list(search.sampler.rungs) == [1, 3, 9]
    population = hop.PBT(population=4, max_epochs=4, sampler=hop.TPE())
    population.setup({"x": spaces.uniform(-1, 1)}, seed=0, goal=LOSS)
    assert list(population.sampler.rungs) == []


def test_a_resumed_sampler_goes_on_as_an_undisturbed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "POINTS", 3)

    def make() -> hop.TPE:
        sampler = hop.TPE(trials=None)
        sampler.rungs = (1, 2)
        return sampler

    undisturbed = Run(make, SPACE).steps(24)
    disturbed = Run(make, SPACE).steps(12)
    disturbed.resume()
    disturbed.steps(12)
    assert disturbed.configs == undisturbed.configs
