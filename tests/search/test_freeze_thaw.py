"""Freeze-thaw on curves made up for the purpose, decision by decision."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import UsageError
from hopfleet.search.base import UNLIMITED, Goal
from tests.helpers.played_search import LOSS, SPACE, Played, bowl


def test_it_looks_where_results_are_good_and_trains_little_elsewhere() -> None:
    played = Played(hop.FreezeThaw(trials=30, max_epochs=9), bowl).go()
    far = [abs(config["x"] - 0.3) for config in played.configs()]
    assert len(far) == 30
    assert np.mean(far[15:]) < 0.5 * np.mean(far[:8])
    assert sum(played.epochs.values()) < 30 * 9 / 2
    best = min(played.trials, key=lambda name: abs(played.trials[name].config["x"] - 0.3))
    assert abs(played.trials[best].config["x"] - 0.3) < 0.02
    assert any(abs(played.trials[name].config["x"] - 0.3) < 0.02 for name in played.longest())


@pytest.mark.slow
def test_curves_that_cross() -> None:
    """What falls slowly overtakes what begins well: the model learns it from the trials that show it."""

    def cost(config: Config, epoch: int) -> float:
        slow = config["kind"] == "slow"
        return (1.0 - 0.11 * epoch if slow else 0.6 - 0.01 * epoch) + 0.01 * config["x"]

    space = {"kind": hop.choice(["fast", "slow"]), "x": hop.uniform(0, 1)}
    played = Played(hop.FreezeThaw(trials=48, max_epochs=9), cost, space).go()
    spent = Counter(played.trials[name].config["kind"] for name in played.epochs.elements())
    assert spent["slow"] > 1.5 * spent["fast"]
    longest = Counter(played.trials[name].config["kind"] for name in played.longest())
    assert longest["slow"] > 2 * longest["fast"]


def test_a_late_bloomer_is_thawed() -> None:
    """Trials that were left for others go on when the curves of the others turn out flat."""

    def cost(config: Config, epoch: int) -> float:
        return max(0.0, 0.7 - 0.1 * epoch) if config["x"] == 0 else 0.5

    played = Played(hop.FreezeThaw(trials=12, max_epochs=8), cost, {"x": hop.grid_search([0, 1, 2, 3])}).go()
    assert 0 in {played.trials[name].config["x"] for name in played.longest()}


def test_the_longer_a_trial_has_trained_the_longer_it_goes_on() -> None:
    """A trial goes on for an epoch or for a quarter of its epochs, so that good ones are finished."""
    played = Played(hop.FreezeThaw(trials=12, max_epochs=40), bowl, width=4).go()
    ends = sorted({decision.epochs for decision in played.decisions if isinstance(decision, hop.Train)})
    assert ends == [2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 40]


def test_diverged_trials_do_not_go_on() -> None:
    def cost(config: Config, epoch: int) -> float:
        return math.nan if config["x"] > 0.4 and epoch > 1 else bowl(config, epoch)

    played = Played(hop.FreezeThaw(trials=20, max_epochs=6), cost).go()
    assert all(played.epochs[name] <= 2 for name, trial in played.trials.items() if trial.config["x"] > 0.4)
    assert {played.trials[name].config["x"] > 0.4 for name in played.longest()} == {False}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_when_all_diverge_nothing_goes_on(value: float) -> None:
    played = Played(hop.FreezeThaw(trials=12, max_epochs=6), lambda config, epoch: value).go()
    assert set(played.epochs.values()) == {1}
    assert played.search.conclude() == ()


def test_when_all_diverge_after_a_good_beginning() -> None:
    played = Played(hop.FreezeThaw(trials=8, max_epochs=6), lambda config, epoch: 1.0 if epoch < 3 else math.nan).go()
    assert set(played.epochs.values()) <= {3, 6}
    assert played.search.conclude() == ()


def test_a_result_outside_a_limit_is_no_good() -> None:
    from hopfleet.domain.objectives import Limit

    goal = Goal("loss", "min", limits=(Limit("loss", ">=", 0.5),))
    played = Played(hop.FreezeThaw(trials=12, max_epochs=4), lambda config, epoch: config["x"], goal=goal).go()
    best = {played.trials[name].config["x"] for name in played.longest()}
    assert best
    assert min(best) >= 0.5


def test_ties() -> None:
    played = Played(hop.FreezeThaw(trials=12, max_epochs=4), lambda config, epoch: 1.0).go()
    assert len(played.trials) == 12
    assert played.longest()


def test_more_is_better_where_it_is() -> None:
    played = Played(hop.FreezeThaw(trials=20, max_epochs=5), lambda c, epoch: c["x"], goal=Goal("loss", "max")).go()
    assert min(played.trials[name].config["x"] for name in played.longest()) > 0.8


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_few_trials(trials: int) -> None:
    """Too few for a model: the best one continues."""
    played = Played(hop.FreezeThaw(trials=trials, max_epochs=5), bowl, width=1).go()
    best = min(played.trials, key=lambda name: abs(played.trials[name].config["x"] - 0.3))
    assert played.longest() == {best}
    assert sum(played.epochs.values()) == trials + 4


def test_one_epoch_only() -> None:
    played = Played(hop.FreezeThaw(trials=10, max_epochs=1), bowl).go()
    assert set(played.epochs.values()) == {1}
    assert played.decisions == []


def test_an_option_that_is_better_is_tried_more_often() -> None:
    def cost(config: Config, epoch: int) -> float:
        return {"a": 0.9, "b": 0.5, "c": 0.2}[config["kind"]] + 0.01 * config["x"] + 1 / epoch

    space = {"kind": hop.choice(["a", "b", "c"]), "x": hop.randint(0, 5), "z": hop.normal(0, 1)}
    played = Played(hop.FreezeThaw(trials=32, max_epochs=5), cost, space).go()
    late = Counter(config["kind"] for config in played.configs()[16:])
    assert late["c"] > 16 * 0.6


def test_grids_are_taken_in_turn() -> None:
    space = {"x": hop.uniform(0, 1), "kind": hop.grid_search(["a", "b", "c"])}
    played = Played(hop.FreezeThaw(trials=21, max_epochs=3), bowl, space).go()
    assert [config["kind"] for config in played.configs()] == ["a", "b", "c"] * 7


def test_steps() -> None:
    played = Played(hop.FreezeThaw(trials=12, max_epochs=7, step=3), bowl).go()
    assert {decision.epochs for decision in played.decisions if isinstance(decision, hop.Train)} == {6, 7}
    assert set(played.epochs.values()) <= {3, 6, 7}
    assert hop.FreezeThaw(max_epochs=2, step=3).step == 3
    assert Played(hop.FreezeThaw(trials=2, max_epochs=2, step=3), bowl).go().decisions == []


# ------------------------------------------------------------------------------------------------- other trials


def test_trials_of_others_inform_but_are_not_continued() -> None:
    def told(spot: float) -> list[float]:
        played = Played(hop.FreezeThaw(trials=9, max_epochs=3), lambda config, epoch: 0.5 + 0.01 * config["x"])
        played.go(9)
        for offset in range(5):
            name = played.add({"x": spot + 0.01 * offset, "y": 0.1}, 1, "person")
            played.call("observe", played.trials[name], 1, {"loss": 0.1})
        suggestions = [played.search.suggest(8) for _ in range(2)]
        assert suggestions[0] == suggestions[1]
        played.go()
        assert all(played.trials[d.trial].origin == "search" for d in played.decisions if isinstance(d, hop.Train))
        return [suggestion.config["x"] for suggestion in suggestions if suggestion is not None]

    assert abs(told(0.1)[0] - 0.12) < 0.2
    assert abs(told(0.8)[0] - 0.82) < 0.2


def test_trials_outside_the_space_do_no_harm() -> None:
    played = Played(hop.FreezeThaw(trials=10, max_epochs=3), lambda config, epoch: 1 / epoch)
    played.add({"x": 7.0, "z": "other"}, 3, "person")
    assert played.go().longest()


def test_a_user_who_stops_and_trains_trials() -> None:
    played = Played(hop.FreezeThaw(trials=6, max_epochs=5), bowl, width=2).go(5)
    name = next(name for name in played.trials if name not in played.running)
    played.call("ended", played.trials[name], TrialState.STOPPED)
    other = next(n for n in played.trials if n not in (*played.running, name))
    played.trials[other] = replace(played.trials[other], epochs=5)
    played.running.append(other)
    at = len(played.decisions)
    played.report(other)
    assert not [d for d in played.decisions[at:] if d.trial == other]  # type: ignore[union-attr]
    played.go()
    assert played.epochs[other] == 5
    assert played.epochs[name] == 1


def test_a_trial_that_fails_makes_room() -> None:
    played = Played(hop.FreezeThaw(trials=6, max_epochs=9), lambda config, epoch: 1 / epoch, width=3).go(8)
    assert played.started() == 6
    failing, at = played.running.pop(0), len(played.decisions)
    played.call("ended", played.trials[failing], TrialState.FAILED)
    assert len(played.decisions) == at + 1
    assert failing not in played.go().running


def test_the_best_trial_is_trained_to_the_end() -> None:
    """Even if the model found nothing worth it: ``conclude`` names the best one that can go on."""
    search = hop.FreezeThaw(trials=3, max_epochs=9)
    search.setup(SPACE, seed=0, goal=LOSS)
    assert search.conclude() == ()
    for number, loss in enumerate((0.2, 0.1, 0.3)):
        trial = Trial(f"t{number}", number, search.draw(number), 0, 1)
        search.added(trial)
        search.observe(trial, 1, {"loss": loss})
    assert search.conclude() == [hop.Train("t1", 9)]
    search.ended(Trial("t1", 1, {}, 0, 1), TrialState.STOPPED)
    assert search.conclude() == [hop.Train("t0", 9)]
    search.observe(Trial("t0", 0, {}, 0, 9), 9, {"loss": 0.05})
    search.ended(Trial("t0", 0, {}, 0, 9), TrialState.COMPLETED)
    assert search.conclude() == ()


# ----------------------------------------------------------------------------------------- contract and options


@pytest.mark.parametrize("reports", [5, 17, 40])
def test_the_same_calls_lead_to_the_same_state(reports: int) -> None:
    played = Played(hop.FreezeThaw(trials=20, max_epochs=6), bowl, width=3).go(reports)
    twin = hop.FreezeThaw(trials=20, max_epochs=6)
    twin.setup(SPACE, seed=1, goal=LOSS)
    for method, arguments in played.calls:
        getattr(twin, method)(*arguments)
    assert twin.suggest(played.started()) == played.search.suggest(played.started())
    assert twin.conclude() == played.search.conclude()
    name = played.running[0]
    report = played.trials[name], played.epochs[name] + 1, {"loss": 0.1}
    assert twin.observe(*report) == played.search.observe(*report)


def test_another_seed_is_another_search() -> None:
    suggestions = []
    for seed in (1, 2):
        search = hop.FreezeThaw()
        search.setup(SPACE, seed=seed, goal=LOSS)
        suggestions.append(search.suggest(0))
    assert suggestions[0] != suggestions[1]


def test_constraints() -> None:
    """Chosen configurations satisfy them as random ones do, even where the best ones would not."""
    goal = Goal("loss", "min", constraints=(lambda config: abs(config["x"] - 0.3) > 0.2,))
    played = Played(hop.FreezeThaw(trials=20, max_epochs=4), bowl, goal=goal).go()
    assert min(abs(config["x"] - 0.3) for config in played.configs()) > 0.2
    spoiled = replace(goal, constraints=(lambda config: config["x"] in allowed,))
    search = hop.FreezeThaw(trials=20, max_epochs=4)
    search.setup(SPACE, seed=1, goal=LOSS)
    allowed = {search.draw(number)["x"] for number in range(20)}
    played = Played(search, bowl, goal=spoiled).go()
    assert {config["x"] for config in played.configs()} <= allowed


def branching(trial: Any) -> dict[str, Any]:
    if trial.suggest_categorical("kind", ["wide", "deep"]) == "wide":
        return {"kind": "wide", "x": trial.suggest_float("x", 0, 1)}
    return {"kind": "deep", "layers": trial.suggest_int("layers", 1, 4), "x": trial.suggest_float("x", 0, 0.01)}


def test_a_space_that_is_a_function() -> None:
    def cost(config: Config, epoch: int) -> float:
        return abs(config["x"] - 0.3) + 0.5 * (config["kind"] == "deep") + math.exp(-epoch)

    played = Played(hop.FreezeThaw(trials=30, max_epochs=4), cost, branching).go()
    late = played.configs()[15:]
    assert [config["kind"] for config in late].count("wide") > 9
    assert all(config["x"] <= 0.01 for config in played.configs() if config["kind"] == "deep")
    assert any(abs(config["x"] - 0.3) < 0.05 for config in late)


def test_more_trials_epochs_and_other_dimensions() -> None:
    played = Played(hop.FreezeThaw(trials=10, max_epochs=3), bowl).go()
    assert played.search.suggest(10) is None
    played.search.extend(trials=20, epochs=2, space={"x": hop.uniform(0.25, 0.35)})
    assert (played.search.trials, played.search.max_epochs) == (30, 5)
    played.go()
    assert all(0.25 <= config["x"] <= 0.35 for config in played.configs()[10:])
    assert len(played.trials) == 30
    assert max(played.epochs.values()) == 5
    played.search.extend(trials=5, epochs=0, space={"y": 0.5})
    played.go()
    assert [config["y"] for config in played.configs()[30:]] == [0.5] * 5


def test_description_and_expectation() -> None:
    search = hop.FreezeThaw(trials=7, max_epochs=5, step=2, concurrency=3)
    search.setup(SPACE, seed=0, goal=LOSS)
    described = {"search": "FreezeThaw", "trials": 7, "max_epochs": 5, "concurrency": 3, "step": 2}
    assert json.loads(json.dumps(search.describe())) == described
    assert (search.expected().epochs, search.expected().bound) == (35, "at most")
    assert search.concurrency(8) == 3
    assert hop.FreezeThaw().concurrency(8) == 16
    assert hop.FreezeThaw(trials=None).trials == UNLIMITED
    assert len(search.examples(100)) == 7


@pytest.mark.parametrize("name", ["trials", "max_epochs", "step"])
def test_odd_arguments(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}=0: must be an integer of at least 1"):
        hop.FreezeThaw(**{name: 0})
    with pytest.raises(UsageError, match="concurrency=0"):
        hop.FreezeThaw(concurrency=0)


def test_a_space_of_constants() -> None:
    played = Played(hop.FreezeThaw(trials=10, max_epochs=3), lambda config, epoch: config["x"] / epoch, {"x": 1}).go()
    assert {config["x"] for config in played.configs()} == {1}
    assert played.longest()
