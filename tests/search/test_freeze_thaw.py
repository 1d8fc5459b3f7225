"""Freeze-thaw on curves made up for the purpose, decision by decision."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import UsageError
from hopfleet.search.base import UNLIMITED, Decision, Goal, Search
from hopfleet.search.curve_chooser import MAX_POINTS, OFFERS, Curve, CurveChooser
from hopfleet.search.encoding import Encoding, share, value_at

LOSS = Goal("loss", "min")
SPACE = {"x": hop.uniform(0, 1), "y": hop.loguniform(1e-3, 1)}

Cost = Callable[[Config, int], float]


def bowl(config: Config, epoch: int) -> float:
    """Fall to a level that is best at x = 0.3."""
    return abs(config["x"] - 0.3) + math.exp(-epoch)


class Played:
    """A whole search without a controller: ``width`` trials take turns, an epoch each."""

    def __init__(self, search: Search, cost: Cost, space: Any = None, width: int = 2, goal: Goal = LOSS) -> None:
        self.search, self.cost, self.width = search, cost, width
        search.setup(space or SPACE, seed=1, goal=goal)
        self.trials: dict[str, Trial] = {}
        self.epochs: Counter[str] = Counter()
        self.running: list[str] = []
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.decisions: list[Decision] = []

    def call(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, arguments))
        for decision in getattr(self.search, method)(*arguments) or ():
            self.obey(decision)

    def obey(self, decision: Decision) -> None:
        assert isinstance(decision, hop.Train)
        assert decision.trial not in self.running, "chose a trial that runs"
        assert self.trials[decision.trial].epochs < decision.epochs <= self.search.max_epochs
        self.decisions.append(decision)
        self.trials[decision.trial] = replace(self.trials[decision.trial], epochs=decision.epochs)
        self.running.append(decision.trial)

    def add(self, config: Config, epochs: int, origin: str = "search") -> str:
        number = len(self.trials)
        trial = Trial(f"t{number}", number, config, 0, epochs, origin=origin)
        self.trials[trial.id] = trial
        self.running.append(trial.id)
        self.call("added", trial)
        return trial.id

    def started(self) -> int:
        return sum(trial.origin == "search" for trial in self.trials.values())

    def advance(self) -> bool:
        while len(self.running) < self.width:
            suggestion = self.search.suggest(self.started())
            if suggestion is None:
                break
            self.add(suggestion.config, suggestion.epochs)
        if not self.running:
            for decision in self.search.conclude():
                self.obey(decision)
        if not self.running:
            return False
        self.report(self.running[0])
        return True

    def report(self, name: str) -> None:
        self.running.remove(name)
        self.epochs[name] += 1
        trial, epoch = self.trials[name], self.epochs[name]
        if epoch < trial.epochs:
            self.running.append(name)
        self.call("observe", trial, epoch, {"loss": self.cost(trial.config, epoch)})
        if name not in self.running and epoch >= self.search.max_epochs:
            self.call("ended", self.trials[name], TrialState.COMPLETED)

    def go(self, reports: int = 10_000) -> Played:
        for _ in range(reports):
            if not self.advance():
                return self
        assert reports < 10_000, "the search does not end"
        return self

    def configs(self) -> list[Config]:
        return [trial.config for trial in self.trials.values()]

    def longest(self) -> set[str]:
        return {name for name, epochs in self.epochs.items() if epochs == self.search.max_epochs}


def test_it_looks_where_results_are_good_and_trains_little_elsewhere() -> None:
    played = Played(hop.FreezeThaw(trials=30, max_epochs=9), bowl).go()
    far = [abs(config["x"] - 0.3) for config in played.configs()]
    assert len(far) == 30
    assert np.mean(far[15:]) < 0.5 * np.mean(far[:8])
    assert sum(played.epochs.values()) < 30 * 9 / 2
    best = min(played.trials, key=lambda name: abs(played.trials[name].config["x"] - 0.3))
    assert abs(played.trials[best].config["x"] - 0.3) < 0.02
    assert any(abs(played.trials[name].config["x"] - 0.3) < 0.02 for name in played.longest())


def test_curves_that_cross() -> None:
    """What falls slowly overtakes what begins well: the model learns it from the trials that show it."""

    def cost(config: Config, epoch: int) -> float:
        slow = config["kind"] == "slow"
        return (1.0 - 0.11 * epoch if slow else 0.6 - 0.01 * epoch) + 0.01 * config["x"]

    space = {"kind": hop.choice(["fast", "slow"]), "x": hop.uniform(0, 1)}
    played = Played(hop.FreezeThaw(trials=24, max_epochs=9), cost, space).go()
    spent = Counter(played.trials[name].config["kind"] for name in played.epochs.elements())
    assert spent["slow"] > 1.5 * spent["fast"]
    assert "fast" not in {
        played.trials[name].config["kind"] for name in list(played.trials)[12:] if name in played.longest()
    }


def test_a_late_bloomer_is_thawed() -> None:
    """Trials that were left for others go on when the curves of the others turn out flat."""

    def cost(config: Config, epoch: int) -> float:
        return max(0.0, 0.7 - 0.1 * epoch) if config["x"] == 0 else 0.5

    played = Played(hop.FreezeThaw(trials=12, max_epochs=8), cost, {"x": hop.grid_search([0, 1, 2, 3])}).go()
    chosen = [played.trials[d.trial].config["x"] for d in played.decisions if isinstance(d, hop.Train)]
    assert 0 not in chosen[: len(chosen) // 2]
    assert 0 in {played.trials[name].config["x"] for name in played.longest()}


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


# ------------------------------------------------------------------------------------------ the model's own parts


@pytest.mark.parametrize(
    ("dimension", "value", "entry"),
    [
        (hop.uniform(2, 4), 3.0, 0.5),
        (hop.loguniform(1e-4, 1), 1e-2, 0.5),
        (hop.quniform(0.0, 1.0, 0.25), 0.75, 0.75),
        (hop.randint(0, 5), 3, 0.75),
        (hop.lograndint(1, 17), 4, 0.5),
        (hop.randint(3, 4), 3, 0.5),
        (hop.normal(1, 2), 1.0, 0.5),
        (hop.choice([1, True, "a"]), True, 1.0),
    ],
)
def test_places_of_values(dimension: Any, value: Any, entry: float) -> None:
    assert share(dimension, value) == pytest.approx(entry)
    found = value_at(dimension, entry)
    assert found == pytest.approx(value) if isinstance(value, float) else found is value


def test_what_has_no_place() -> None:
    derived = hop.sample_from(lambda config: 1)
    for wrong in (lambda: share(derived, 1), lambda: value_at(derived, 0.5)):
        with pytest.raises(AssertionError):
            wrong()
    encoding = Encoding({"x": hop.uniform(0, 1), "twice": derived})
    assert list(encoding.dimensions) == ["x"]
    assert np.isnan(encoding.locate({"x": 2.0}, {})).all()


def chooser(count: int, cost: Callable[[int, int], float], epochs: int = 1, longest: int = 9) -> CurveChooser:
    """Return a chooser that knows curves at places 0, 1 / count, ..."""
    found = CurveChooser({"x": spaces.uniform(0, 1)}, longest)
    for number in range(count):
        place = found.locate({"x": number / count}, {})
        found.curves[f"t{number}"] = curve = Curve(number, place, own=True, until=epochs)
        for epoch in range(1, epochs + 1):
            curve.report(epoch, cost(number, epoch))
    found.learn(1)
    return found


def test_no_model_has_more_points_than_it_can_afford() -> None:
    many = chooser(2 * MAX_POINTS, lambda number, epoch: number / epoch, epochs=6)
    told, _ = many._process()
    assert MAX_POINTS / 2 < len(told.costs) <= MAX_POINTS
    # The best curves are known in outline, and some of the others by their last points.
    assert Counter(told.points.trials.tolist())[0] == 5
    assert max(told.points.trials) > MAX_POINTS
    left = [name for name in many.curves if name not in told.names]
    assert many.choose(left, np.random.default_rng(0), {}) is None
    assert many.choose([*left, "t0"], np.random.default_rng(0), None) == "t0"


def test_a_curve_is_outlined() -> None:
    curve = Curve(0, np.zeros(1), own=True, until=9)
    outlines: Mapping[int, list[int]] = {}
    for epoch in range(1, 10):
        curve.report(epoch, 1.0)
        outlines = {**outlines, epoch: curve.some_epochs()}
    assert [outlines[count] for count in (1, 2, 5, 9)] == [[1], [1, 2], [1, 2, 3, 4, 5], [1, 3, 5, 8, 9]]


def test_one_extreme_result_does_not_hide_the_others() -> None:
    """Costs over many orders of magnitude, infinite ones included, stay in a range that a model can learn."""
    found = chooser(
        30, lambda number, epoch: math.inf if number % 5 == 4 else 10.0 ** (max(0, number % 5 - 1) * 9) + number
    )
    told, _ = found._process()
    assert np.abs(told.costs).max() < 50
    assert np.isfinite(told.costs).all()
    order = [told.costs[told.names.index(name)] for name in ("t0", "t5", "t10")]
    assert order == sorted(order)
    assert len(set(order)) == 3


def test_the_model_continues_curves() -> None:
    """It has seen how far curves fall, and expects the same of a curve that has just begun."""
    found = chooser(12, lambda number, epoch: number / 12 + 1 / epoch, epochs=9)
    found.curves["new"] = Curve(99, found.locate({"x": 0.5}, {}), own=True, until=1)
    found.curves["new"].report(1, 0.5 + 1.0)
    for _ in range(100):
        found.learn(1)
    told, fit = found._process()
    means, deviations = fit.predict(found._points(["new", "new", "t6"], [1, 9, 9]), None)
    seen = told.costs[told.points.trials == 6]
    assert abs(means[1] - means[2]) < 0.25 * (seen.max() - seen.min())
    assert means[1] < means[0] - 0.5 * (seen.max() - seen.min())
    assert deviations[2] < deviations[1]


def test_what_runs_is_counted_in() -> None:
    """The results of trials under way are expected as predicted, so others learn less about the same place."""
    found = chooser(8, lambda number, epoch: number / 8 + 1 / epoch, epochs=3)
    _, fit = found._process()
    asked = found._fresh(np.array([[0.93]]), 9)
    assert found._pending() is None
    found.curves["next"] = Curve(50, found.locate({"x": 0.93}, {}), own=True, until=9)
    alone, beside = (fit.predict(asked, pending) for pending in (None, found._pending()))
    assert alone[0] == pytest.approx(beside[0])
    assert beside[1][0] < alone[1][0]


def test_a_space_of_constants() -> None:
    played = Played(hop.FreezeThaw(trials=10, max_epochs=3), lambda config, epoch: config["x"] / epoch, {"x": 1}).go()
    assert {config["x"] for config in played.configs()} == {1}
    assert played.longest()


def test_dimensions_that_come_late() -> None:
    """A function asks for another dimension only once the model is in use."""
    found = chooser(6, lambda number, epoch: number / epoch)
    found._encoding.space = lambda trial: {"x": trial.suggest_float("x", 0, 1), "y": trial.suggest_float("y", 0, 1)}
    assert len(found.offers(np.random.default_rng(0), {})) == OFFERS
    found.curves["late"] = Curve(9, found.locate({"x": 0.1, "y": 0.2}, {}), own=True, until=1)
    assert [sorted(config) for config in found.offers(np.random.default_rng(0), {})] == [["x", "y"]] * OFFERS
