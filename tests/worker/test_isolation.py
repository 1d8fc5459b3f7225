"""Trials do not see what others change in their process: bits of a trial do not depend on its neighbours."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.worker.surroundings.isolation import Isolation
from hopfleet.worker.surroundings.table import IMPORTED, python_settings, settings_of
from tests.helpers.isolation_bench import Bench
from tests.helpers.process_changes import CHANGES, Sensitive, seen


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolation")
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    hop.partition({"x": x, "y": x.sum(1)}, folder / "data", partitions=2)
    trained(folder, "exact", {"one": config(), "other": config()})  # libraries change settings when they are first used
    return folder


def config(change: str = "", hook: str = "") -> dict[str, Any]:
    return {"lr": 0.05, "change": change, "hook": hook}


@functools.cache
def alone(place: Path, mode: str, change: str = "", hook: str = "") -> Any:
    """Return the outcome of a trial that is by itself."""
    return trained(place, mode, {"t": config(change, hook)})["t"]


def trained(place: Path, mode: str, configs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    draws = {"draws": mode != "fast"}  # trials that draw from streams of the host are not stacked
    return Bench(Sensitive(), place, mode).run({name: {**config, **draws} for name, config in configs.items()})


@pytest.mark.parametrize(
    ("hook", "mode"),
    [
        ("build", "exact"),
        pytest.param("loss", "exact", marks=pytest.mark.slow),
        pytest.param("metrics", "inline", marks=pytest.mark.slow),
        pytest.param("loss", "off", marks=pytest.mark.slow),
        pytest.param("build", "fast", marks=pytest.mark.slow),
    ],
)
def test_a_trial_among_others_that_change_everything(place: Path, hook: str, mode: str) -> None:
    before, expected = seen(), alone(place, mode)
    others = {change: config(change, hook) for change in CHANGES}
    last = {"last": config()} if mode != "fast" else {}  # two trials that are alike would be stacked
    found = trained(place, mode, {"first": config(), **others, **last})
    assert found["first"] == expected
    assert mode == "fast" or found["last"] == expected
    assert seen() == before


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["build", "loss", "metrics"])
@pytest.mark.parametrize("change", CHANGES)
def test_bits_do_not_depend_on_a_neighbour(place: Path, change: str, hook: str) -> None:
    before, modes = seen(), ["off", "exact", "inline", "fast"]
    if hook == "metrics":
        modes.remove("fast")  # a stack that a change in metrics() breaks up has trained together before
    mode = modes[(list(CHANGES).index(change) + len(hook)) % len(modes)]
    found = trained(place, mode, {"dirty": config(change, hook), "t": config()})
    assert found["t"] == alone(place, mode), mode
    assert found["dirty"] == alone(place, mode, change, hook), mode
    assert seen() == before, mode


def test_the_table_is_covered() -> None:
    named = {setting.name for setting in settings_of(Sensitive()) if setting.restore is not None}
    assert named == {change.row for change in CHANGES.values()} - {""}


PROMISED: Mapping[str, set[str]] = {
    "default dtype and device": {"default dtype", "device"},
    "matmul precision": {"matmul", "tf32"},
    "deterministic and grad mode": {"deterministic", "grad", "inference"},
    "autocast": {"autocast"},
    "thread counts": {"threads"},
    "RNGs": {"random streams"},
    "cwd, environ, umask, locale": {"folder", "variable", "no variable", "umask", "locale"},
    "stdout and stderr": {"stdout", "closed stdout", "stderr"},
    "warnings and signal handlers": {"warnings", "showwarning", "signal"},
    "module globals of the task's module": {"global", "new global", "function", "class", "class of the task"},
    "monkey patches of torch": {"relu", "linear"},
}
"""What a trial never sees of its neighbours, and the changes that show it."""


@pytest.mark.parametrize("what", PROMISED)
def test_what_is_promised_is_tested(what: str) -> None:
    assert PROMISED[what] <= CHANGES.keys()
    for name in sorted(PROMISED[what], reverse=True):
        before = CHANGES[name].seen()
        isolation = Isolation(settings_of(Sensitive()), guest=True)
        with isolation.around({}) as found:
            CHANGES[name].make()
            assert not CHANGES[name].row or CHANGES[name].seen() != before, "the change must be one"
        assert CHANGES[name].row in {"", *found.changes}
        assert CHANGES[name].seen() == before


def test_folders_of_an_installed_package_stay_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setuptools adds a folder of its own, perhaps in a thread that imports it while a hook ends."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    vendored = "/lib/site-packages/package/_vendor"
    isolation = Isolation(settings_of(Sensitive()), guest=False)
    with isolation.around({}) as found:
        sys.path.append(vendored)
    assert sys.path[-1] == vendored and not found.changes
    with isolation.around({}) as found:
        sys.path.insert(0, "/own")
    assert "/own" not in sys.path and sys.path[-1] == vendored and list(found.changes) == ["sys.path"]
    with isolation.around(found.changes):
        assert sys.path[0] == "/own" and sys.path[-1] == vendored


def test_a_filter_that_torch_has_imported_in_a_thread_is_no_change_of_a_trial() -> None:
    """It may come while a trial's code runs, and stays when that is over."""
    (setting,) = (one for one in python_settings() if one.name == "the warnings filters")
    category = type("OfLibrary", (DeprecationWarning,), {"__module__": IMPORTED})
    with warnings.catch_warnings():
        before, glance = setting.read(), setting.glance
        assert glance is not None
        warnings.simplefilter("once", category)
        assert setting.read() == glance() == before
        warnings.simplefilter("ignore", BytesWarning)
        assert setting.read() != before != glance()
        setting.put({"": before})
        assert setting.read() == before and warnings.filters == [("once", None, category, None, 0), *before]
