"""Keras trials do not see what others change in their process."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch")

import hopfleet as hop  # noqa: E402
from hopfleet.frameworks.keras import backend  # noqa: E402
from tests.helpers.isolation_bench import Bench  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


class Change(NamedTuple):
    make: Callable[[], object]
    seen: Callable[[], object]


def _patch() -> None:
    keras.ops.sum = keras.ops.mean


SUM = keras.ops.sum

CHANGES: Mapping[str, Change] = {
    "floatx": Change(lambda: keras.config.set_floatx("float64"), keras.config.floatx),
    "policy": Change(lambda: keras.config.set_dtype_policy("float64"), lambda: keras.config.dtype_policy().name),
    "image format": Change(
        lambda: keras.config.set_image_data_format("channels_first"), keras.config.image_data_format
    ),
    "epsilon": Change(lambda: keras.config.set_epsilon(1e-3), keras.config.epsilon),
    "flash": Change(keras.config.disable_flash_attention, keras.config.is_flash_attention_enabled),
    "epochs": Change(lambda: keras.config.set_max_epochs(1), keras.config.max_epochs),
    "steps": Change(lambda: keras.config.set_max_steps_per_epoch(1), keras.config.max_steps_per_epoch),
    "seed": Change(lambda: keras.utils.set_random_seed(3), lambda: 0),
    "clear": Change(keras.utils.clear_session, lambda: 0),
    "patch": Change(_patch, lambda: keras.ops.sum is SUM),
    "dtype of torch": Change(lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
}


class Sensitive(hop.KerasTask):
    """A task whose losses depend on all settings. ``config["change"]`` is made in the hook ``config["hook"]``."""

    def _change(self, config: Mapping[str, Any], hook: str) -> float:
        if config["hook"] == hook:
            CHANGES[config["change"]].make()
        drawn = [random.random(), float(np.random.rand()), float(keras.random.uniform((), dtype="float32"))]
        return 1 + zlib.crc32(repr([drawn, [change.seen() for change in CHANGES.values()]]).encode()) / 2**34

    def build(self, config: Mapping[str, Any]) -> Any:
        factor = self._change(config, "build")
        made = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        )
        made.compile(
            optimizer=keras.optimizers.SGD(0.05), loss=lambda y, out: keras.ops.mean((out[:, 0] - y) ** 2) * factor
        )
        return made

    def train(self, model: Any, batches: Any, config: Mapping[str, Any]) -> Mapping[str, Any]:
        found = super().train(model, batches, config)
        return {**found, "factor": self._change(config, "train")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolation")
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    hop.partition({"x": x, "y": x.sum(1)}, folder / "data", partitions=2)
    trained(folder, "off", {"one": config()})
    return folder


def config(change: str = "", hook: str = "") -> dict[str, Any]:
    return {"change": change, "hook": hook}


def trained(place: Path, mode: str, configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return Bench(Sensitive(), place, mode).run(configs)


@pytest.mark.parametrize("hook", ["build", "train"])
@pytest.mark.parametrize("mode", ["off", "exact", "inline"])
def test_bits_do_not_depend_on_neighbours(place: Path, hook: str, mode: str) -> None:
    before = [change.seen() for change in CHANGES.values()]
    expected = {name: trained(place, mode, {"t": config(name, hook)})["t"] for name in CHANGES}
    plain = trained(place, mode, {"t": config()})["t"]
    assert expected["floatx"] != plain
    found = trained(
        place, mode, {"first": config(), **{name: config(name, hook) for name in CHANGES}, "last": config()}
    )
    assert found == {"first": plain, **expected, "last": plain}
    assert [change.seen() for change in CHANGES.values()] == before


def test_build_decides_on_floatx_as_in_a_new_process(place: Path) -> None:
    """Keras derives its policy from floatx once, and set_floatx() would not change it any more."""
    keras.layers.Dense(1)
    kinds: list[str] = []

    class Task(Sensitive):
        def build(self, config: Mapping[str, Any]) -> Any:
            made = super().build(config)
            kinds.append(made.layers[0].compute_dtype)
            return made

    Bench(Task(), place, "off").run({"a": config(), "b": config("floatx", "build"), "c": config()})
    assert set(kinds) == {"float32", "float64"}


def test_workers_get_the_settings_of_the_script() -> None:
    framework = Sensitive().framework
    for wanted in (
        {"epsilon": 1e-3},
        {"floatx": "float64", "dtype_policy": "float64"},
        {"dtype_policy": "mixed_float16"},
    ):
        with framework.applied(wanted):
            assert framework.settings() == wanted
            assert keras.layers.Dense(1).variable_dtype == wanted.get("floatx", "float32")
            assert keras.layers.Dense(1).compute_dtype == wanted.get("dtype_policy", "float32").removeprefix("mixed_")
    assert framework.settings() == {}
    assert backend.own_policy() is None
