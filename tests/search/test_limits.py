"""Arguments at their limits are accepted, and the work that is expected of searches with few trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hopfleet as hop

AT_LIMITS: list[Callable[[], Any]] = [
    lambda: hop.Random(trials=1, max_epochs=1, concurrency=1),
    lambda: hop.Grid(max_epochs=1),
    lambda: hop.ASHA(trials=1, max_epochs=1, min_epochs=1, eta=2, concurrency=1),
    lambda: hop.ASHA(max_epochs=9, min_epochs=9),
    lambda: hop.SuccessiveHalving(trials=1, max_epochs=5, min_epochs=5, eta=2),
    lambda: hop.Hyperband(max_epochs=1, eta=2, trials=1),
    lambda: hop.PBT(population=2, max_epochs=1, interval=1, quantile=0.5, resample=0),
    lambda: hop.PBT(max_epochs=3, interval=3, resample=1),
    lambda: hop.Median(grace_epochs=1),
    lambda: hop.Patience(epochs=1, min_delta=0),
    lambda: hop.Budget(epochs=1, seconds=0),
]


@pytest.mark.parametrize("make", AT_LIMITS)
def test_arguments_at_their_limits_are_accepted(make: Callable[[], Any]) -> None:
    assert make() is not None


@pytest.mark.parametrize(
    ("trials", "complete_best", "epochs"),
    [(1, True, 1 + 2 + 6), (1, False, 1), (9, True, 9 + 3 * 2 + 6), (27, False, 27 + 9 * 2 + 3 * 6)],
)
def test_the_best_trial_is_expected_to_train_to_the_end(trials: int, complete_best: bool, epochs: int) -> None:
    search = hop.ASHA(trials=trials, max_epochs=9, eta=3, complete_best=complete_best)
    assert search.planned(trials).epochs == epochs
