"""Padding of rows of different lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import DataError


def test_rows_become_one_array_and_a_mask() -> None:
    batch = {"tokens": [np.array([1, 2, 3], "i4"), np.array([4], "i4"), np.array([], "i4")], "y": np.arange(3)}
    padded = hop.pad(batch, "tokens", value=-1)
    assert padded["tokens"].tolist() == [[1, 2, 3], [4, -1, -1], [-1, -1, -1]]
    assert padded["tokens"].dtype == np.int32
    assert padded["tokens_mask"].tolist() == [[True, True, True], [True, False, False], [False, False, False]]
    assert padded["y"] is batch["y"] and len(batch) == 2  # the batch itself is left as it is


def test_lengths_are_rounded_up_and_other_dimensions_padded() -> None:
    batch = {"boxes": [np.ones((3, 4)), np.ones((1, 2))], "same": np.ones((2, 5))}
    padded = hop.pad(batch, "boxes", "same", to_multiple_of=4)
    assert padded["boxes"].shape == (2, 4, 4) and padded["boxes"].sum() == 14
    assert padded["boxes_mask"].tolist() == [[True, True, True, False], [True, False, False, False]]
    assert padded["same"].shape == (2, 8) and padded["same_mask"].sum(axis=1).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("columns", "how", "message"),
    [
        (["token"], {}, r"pad\(batch, 'token'\): there is no such column; the batch has tokens, text, y"),
        (["text"], {}, r"pad\(batch, 'text'\): must be a column of arrays"),
        (["y"], {}, r"pad\(batch, 'y'\): must be a column of arrays"),
        (["tokens"], {"to_multiple_of": 0}, "to_multiple_of=0: must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_padded(columns: list[str], how: dict[str, Any], message: str) -> None:
    batch = {"tokens": [np.ones(2), np.ones(3)], "text": ["a", "b"], "y": np.arange(2)}
    with pytest.raises(DataError, match=message):
        hop.pad(batch, *columns, **how)
