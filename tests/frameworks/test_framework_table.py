"""The table of docs/features.md: each feature works with a framework, or is refused in words."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.helpers import warm
from tests.helpers.framework_features import FEATURES, KINDS, words

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[2] / "docs" / "features.md"


def table() -> dict[str, dict[str, str]]:
    """Return the cells of the table by feature and framework."""
    lines = [line.strip("| \n").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


OTHERS = [pytest.param(name, marks=pytest.mark.adapter) for name in KINDS if name.lower() in warm.PRELOAD_APART]


@pytest.mark.parametrize("framework", [*(name for name in KINDS if name.lower() not in warm.PRELOAD_APART), *OTHERS])
def test_each_feature_works_or_is_refused(framework: str, tmp_path: Path) -> None:
    env = {**os.environ, "HOPFLEET_HOME": str(tmp_path / "home"), "KERAS_BACKEND": "torch"}
    command = [sys.executable, "-m", "tests.helpers.framework_features", framework]
    done = warm.run(command, env=env, cwd=PAGE.parents[1], text=True)
    assert not done.returncode, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {feature: cells[framework] for feature, cells in table().items()}


def test_the_table_has_all_features_and_frameworks() -> None:
    assert [*table()] == [words(feature) for feature in FEATURES]
    assert all([*cells] == [*KINDS] for cells in table().values())
