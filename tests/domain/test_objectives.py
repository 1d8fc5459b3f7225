"""Limits on metrics, and the Pareto front."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopfleet.domain.objectives import Limit, costs, feasible, front, warning_of_nan
from hopfleet.domain.rowsum import RowSum
from hopfleet.errors import UsageError


@pytest.mark.parametrize(
    ("text", "limit", "again"),
    [
        ("params <= 100000", Limit("params", "<=", 100000.0), "params <= 100000"),
        ("latency<3", Limit("latency", "<", 3.0), "latency < 3"),
        (" val/f1  >=  0.5 ", Limit("val/f1", ">=", 0.5), "val/f1 >= 0.5"),
        ("a > -1e-3", Limit("a", ">", -0.001), "a > -0.001"),
    ],
)
def test_limits_are_read_and_written(text, limit, again):
    assert Limit.parse(text) == limit
    assert str(limit) == again
    assert Limit.parse(again) == limit


@pytest.mark.parametrize("text", ["", "params", "params == 3", "params <= many", "<= 3", "a <= inf", "a < 3 < b"])
def test_other_text_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"constraint '.*': must be a metric, .* e.g. 'params <= 100000'"):
        Limit.parse(text)


@pytest.mark.parametrize(
    ("relation", "kept", "broken"),
    [("<=", [1.0, 2.0], [2.1]), ("<", [1.9], [2.0, 3.0]), (">=", [2.0], [1.9]), (">", [2.1], [2.0])],
)
def test_limits_are_kept_or_not(relation, kept, broken):
    limit = Limit("m", relation, 2.0)
    assert all(feasible([limit], {"m": value}) for value in kept)
    assert not any(feasible([limit], {"m": value}) for value in [*broken, math.nan])
    assert limit.excess({}) == math.inf
    assert not feasible([limit], {})


def test_excess_says_how_far_beyond():
    assert Limit("m", "<=", 2.0).excess({"m": 5.0}) == 3.0
    assert Limit("m", ">", 2.0).excess({"m": 5.0}) == -3.0


def test_costs_are_to_be_made_small():
    objectives = [("accuracy", "max"), ("params", "min")]
    assert costs(objectives, {"accuracy": 0.5, "params": 10.0, "more": 1.0}) == (-0.5, 10.0)
    assert costs(objectives, {"accuracy": math.nan, "params": 10.0}) is None
    assert costs(objectives, {"params": 10.0}) is None


def test_a_metric_that_is_nan_is_named_with_its_rank():
    numbers = {"loss": RowSum.of(0.5, 4), "f1": RowSum.of(math.inf, 4)}
    assert warning_of_nan(numbers, "loss", 2) == ""
    assert warning_of_nan({}, "loss", 2) == ""
    other = warning_of_nan({**numbers, "f1": RowSum.of(math.nan, 4)}, "loss", 2)
    assert other == "the metric 'f1' is NaN after epoch 2"
    goal = warning_of_nan(dict.fromkeys(("f1", "loss"), RowSum.of(math.nan, 4)), "loss", 2)
    assert goal.startswith("the metric 'loss' is NaN after epoch 2; NaN counts as worse than every number")


def test_the_front_of_a_few_points():
    assert front([]) == []
    assert front([(3, 1), (2, 2), (3, 3), (1, 3), (2, 2)]) == [0, 1, 3, 4]


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=12))
def test_the_front_is_what_the_definition_says(points):
    def beats(one, other):
        return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))

    expected = [place for place, point in enumerate(points) if not any(beats(other, point) for other in points)]
    assert front(points) == expected
    assert not any(beats(points[a], points[b]) for a, b in itertools.permutations(front(points), 2))
