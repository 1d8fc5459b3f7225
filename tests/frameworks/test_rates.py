"""Shares of members in the time of a flotilla."""

from __future__ import annotations

import pytest

from hopfleet.frameworks.torch.engines.rates import completed, shares


@pytest.mark.parametrize(
    ("times", "expected"),
    [([1.0, 3.0], [0.25, 0.75]), ([0.0, 0.0], [0.5, 0.5]), ([2.0], [1.0]), ([0.0, 4.0], [0.0, 1.0])],
)
def test_shares(times, expected):
    assert shares(times) == expected


def test_what_was_not_measured_counts_as_the_mean():
    assert completed([1.0, 0.0, 3.0]) == [1.0, 2.0, 3.0]
    assert completed([0.0, 0.0]) == [0.0, 0.0]
