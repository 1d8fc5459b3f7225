"""JAX: the numbers of steps that hooks are told are the steps that are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from tests.helpers.counted_steps import trained

jnp = pytest.importorskip("jax.numpy")
optax = pytest.importorskip("optax")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


def test_steps(tmp_path: Path) -> None:
    told: list[int] = []

    class Task(hop.JaxTask):
        def init(self, config: Any, key: Any) -> Any:
            return {"w": jnp.zeros((2, 2)), "steps": jnp.zeros(())}

        def optimizer(self, config: Any) -> Any:
            told.append(self.total_steps)
            return optax.sgd(optax.linear_schedule(1.0, 0.0, self.total_steps))

        def loss(self, params: Any, batch: Any, key: Any) -> Any:
            # The gradient of "steps" is 1, so its value is the negative sum of all learning rates.
            loss = optax.softmax_cross_entropy_with_integer_labels(batch["x"] @ params["w"], batch["y"]).mean()
            return loss + params["steps"]

    best, plan = trained(tmp_path, Task())
    total = plan.total_steps()
    assert set(told) == {total}
    rates = [1 - step / total for step in range(total)]
    assert float(best.model()["steps"]) == pytest.approx(-sum(rates), rel=1e-5)
