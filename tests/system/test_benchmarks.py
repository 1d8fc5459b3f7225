"""Every benchmark runs at a tiny size. How fast it is, a loaded machine cannot tell, so no time is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import NAMES
from benchmarks.flotilla import padding
from benchmarks.flotilla.curves import LEVEL, chance, measure
from tests.helpers import warm
from tests.helpers.marks import long

ROOT = Path(__file__).parents[2]


LONG = {
    *("adapters", "control", "dashboards", "decision", "dike_run", "efficiency", "etl", "etl_images", "etl_nodes"),
    *("faults", "fleet_live", "hop", "importance", "memory", "nodes", "openshop", "outages", "overhead", "predict"),
    *("preview", "ray", "replicas", "searching", "simulation", "sklearn_search", "stacks", "teams", "teams_live"),
    *("throughput", "ui", "unequal_live", "verify", "watched"),
}
"""Each of them takes several seconds or a quarter of a minute; with HOPFLEET_LONG=1 they run too."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str) -> None:
    if name in LONG and not os.environ.get("HOPFLEET_LONG"):
        pytest.skip("HOPFLEET_LONG=1 runs it")
    done = warm.run([sys.executable, "-m", "benchmarks", "--quick", "--only", name], cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    assert "| benchmark" in done.stdout


def test_no_benchmark_is_left_out() -> None:
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def measure(" in path.read_text()}
    assert files == set(NAMES)


@long
@pytest.mark.slow
def test_contenders_on_two_cores() -> None:
    """Without Ray Tune, which is not there and would take long."""
    options = ["short", "--quick", "--others", "--modes", "exact"]
    done = warm.run([sys.executable, "-m", "benchmarks.flotilla.machine", *options], cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    assert "best accuracy" in done.stdout and "failed" not in done.stdout


@long
@pytest.mark.slow
def test_two_checkouts_in_turns() -> None:
    options = [str(ROOT), "short", "--modes", "fast", "--turns", "1", "--quick"]
    done = warm.run([sys.executable, "-m", "benchmarks.flotilla.against", *options], cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("| short | `fast` |")
    assert done.stderr.count("of processors") == 2


def test_a_tendency_is_not_taken_for_chance() -> None:
    steady, mixed = np.linspace(0.9, 1.1, 20), np.array([1.0, -1.0] * 10)
    assert chance(steady) < LEVEL < chance(mixed)
    assert chance(np.zeros(4)) == 1.0


@long
@pytest.mark.slow
def test_stacked_trials_have_curves() -> None:
    assert all(row.ok for row in measure(quick=True))


@long
@pytest.mark.slow
def test_overheads_of_flotillas() -> None:
    command = [sys.executable, "-m", "benchmarks.flotilla.overheads", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("forming: ") == done.stdout.count("between units: ") == 2


def test_widths_of_padded_trials() -> None:
    assert padding.spread(64, 0.5, 4) == [64] * 4 + [53] * 4 + [43] * 4 + [32] * 4
    assert padding.spread(64, 1.0, 16) == [64] * 16


@long
@pytest.mark.slow
def test_padding_is_compared_with_stacks_of_equal_widths(capsys: pytest.CaptureFixture[str]) -> None:
    assert padding.main(["--quick"]) == 0
    said = capsys.readouterr().out
    assert said.count("grouped, ") == 10 and "2 widths, 16 to 8: a step, padded" in said
