"""Tasks with JAX and Flax, and sessions of them."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.frameworks.base import EngineCache
from hopfleet.testing.frameworks import ROWS, _Batches

COMPILED = tempfile.TemporaryDirectory(prefix="hopfleet-jax-")
"""Programs that the processes of all tests share: compiling takes most of the time."""

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", COMPILED.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
optax = pytest.importorskip("optax")
nnx = pytest.importorskip("flax.nnx")


class Net(hop.JaxTask):
    """Two layers with dropout."""

    def init(self, config: Mapping[str, Any], key: Any) -> Any:
        first, second = jax.random.split(key)
        width = config.get("width", 8)
        return {
            "hidden": {"kernel": jax.random.normal(first, (4, width)) * 0.5, "bias": jnp.zeros(width)},
            "out": jax.random.normal(second, (width,)) * 0.5,
        }

    def optimizer(self, config: Mapping[str, Any]) -> Any:
        return getattr(optax, config.get("optimizer", "adam"))(config["lr"])

    def loss(self, params: Any, batch: Any, key: Any) -> Any:
        hidden = jax.nn.relu(batch["x"] @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        if key is not None:
            rate = self.config["dropout"]
            hidden = jnp.where(jax.random.bernoulli(key, 1 - rate, hidden.shape), hidden / (1 - rate), 0)
        return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)


CACHES: defaultdict[type, EngineCache] = defaultdict(EngineCache)
"""Programs that all tests of a task share, as all trials of a worker do: compiling them takes the most time."""


def opened(task: Any, config: Mapping[str, Any], *, seed: int = 7, cache: EngineCache | None = None) -> Any:
    cache = CACHES[type(task)] if cache is None else cache
    return task.framework.open(dict(config), seed=seed, placement=CPU, threads=1, cache=cache)


def data(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {"x": rng.normal(size=(rows, 4)).astype("float32"), "y": rng.normal(size=rows).astype("float32")}


def unit(session: Any, columns: Mapping[str, Any] | None = None) -> Any:
    return session.train(_Batches(session, columns or data()), last=True)
