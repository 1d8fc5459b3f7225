"""Whatever a person passes to a public function, the error names the argument: none comes from inside Hopfleet."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from tests.helpers.sample_tasks import Plain

ODD = [None, -1, 0, 1.5, float("nan"), "banana", "", [], [1, 2], {}, {"a": "b"}, object(), len, 10**20, True, b"x"]
ODD.append(np.zeros(3))

ROWS = {"x": np.zeros((12, 3), "float32"), "y": np.arange(12) % 2}

CONSTRUCTORS: dict[str, dict[str, Any]] = {
    **{name: {"trials": 4, "max_epochs": 3} for name in ("ASHA", "FreezeThaw", "SuccessiveHalving")},
    **{name: {"trials": 3, "max_epochs": 2} for name in ("Random", "TPE", "CMAES", "GP", "NSGA2")},
    "Grid": {"max_epochs": 2},
    "Hyperband": {"max_epochs": 9},
    "PBT": {"population": 4, "max_epochs": 4},
    **{name: {"low": 0, "high": 3} for name in ("uniform", "randint")},
    **{name: {"low": 1, "high": 3} for name in ("loguniform", "lograndint")},
    **{name: {"low": 1, "high": 3, "q": 1} for name in ("quniform", "qloguniform")},
    "normal": {"mean": 0, "sd": 1},
    **{name: {"options": [1, 2]} for name in ("choice", "grid_search")},
    "sample_from": {"function": lambda config: 1},
    "Budget": {"seconds": 3},
    "Patience": {"epochs": 3},
    **{name: {} for name in ("Median", "RunOptions", "WorkerOptions", "Inline", "Local", "Ray")},
    **{name: {} for name in ("Tabular", "Images", "Number", "Category", "Date", "Text", "Label")},
    "Files": {"path": "*.csv"},
    "Query": {"connection": len, "sql": "SELECT 1"},
    "Split": {"fractions": {"a": 0.5, "b": 0.5}},
    "WholeSet": {"score": "roc_auc", "outputs": ROWS["x"], "targets": ROWS["y"]},
    "secret": {"env": "TOKEN"},
    **{name: {"name": "nothing"} for name in ("load", "control")},
    "load_bundle": {"path": "nothing"},
    "state_dict": {"source": "nothing"},
    "live": {"dataset": [1, 2, 3]},
    "pad": {"batch": [ROWS["x"]]},
}


def raw_errors(function: Callable[..., Any], given: Callable[[], dict[str, Any]]) -> list[str]:
    """Return errors that neither are Hopfleet's own nor name the argument that has an odd value."""
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        for value in ODD:
            arguments = {**given(), each.name: value}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(**arguments)
            except hop.HopfleetError:
                continue
            except Exception as error:
                if not (isinstance(error, TypeError | ValueError) and each.name in str(error)):
                    found.append(f"{each.name}={value!r}: {type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_of_a_constructor(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not raw_errors(getattr(hop, name), lambda: dict(CONSTRUCTORS[name]))


@pytest.mark.parametrize("name", ["partition", "prepare", "split"])
def test_of_what_makes_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # odd folders are relative
    number = 0

    def given() -> dict[str, Any]:
        nonlocal number
        number += 1
        folder = tmp_path / str(number)
        arguments: dict[str, Any] = {"source": {"y": ROWS["y"]}, "folder": folder, "partitions": 2}
        extra = {"prepare": {"quiet": True}, "split": {"fractions": {"a": 0.5, "b": 0.5}, "quiet": True}}
        return {**arguments, **extra.get(name, {})}

    function = getattr(hop, name)
    found = raw_errors(function, given)
    assert [text for text in found if not text.startswith("progress=<built-in function len>")] == []


def test_of_an_experiment(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        hop.partition(ROWS, tmp_path / name, partitions=2)

    def given() -> dict[str, Any]:
        return {
            "task": Plain(),
            "train": tmp_path / "train",
            "valid": tmp_path / "valid",
            "space": {"lr": hop.uniform(0, 1)},
            "search": hop.Random(trials=2, max_epochs=1),
            "metric": "loss",
        }

    found = raw_errors(hop.Experiment, given)
    assert found == []


def test_overwrite_is_no_word(tmp_path: Path) -> None:
    """A text is true, so ``overwrite="no"`` would replace the data."""
    made = hop.partition(ROWS, tmp_path / "data", partitions=2)
    before = (Path(made.url) / "manifest.json").read_bytes()
    for function in (hop.partition, hop.prepare):
        with pytest.raises(hop.HopfleetError, match="overwrite='no': must be True or False"):
            function({"z": ROWS["y"]}, tmp_path / "data", partitions=3, overwrite="no")
    assert (Path(made.url) / "manifest.json").read_bytes() == before
