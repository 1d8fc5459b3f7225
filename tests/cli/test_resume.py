"""Ctrl-C and the command resume, with real processes and signals."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.errors import HopfleetError
from tests.helpers import warm
from tests.helpers.cli import Cli, counting

#: The third trial waits in its first unit, and one worker with it, for as long as the file "hold" is there.
GATED = """
import os, sys, time
from pathlib import Path

import numpy as np

import hopfleet as hop
from hopfleet.testing.tasks import CountingSession, CountingTask

HOLD = Path(__file__).with_name("hold")


class Gated(CountingTask):
    def open(self, config, **more):
        return GatedSession(config)


class GatedSession(CountingSession):
    def train(self, batches, *, last):
        while self.config["number"] == 3 and HOLD.exists():
            time.sleep(0.01)
        return super().train(batches, last=last)


experiment = hop.Experiment(
    Gated(),
    train={"x": np.arange(40.0)},
    valid={"x": np.arange(8.0)},
    space={"number": hop.grid_search([1, 2, 3])},
    search=hop.Grid(max_epochs=1),
    partitions=2,
    batch_size=5,
    workers=2,
    MORE
)
"""

PATIENCE = 60.0


class Started:
    """A command line in a process of its own."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = warm.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_for_line(self, text: str) -> None:
        """Read standard output until a line has the text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"it ended without saying {text!r}: {self.process.communicate()}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def run(*arguments: str) -> Started:
        started.append(Started([sys.executable, *arguments]))
        return started[-1]

    yield run
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def gated(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes the file and closes the gate."""

    def write(more: str, below: str = "") -> Path:
        path = tmp_path / "gated.py"
        path.write_text(GATED.replace("MORE", more) + below)
        (tmp_path / "hold").touch()
        return path

    return write


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def only_run(home: Path) -> hop.Results:
    (path,) = (entry for entry in home.iterdir() if entry.is_dir())
    return hop.load(path)


def first_trial_is_done(home: Path) -> bool:
    try:
        return "t0001" in [trial.id for trial in only_run(home).trials if trial.state.ended]
    except (HopfleetError, OSError, ValueError):
        return False


@pytest.mark.slow
def test_ctrl_c_drains_and_resume_finishes(
    start: Callable[..., Started], gated: Callable[..., Path], own_home: Path, tmp_path: Path
) -> None:
    # The experiment has no name of its own, so resume must give it the old one.
    command = start("-m", "hopfleet", "run", str(gated("")))
    wait_until(lambda: first_trial_is_done(own_home))
    command.interrupt()
    command.wait_for_line("press Ctrl-C again to stop at once")
    (tmp_path / "hold").unlink()
    code, _, err = command.end()
    assert code == 130
    name = only_run(own_home).name
    assert err == (f"hopfleet: {name} was interrupted and can continue: hopfleet resume {name}, or call fit() again\n")
    assert not only_run(own_home).finished
    code, out, err = start("-m", "hopfleet", "resume", name).end()
    assert (code, err) == (0, "")
    assert "resumed, run 2" in out
    assert only_run(own_home).finished
    assert {trial.metrics["train_units"] for trial in only_run(own_home).trials} == {1.5}


def test_a_second_ctrl_c_stops_at_once(
    start: Callable[..., Started], gated: Callable[..., Path], own_home: Path, tmp_path: Path
) -> None:
    command = start("-m", "hopfleet", "run", str(gated("name='mine'")))
    wait_until(lambda: first_trial_is_done(own_home))
    command.interrupt()
    command.wait_for_line("press Ctrl-C again to stop at once")
    command.interrupt()
    code, _, err = command.end()
    assert (tmp_path / "hold").exists()
    assert code == 130
    assert "stopped at once" in err
    assert "hopfleet resume mine" in err


@pytest.mark.slow
def test_resume_runs_a_script_again_as_it_was_started(
    start: Callable[..., Started], gated: Callable[..., Path], own_home: Path, tmp_path: Path, cli: Cli
) -> None:
    below = (
        "assert sys.argv[1:] == ['one', 'two']\nassert Path('here').exists()\nexperiment.fit(quiet=True)\nsys.exit(0)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "here").touch()
    os.chdir(elsewhere)
    command = start(str(gated("", below)), "one", "two")
    os.chdir(tmp_path)
    wait_until(lambda: first_trial_is_done(own_home))
    command.process.kill()
    command.end()
    (tmp_path / "hold").unlink()
    name = only_run(own_home).name
    outcome = cli("resume", name)
    assert outcome.code == 0
    again = "again from its top: fit() continues, and the code after it runs, too"
    assert outcome.err == f"hopfleet: running {tmp_path / 'gated.py'} {again}\n"
    assert "t0003" in outcome.out
    assert [path.name for path in own_home.iterdir()] == [name]
    assert only_run(own_home).finished


def test_resume_of_a_finished_one(cli: Cli, script: Callable[..., Path]) -> None:
    cli("run", str(script("name='mine', backend='inline'")), "-q")
    outcome = cli("resume", "mine")
    assert outcome.code == 0
    assert "mine is already finished" in outcome.out
    assert "t0001" in outcome.out


def unfinished(name: str, origin: dict[str, object]) -> None:
    """An experiment that was killed before its first trial."""
    experiment = counting(name)
    experiment.definition = dataclasses.replace(experiment.definition, origin=origin)
    results = experiment.fit(quiet=True)
    results.folder.journal_file.unlink()


def test_resume_of_a_notebook(cli: Cli) -> None:
    unfinished("noted", {})
    outcome = cli("resume", "noted")
    assert outcome.code == 2
    assert "call fit() again where the experiment is defined" in outcome.err


def test_resume_without_its_file(cli: Cli) -> None:
    unfinished("lost", {"how": "script", "file": "/no/where.py", "arguments": [], "cwd": "/"})
    outcome = cli("resume", "lost")
    assert outcome.code == 2
    assert "is missing; restore /no/where.py" in outcome.err


def test_resume_of_a_file_that_changed(cli: Cli, script: Callable[..., Path]) -> None:
    path = script("name='new', backend='inline'")
    origin = {"how": "run", "file": str(path), "variable": "experiment", "cwd": str(path.parent), "overrides": {}}
    unfinished("old", origin)
    outcome = cli("resume", "old")
    assert outcome.code == 2
    assert "now defines new" in outcome.err
    path.write_text("pass\n")
    unfinished("older", {"how": "script", "file": str(path), "arguments": [], "cwd": str(path.parent)})
    outcome = cli("resume", "older")
    assert outcome.code == 2
    assert "did not continue it" in outcome.err
