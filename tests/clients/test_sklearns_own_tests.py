"""scikit-learn's own tests of its searches, with HopSearchCV in their place.

Without HOPFLEET_LONG=1, those run that test grid search or name RandomizedSearchCV, on estimators with batches.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import sklearn

from tests.helpers.marks import LONG, long

ROOT = Path(__file__).parents[2]
MODULES = ("sklearn.model_selection.tests.test_search", "sklearn.model_selection.tests.test_successive_halving")
LIST: dict[str, Any] = tomllib.loads(Path(__file__).with_name("sklearns_own_tests.toml").read_text(encoding="utf-8"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sklearn.__version__.startswith(f"{LIST['scikit-learn']}."), reason="the list is of another version's tests"
    ),
]


@pytest.mark.parametrize("mode", [pytest.param("whole", marks=long), "batches"])
def test_all_pass_but_those_that_are_listed_with_a_reason(mode: str, tmp_path: Path) -> None:
    outcomes = outcomes_of(mode, tmp_path)
    listed = {name for entry in LIST["reason"] for name in entry.get("both", []) + entry.get(mode, [])}
    matching = {name: [test for test in outcomes if matches(name, test)] for name in listed}
    if LONG:
        assert {name for name, found in matching.items() if not found} == set()

    failed = {test for test, outcome in outcomes.items() if outcome != "passed"}
    assert failed == {test for found in matching.values() for test in found}
    assert len(outcomes) - len(failed) > (100 if LONG else 30)


def outcomes_of(mode: str, folder: Path) -> dict[str, str]:
    """Run the tests in a process of their own, for the searches are replaced in the whole process."""
    own = {"HOPFLEET_OUTCOMES": str(folder / "outcomes.json"), "HOPFLEET_BATCHES": "1" if mode == "batches" else ""}
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    options = ["-q", "-W", "ignore", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"]
    names = "not HalvingGridSearchCV" if LONG else "test_grid_search or RandomizedSearchCV"
    plugin, wanted = ["-p", "tests.helpers.sklearn_searches"], ["-k", names, "--pyargs", *MODULES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugin, *wanted],
        cwd=folder, env={**os.environ, **own, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (folder / "outcomes.json").exists(), done.stdout + done.stderr
    found: dict[str, str] = json.loads((folder / "outcomes.json").read_text(encoding="utf-8"))
    return found


def matches(name: str, test: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, name.split("*"))), test) is not None
