"""``make steady``: repetitions that fail are named with their seed, and the command gets its own options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "steady.py"


def steady(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--seed", "5", "--repeat", "2", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_repetitions() -> None:
    code, said = steady(sys.executable, "-c", "import os; print(os.environ['PYTEST_ADDOPTS'].split()[3])")
    assert code == 0 and "5\n" in said and "6\n" in said and "nothing failed in 2 repetitions" in said
    code, said = steady("false", "--no-option-of-steady")
    assert code == 1 and "false --no-option-of-steady: exit code 1: failed 2 of 2 times, with seed 5, 6" in said
