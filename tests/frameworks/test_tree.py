"""Nested state of optimizers comes back exactly."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.errors import CheckpointError
from hopfleet.frameworks.state.tree import Arrays, flatten, unflatten

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner) | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


def arrays() -> Arrays:
    return Arrays(lambda value: isinstance(value, np.ndarray), id)


def round_trip(value: Any) -> Any:
    found = arrays()
    text = json.dumps(flatten(value, found, "root"))
    return unflatten(json.loads(text), lambda name: found.named[name])


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(trees)
def test_round_trip(value: Any) -> None:
    assert round_trip(value) == value


@pytest.mark.parametrize(
    "value",
    [
        Counter({1: 2, 5: 1}),
        deque([1, 2]),
        {3, 1},
        OrderedDict(a=1),
        {"$array": "not a reference"},
        {"$tuple": 1},
        float("inf"),
        np.float64(0.1),
        np.int32(3),
    ],
)
def test_special_values(value: Any) -> None:
    assert round_trip(value) == value


def test_types_survive() -> None:
    assert isinstance(round_trip(Counter({1: 2})), Counter)
    assert isinstance(round_trip((1, 2)), tuple)
    assert round_trip({1: "a", (2, 3): "b"}) == {1: "a", (2, 3): "b"}


def test_arrays_are_named_by_their_place_and_kept_once() -> None:
    shared = np.arange(3)
    found = arrays()
    tree = flatten({"a": {"b": shared}, "c": [shared, np.ones(2)]}, found, "m")
    assert set(found.named) == {"m.a.b", "m.c.1"}
    back = unflatten(tree, lambda name: found.named[name])
    assert back["a"]["b"] is back["c"][0]


def test_what_needs_pickle_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"root\.f: a function cannot be saved without pickle"):
        flatten({"f": lambda: 0}, arrays(), "root")
