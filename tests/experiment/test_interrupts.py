"""Ctrl-C in a script and in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hopfleet.errors import HopfleetError, Interrupted
from tests.helpers import warm

SCRIPT = """
import os
import signal
import sys

import numpy as np

import hopfleet as hop
from hopfleet.testing.tasks import CountingTask


class Mine(CountingTask):
    def open(self, config, **more):
        if config["number"] == 2:
            for _ in range({times}):
                os.kill(os.getpid(), signal.SIGINT)
        return super().open(config, **more)


experiment = hop.Experiment(
    Mine(),
    train={{"x": np.arange(8.0)}},
    space={{"number": hop.grid_search([1, 2])}},
    search=hop.Grid(max_epochs=3),
    partitions=2,
    batch_size=2,
    backend="inline",
    name="mine",
)
{call}
print("after")
"""


def written(folder: Path, call: str = "experiment.fit(quiet=True)", times: int = 1) -> list[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(call=call, times=times))
    return [sys.executable, str(script)]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_script_ends_in_one_line(own_home: Path, tmp_path: Path, times: int) -> None:
    done = run(written(tmp_path, times=times))
    assert (done.returncode, done.stdout) == (130, "")
    first = "mine was interrupted and can continue:"
    second = "stopped at once; finished units are kept; continue with:"
    said = f"hopfleet: {[first, second][times - 1]} hopfleet resume mine, or call fit() again"
    assert [line for line in done.stderr.splitlines() if "never read config" not in line] == [said]


def test_a_script_that_catches_it_goes_on(own_home: Path, tmp_path: Path) -> None:
    call = "try:\n    experiment.fit(quiet=True)\nexcept KeyboardInterrupt as error:\n    print(type(error).__name__)"
    done = warm.run(written(tmp_path, call), text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "Interrupted\nafter\n")
    assert not [line for line in done.stderr.splitlines() if "never read config" not in line]


def test_other_errors_keep_their_traceback(own_home: Path, tmp_path: Path) -> None:
    call = "try:\n    experiment.fit(quiet=True)\nexcept hop.HopfleetError:\n    raise ValueError('mine')"
    done = run(written(tmp_path, call))
    assert done.returncode == 1
    assert "Traceback" in done.stderr and done.stderr.endswith("ValueError: mine\n")


def test_a_notebook_shows_the_message_alone() -> None:
    error = Interrupted("mine was interrupted")
    assert isinstance(error, HopfleetError)
    assert error._render_traceback_() == ["mine was interrupted"]
