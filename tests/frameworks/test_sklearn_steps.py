"""scikit-learn: the numbers of steps that hooks are told are the steps that are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from tests.helpers.counted_steps import EPOCHS, trained

linear_model = pytest.importorskip("sklearn.linear_model")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


def test_steps(tmp_path: Path) -> None:
    told: list[int] = []

    class Task(hop.SklearnTask):
        classes = (0, 1)
        scoring = "accuracy"

        def build(self, config: Any) -> Any:
            told.append(self.total_steps)
            return linear_model.SGDClassifier()

    best, plan = trained(tmp_path, Task(), metric="accuracy", mode="max")
    assert set(told) == {plan.total_steps()}
    assert best.model().t_ - 1 == EPOCHS * sum(plan.rows)
