"""What freeze-thaw knows of configurations and curves: places, points and predictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain import space as spaces
from hopfleet.search.curve_chooser import APART, MAX_POINTS, OFFERS, Curve, CurveChooser
from hopfleet.search.encoding import Encoding, share, value_at


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
    assert Counter(told.points.trials.tolist())[0] == 3
    assert max(told.points.trials) > MAX_POINTS


def test_trials_that_the_model_was_not_told_of_are_judged_by_their_last_results(monkeypatch: Any) -> None:
    monkeypatch.setattr(CurveChooser, "dares", lambda self, rng: False)
    many = chooser(2 * MAX_POINTS, lambda number, epoch: 1.0 + number * 37 % 101 / epoch, epochs=3)
    for _ in range(20):
        many.learn(1)
    left = [name for name in many.curves if name not in many._told().newest]
    assert len(left) > MAX_POINTS / 2
    many.curves[left[-1]].report(3, 0.5)
    assert many.choose(left, np.random.default_rng(0), more=False) == left[-1]


def test_one_more_result_counts_as_if_the_model_had_been_told() -> None:
    found = chooser(12, lambda number, epoch: number / 12 + 1 / epoch, epochs=3)
    told, fit = found._process()
    found.curves["new"] = Curve(99, found.locate({"x": 0.45}, {}), own=True, until=2)
    asked = [np.array([found._lag(9)] * 2)]
    last = found._points(["new", "t3"], [2, 3])
    costs = np.array([told.level(0.7), told.level(3 / 12 + 1 / 3)])
    means, deviations = fit.proceed(last, costs, np.array([False, True]), asked)[0]
    found.curves["new"].report(2, 0.7)
    owners = [name for name in [*told.newest, "new"] for _ in range(3 if name != "new" else 1)]
    points = found._points(owners, [*[1, 2, 3] * 12, 2])
    full = found._model.fit(points, np.append(told.costs, costs[0]))
    expected = full.predict(replace(found._points(["new"], [9])), None)
    assert (means[0], deviations[0]) == pytest.approx((expected[0][0], expected[1][0]))
    known = fit.predict(found._points(["t3"], [9]), None)
    assert (means[1], deviations[1]) == pytest.approx((known[0][0], known[1][0]))


def test_each_stage_gets_its_share() -> None:
    """New trials, those of one epoch, of two or three, and of four to seven are chosen equally often."""
    found = chooser(12, lambda number, epoch: number / 12 + 1 / epoch, epochs=7)
    for number, curve in enumerate(found.curves.values()):
        curve.epoch = [1, 3, 7][number % 3]
    rng = np.random.default_rng(0)
    chosen = [found.choose(list(found.curves), rng, more=True) for _ in range(400)]
    counts = Counter(name and found.curves[name].epoch for name in chosen)
    assert set(counts) == {None, 1, 3, 7}
    assert all(70 < count < 130 for count in counts.values())


def test_new_configurations_stay_away_from_known_ones() -> None:
    found = chooser(10, lambda number, epoch: abs(number / 10 - 0.3) + 1 / epoch)
    rng = np.random.default_rng(0)
    offered = [config["x"] for _ in range(20) for config in found.offers(rng, {})[:1]]
    assert min(abs(x - number / 10) for x in offered for number in range(10)) >= APART / 10 - 1e-6


def test_where_everything_is_known_something_is_offered_all_the_same() -> None:
    found = CurveChooser({"x": spaces.choice([1, 2])}, 9)
    for number in range(6):
        found.curves[f"t{number}"] = curve = Curve(number, found.locate({"x": 1 + number % 2}, {}), own=True, until=1)
        curve.report(1, float(number % 2))
    assert {config["x"] for config in found.offers(np.random.default_rng(0), {})} <= {1, 2}


def test_a_curve_is_outlined() -> None:
    curve = Curve(0, np.zeros(1), own=True, until=9)
    outlines: Mapping[int, list[int]] = {}
    for epoch in range(1, 10):
        curve.report(epoch, 1.0)
        outlines = {**outlines, epoch: curve.some_epochs()}
    assert [outlines[count] for count in (1, 2, 5, 9)] == [[1], [1, 2], [1, 3, 5], [1, 5, 9]]


def test_one_extreme_result_does_not_hide_the_others() -> None:
    """Costs over many orders of magnitude, infinite ones included, stay in a range that a model can learn."""
    found = chooser(
        30, lambda number, epoch: math.inf if number % 5 == 4 else 10.0 ** (max(0, number % 5 - 1) * 9) + number
    )
    told, _ = found._process()
    assert np.abs(told.costs).max() < 50
    assert np.isfinite(told.costs).all()
    order = [told.costs[told.points.trials == number][0] for number in (0, 5, 10)]
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


def test_dimensions_that_come_late() -> None:
    """A function asks for another dimension only once the model is in use."""
    found = chooser(6, lambda number, epoch: number / epoch)
    found._encoding.space = lambda trial: {"x": trial.suggest_float("x", 0, 1), "y": trial.suggest_float("y", 0, 1)}
    assert len(found.offers(np.random.default_rng(0), {})) == OFFERS
    found.curves["late"] = Curve(9, found.locate({"x": 0.1, "y": 0.2}, {}), own=True, until=1)
    assert [sorted(config) for config in found.offers(np.random.default_rng(0), {})] == [["x", "y"]] * OFFERS
