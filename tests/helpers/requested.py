"""Values of every kind that people, pages and files may send with a request."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2,
    10**6,
    10**6 + 1,
    2**63,
    2**64,
    10**20,
    int("9" * 3000),
    0.0,
    -0.0,
    0.5,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "x",
    "t0001",
    "t0002",
    "t0009",
    "NaN",
    "uniform(0, 0.5)",
    "choice([1, 'a', nan])",
    "grid_search([0.1, 0.2])",
    "banana",
    "\ud800",
    "\x00\x1b[2J",
    "x" * 5000,
    [],
    {},
    [[]],
    {"x": 0.25},
    {"x": math.nan},
    {"x": "uniform(0, 0.25)"},
    {"x": "banana"},
    {"x": {"x": 1}},
    {"": 1},
    {"y": 1},
]
"""Values at and beyond bounds, of the wrong kind, and hard to write down."""


def deep(levels: int, inner: Any = 1) -> Any:
    """Return a dict that is nested this deep."""
    for _ in range(levels):
        inner = {"a": inner}
    return inner


def anything() -> st.SearchStrategy[Any]:
    """Return a strategy for values that JSON can hold, as Python reads and writes it."""
    leaves = st.sampled_from(ODD) | st.integers(-10, 10) | st.floats() | st.text(max_size=5)
    names = st.text(max_size=3) | st.just("x")
    nested = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
    return nested | st.integers(21, 900).map(deep)
