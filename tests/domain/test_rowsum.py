"""Sums over rows: exact, whatever the order and the grouping."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import reduce
from operator import add as plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain.rowsum import RowSum, add, means

quick = settings(deadline=None, max_examples=60)

finite = st.floats(allow_nan=False, allow_infinity=False)
pieces = st.lists(st.tuples(finite, st.integers(1, 10**6)), min_size=1, max_size=12)


def same(first: RowSum, second: RowSum) -> bool:
    totals = (first.total, second.total)
    return first.rows == second.rows and (totals[0] == totals[1] or all(total != total for total in totals))


@quick
@given(pieces, st.randoms(use_true_random=False))
def test_order_does_not_matter(values, rng):
    sums = [RowSum.of(mean, rows) for mean, rows in values]
    shuffled = rng.sample(sums, len(sums))
    assert reduce(plus, shuffled) == reduce(plus, sums)


@quick
@given(pieces, st.integers(0, 12))
def test_grouping_does_not_matter(values, cut):
    sums = [{"m": RowSum.of(mean, rows)} for mean, rows in values]
    assert add([add(sums[:cut]), add(sums[cut:])]) == add(sums)


@quick
@given(st.lists(st.tuples(st.floats(), st.integers(1, 100)), min_size=1, max_size=6))
def test_many_at_once(values):
    sums = [RowSum.of(mean, rows) for mean, rows in values]
    assert same(RowSum.over(*zip(*values, strict=True)), reduce(plus, sums))


def test_many_at_once_by_hand():
    assert RowSum.over([0.5, 0.25, -1.5], [1, 2, 3]) == RowSum(Fraction(-7, 2), 6)
    assert RowSum.over([], []) == RowSum(Fraction(0), 0)
    assert RowSum.over([1.0, math.inf], [1, 2]) == RowSum(math.inf, 3)
    huge, tiny = 1.7e308, 5e-324
    assert RowSum.over([huge, huge, tiny], [1, 1, 1]) == RowSum(2 * Fraction(huge) + Fraction(tiny), 3)
    assert RowSum.over([1.0, 1e-30, -1.0], [2, 2, 2]) == RowSum(2 * Fraction(1e-30), 6)


@quick
@given(pieces)
def test_mean_is_rounded_once(values):
    total = sum(Fraction(mean) * rows for mean, rows in values)
    rows = sum(rows for _, rows in values)
    summed = reduce(plus, (RowSum.of(mean, rows) for mean, rows in values))
    assert summed.mean == float(total / rows)


@quick
@given(st.lists(st.tuples(st.floats(), st.integers(1, 100)), min_size=1, max_size=6), st.randoms())
def test_not_finite_in_any_order(values, rng):
    sums = [RowSum.of(mean, rows) for mean, rows in values]
    assert same(reduce(plus, rng.sample(sums, len(sums))), reduce(plus, sums))


def test_what_is_not_finite_stays_so():
    assert math.isnan((RowSum.of(math.nan, 1) + RowSum.of(1.0, 2)).mean)
    assert (RowSum.of(1.0, 2) + RowSum.of(math.inf, 1)).mean == math.inf
    assert (RowSum.of(-math.inf, 3) + RowSum.of(-math.inf, 1)).mean == -math.inf
    assert math.isnan((RowSum.of(math.inf, 1) + RowSum.of(-math.inf, 1)).mean)


def test_a_total_beyond_floats_meets_infinity():
    assert (RowSum.of(1e308, 1000) + RowSum.of(math.inf, 1)).mean == math.inf
    assert (RowSum.of(1e308, 1000) + RowSum.of(1e308, 500)).mean == 1e308


def test_no_rows_have_no_mean():
    assert math.isnan(RowSum.of(1.0, 0).mean)


@quick
@given(st.floats(), st.integers(0, 10**9))
def test_round_trip_through_json(mean, rows):
    value = RowSum.of(mean, rows)
    assert same(RowSum.decode(json.loads(json.dumps(value.encode()))), value)


def test_add_puts_metrics_together():
    summed = add([{"a": RowSum.of(1.0, 1), "b": RowSum.of(5.0, 1)}, {}, {"a": RowSum.of(4.0, 2)}])
    assert means(summed) == pytest.approx({"a": 3.0, "b": 5.0})
    assert add([]) == {}
