"""JAX trials do not see what others change in their process, nor get programs that were compiled meanwhile."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
optax = pytest.importorskip("optax")

import hopfleet as hop  # noqa: E402
from tests.helpers.isolation_bench import Bench  # noqa: E402
from tests.helpers.marks import long  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")]

SCALE = 1.0
"""A global that trials change."""


class Change(NamedTuple):
    make: Callable[[], object]
    seen: Callable[[], object]


def _set(name: str, value: Any) -> Change:
    return Change(lambda: jax.config.update(name, value), lambda: getattr(jax.config, name))


def _rescale() -> None:
    global SCALE
    SCALE = 2.0


def _patch() -> None:
    jnp.tanh = jnp.sin


TANH = jnp.tanh

CHANGES: Mapping[str, Change] = {
    "x64": _set("jax_enable_x64", True),
    "matmul": _set("jax_default_matmul_precision", "float32"),
    "generator": _set("jax_default_prng_impl", "rbg"),
    "promotion": _set("jax_numpy_rank_promotion", "warn"),
    "nans": _set("jax_debug_nans", True),
    "jit": _set("jax_disable_jit", True),
    "global": Change(_rescale, lambda: SCALE),
    "patch": Change(_patch, lambda: jnp.tanh is TANH),
    "variable": Change(lambda: os.environ.update(OWN_VARIABLE="2"), lambda: os.environ.get("OWN_VARIABLE")),
}


class Sensitive(hop.JaxTask):
    """A task whose losses depend on all settings, also when a program is compiled."""

    def _factor(self) -> float:
        return 1 + zlib.crc32(repr([change.seen() for change in CHANGES.values()]).encode()) / 2**34

    def init(self, config: Mapping[str, Any], key: Any) -> Any:
        if config["change"]:
            CHANGES[config["change"]].make()
        return {"w": jax.random.normal(key, (3,)) * self._factor() + random.random()}

    def optimizer(self, config: Mapping[str, Any]) -> Any:
        return optax.sgd(0.05)

    def loss(self, params: Any, batch: Any, key: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ params["w"]) - batch["y"]) ** 2) * SCALE * self._factor()


class Same(Sensitive):
    """Makes the change of a trial without a word in its configuration: programs of two trials have the same kind."""

    def init(self, config: Mapping[str, Any], key: Any) -> Any:
        if config["lr"] > 1:
            _rescale()
        return {"w": jax.random.normal(key, (3,))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolation")
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    hop.partition({"x": x, "y": x.sum(1)}, folder / "data", partitions=2)
    trained(folder, "off", {"one": {"change": ""}})
    return folder


def trained(place: Path, mode: str, configs: dict[str, dict[str, Any]], task: type[hop.JaxTask] = Sensitive) -> Any:
    return Bench(task(), place, mode).run(configs)


@pytest.mark.parametrize("mode", [pytest.param("off", marks=long), "exact", pytest.param("inline", marks=long)])
def test_bits_do_not_depend_on_neighbours(place: Path, mode: str) -> None:
    before = [change.seen() for change in CHANGES.values()]
    expected = {name: trained(place, mode, {"t": {"change": name}})["t"] for name in CHANGES}
    plain = trained(place, mode, {"t": {"change": ""}})["t"]
    assert all(each != plain for each in expected.values())
    others = {name: {"change": name} for name in CHANGES}
    found = trained(place, mode, {"first": {"change": ""}, **others, "last": {"change": ""}})
    assert found == {"first": plain, **expected, "last": plain}
    assert [change.seen() for change in CHANGES.values()] == before


@pytest.mark.parametrize("mode", ["off", "exact", "fast"])
def test_programs_are_shared_among_the_same_settings_only(place: Path, mode: str) -> None:
    expected = {name: trained(place, mode, {"t": {"lr": lr}}, Same)["t"] for name, lr in (("one", 0.5), ("two", 2.0))}
    assert expected["one"] != expected["two"]
    assert trained(place, mode, {"one": {"lr": 0.5}, "two": {"lr": 2.0}}, Same) == expected
    assert trained(place, mode, {"two": {"lr": 2.0}, "one": {"lr": 0.5}}, Same) == expected
