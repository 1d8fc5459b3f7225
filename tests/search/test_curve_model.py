"""What freeze-thaw knows of configurations and curves: places, points and predictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain import space as spaces
from hopfleet.search.curve_chooser import MAX_POINTS, OFFERS, Curve, CurveChooser
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


def test_dimensions_that_come_late() -> None:
    """A function asks for another dimension only once the model is in use."""
    found = chooser(6, lambda number, epoch: number / epoch)
    found._encoding.space = lambda trial: {"x": trial.suggest_float("x", 0, 1), "y": trial.suggest_float("y", 0, 1)}
    assert len(found.offers(np.random.default_rng(0), {})) == OFFERS
    found.curves["late"] = Curve(9, found.locate({"x": 0.1, "y": 0.2}, {}), own=True, until=1)
    assert [sorted(config) for config in found.offers(np.random.default_rng(0), {})] == [["x", "y"]] * OFFERS
