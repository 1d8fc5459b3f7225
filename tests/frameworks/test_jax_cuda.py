"""JAX on a GPU: the suite of all adapters, and the bits of a plain loop."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

if shutil.which("nvidia-smi") is None:
    pytest.skip("needs a GPU", allow_module_level=True)
jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import hopfleet as hop  # noqa: E402
from hopfleet.domain.placement import Placement  # noqa: E402
from hopfleet.testing.frameworks import BATCH, ROWS, FrameworkSuite, _Batches  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")]


class Net(hop.JaxTask):
    """Two layers with dropout, whose inputs are looked up, so that gradients are scattered."""

    def init(self, config: Mapping[str, Any], key: Any) -> Any:
        shapes = {"table": (4, 16), "hidden": (16, 64), "out": (64,)}
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(one, shapes[name]) * 0.3 for one, name in zip(keys, shapes, strict=True)}

    def optimizer(self, config: Mapping[str, Any]) -> Any:
        return getattr(optax, config["optimizer"])(config["lr"])

    def loss(self, params: Any, batch: Any, key: Any) -> Any:
        hidden = jax.nn.relu(params["table"][batch["x"]].mean(1) @ params["hidden"])
        if key is not None:
            hidden = hidden * jax.random.bernoulli(key, 0.7, hidden.shape) / 0.7
        return ((hidden @ params["out"] - batch["y"]) ** 2).mean()


def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {"x": rng.integers(0, 4, (ROWS, 32)), "y": rng.normal(size=ROWS).astype("float32")}


class TestJaxOnCuda(FrameworkSuite):
    module = "jax"
    device = "cuda"
    config: ClassVar[dict[str, Any]] = {"lr": 0.01, "optimizer": "adam"}
    other: ClassVar[dict[str, Any]] = {"lr": 0.1, "optimizer": "sgd"}
    bad: ClassVar[dict[str, Any]] = {"lr": 0.1, "optimizer": "none"}

    def make(self):
        return Net()

    def columns(self):
        return columns()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_bits_are_those_of_a_plain_loop(optimizer: str) -> None:
    config = {"lr": 0.05, "optimizer": optimizer}
    task = Net()
    session = task.framework.open(config, seed=7, placement=Placement.on("cuda"), threads=1)
    session.train(_Batches(session, columns()), last=True)

    first, key = jax.random.split(jax.random.key(7))
    params = task.init(config, first)
    transformation = task.optimizer(config)
    state = transformation.init(params)

    def step(params: Any, state: Any, batch: Any, key: Any) -> Any:
        gradients = jax.grad(task.loss)(params, batch, key)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(step, compiler_options={"xla_gpu_deterministic_ops": True})
    for start in range(0, ROWS, BATCH):
        batch = {name: column[start : start + BATCH] for name, column in columns().items()}
        params, state = compiled(params, state, batch, jax.random.fold_in(key, start // BATCH))
    assert {"gpu"} == {device.platform for device in session.live.params["out"].devices()}
    for name, array in params.items():
        assert np.asarray(session.live.params[name]).tobytes() == np.asarray(array).tobytes(), name
