"""Mistakes in the data."""

from __future__ import annotations

import numpy as np

from hopfleet.errors import DataError
from tests.helpers.mistakes import Mistake, fit

MISTAKES = [
    Mistake(
        "columns of different lengths",
        lambda: fit(train={"x": np.zeros(4), "y": np.zeros(5)}),
        DataError,
        ("'x' and 'y'", "4 and 5 rows"),
    ),
]
