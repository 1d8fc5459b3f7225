"""Values of single steps: names that may be logged, and how curves are thinned out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopfleet.domain.batching import Batching
from hopfleet.domain.step_values import NAMES, bad_name, thinned


@given(count=st.integers(0, 500), most=st.integers(2, 40))
def test_curves_are_thinned_out_evenly(count: int, most: int) -> None:
    places = thinned(range(count), most)
    assert len(places) <= most and places[:1] == [0][:count] and places[-1:] == [count - 1][:count]


@pytest.mark.parametrize("name", ["", 3, None, "x" * 201])
def test_names_are_short_text(name: object) -> None:
    assert bad_name(name, []).startswith("the name must be text of 1 to 200 characters")


def test_a_unit_has_a_bounded_number_of_names() -> None:
    known = [str(number) for number in range(NAMES)]
    assert bad_name("lr", known[1:]) == bad_name("0", known) == ""
    assert bad_name("lr", known).startswith("a unit must log at most 20 names, got one more")


def test_steps_of_each_partition() -> None:
    batching = Batching((7, 6), 1, drop_last=False, epochs=1)
    assert batching.steps(3) == [3, 2] and batching.steps_per_epoch(3) == 5
