"""Type checkers refuse wrong uses of the public names, and accept right ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.backends import BACKENDS
from hopfleet.domain import choices
from hopfleet.monitor.charts.charts import CHARTS
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import SEARCHES
from hopfleet.search.stopping import STOPPING_RULES
from hopfleet.store.local import STORES
from hopfleet.trackers import TRACKERS

ROOT = Path(__file__).parents[2]
USES = ROOT / "tests" / "helpers" / "uses"
RIGHT, WRONG = USES / "right.py", USES / "wrong.py"
COUNT = 42
"""Numbered uses in each file."""

Lines = dict[str, set[str]]
"""The lines with errors, by the name of the file."""


def mypy(folder: Path) -> Lines:
    """Check with the settings and the cache of ``make lint``: only these files are read anew."""
    done = run("mypy", "--no-error-summary", str(RIGHT), str(WRONG))
    found = re.findall(r"^\S*?(\w+\.py):(\d+)(?::\d+)?: error", done, re.MULTILINE)
    return with_errors((name, int(line)) for name, line in found)


def pyright(folder: Path) -> Lines:
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps({"typeCheckingMode": "standard", "include": [str(RIGHT), str(WRONG)]}))
    done = run("basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(project))
    found = [each for each in json.loads(done)["generalDiagnostics"] if each["severity"] == "error"]
    return with_errors((Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found)


def run(checker: str, *arguments: str) -> str:
    """Return what a type checker prints. It finds errors, so its exit status is 1."""
    done = subprocess.run([sys.executable, "-m", checker, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def with_errors(found: Iterable[tuple[str, int]]) -> Lines:
    lines: Lines = {}
    for name, line in found:
        lines.setdefault(name, set()).add((USES / name).read_text().splitlines()[line - 1])
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright])
def test_wrong_uses_are_refused_and_right_ones_accepted(check: Callable[[Path], Lines], tmp_path: Path) -> None:
    wrong = {line for line in WRONG.read_text().splitlines() if re.search(r"  # \d+$", line)}
    assert check(tmp_path) == {"wrong.py": wrong}


@pytest.mark.parametrize("file", [RIGHT, WRONG], ids=lambda file: file.name)
def test_uses_are_numbered(file: Path) -> None:
    numbers = [int(number) for number in re.findall(r"  # (\d+)$", file.read_text(), re.MULTILINE)]
    assert numbers == list(range(1, COUNT + 1))


def test_types_are_shipped() -> None:
    assert (Path(hop.__file__).parent / "py.typed").is_file()


def test_types_list_the_names_that_there_are() -> None:
    names = {
        choices.BackendName: BACKENDS,
        choices.Chart: CHARTS,
        choices.PolicyName: POLICIES,
        choices.RuleName: STOPPING_RULES,
        choices.SearchName: SEARCHES,
        choices.StoreName: STORES,
        choices.TrackerName: TRACKERS,
    }
    for kind, known in names.items():
        assert set(typing.get_args(kind)) == set(known)
