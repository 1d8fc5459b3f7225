"""A long run under random faults, and the time that a killed run takes to go on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopfleet.store.journal import JournalUnfinished
from tests.chaos.runs import Child, Report, compare, finish, messages_of, scratch, workers_when_started


@dataclass
class Soak:
    """How long a run took with faults, and what the same units take without."""

    faults: int
    seconds: float
    quiet: float
    unit: float

    @property
    def allowed(self) -> float:
        return self.faults * self.unit + 0.1 * self.quiet

    @property
    def overhead(self) -> float:
        return self.seconds - self.quiet


#: Finished units between two faults. On a slow machine, a trial might otherwise lose three workers in a row and fail.
BETWEEN_FAULTS = 4


def soak(
    units: int, unit: float, pause: tuple[float, float], seed: int, *, controller: bool = True
) -> tuple[Report, Soak]:
    """Kill a worker, and now and then the controller, every few moments until the experiment is finished."""
    report = Report("soak: workers, and sometimes the controller, are killed all the time")
    rng = random.Random(f"soak {seed}")
    asked = {"trials": 4, "partitions": 4, "epochs": max(1, units // 16), "seconds": unit}
    quiet = 0.0
    if not controller:
        with scratch() as folder:
            quiet = _span(folder, asked, report)
    with scratch() as folder:
        began = time.monotonic()
        child, done = Child(folder, asked), 0
        while True:
            if _sleeps(child, rng.uniform(*pause), folder, done + BETWEEN_FAULTS):
                if child.status == 0:
                    break
                report.problems.append(f"ended with {child.status}: {child.words[-300:]}")
                return report, Soak(report.faults, 0, 0, unit)
            done = _units(folder)
            if controller and rng.random() < 0.05:
                child.kill()
                report.faults += 1
                report.places["controller"] += 1
                child = Child(folder, asked)
            elif workers := child.workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    report.faults += 1
                    report.places["worker"] += 1
        seconds = time.monotonic() - began
        compare(report, folder, asked, "soak")
    return report, Soak(report.faults, seconds, quiet, unit)


def _span(folder: Path, asked: dict[str, Any], report: Report) -> float:
    began = time.monotonic()
    finish(report, folder, asked, "quiet")
    return time.monotonic() - began


def _sleeps(child: Child, seconds: float, folder: Path, units: int) -> bool:
    """Wait for some time, and for a number of finished units; whether the child ended meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or _units(folder) < units:
        if not child.running:
            return True
        time.sleep(0.01)
    return False


# Not run as a module: its task would have another name then.
RESUMING = """
import json, pathlib, sys
from tests.chaos.subject import experiment
experiment(pathlib.Path(sys.argv[1]), **json.loads(sys.argv[2])).fit(quiet=True)
"""


def resume_seconds(times: int) -> list[float]:
    """Seconds from the start of a process that resumes a killed run to its first new unit, import included."""
    found = []
    for _ in range(times):
        with scratch() as folder:
            asked = {"trials": 8, "epochs": 20, "partitions": 4, "seconds": 0.02}
            child = Child(folder, asked)
            workers_when_started(child)
            time.sleep(1.0)
            child.kill()
            before = _units(folder)
            began = time.monotonic()
            command = [sys.executable, "-c", RESUMING, str(folder), json.dumps(asked)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while _units(folder) == before and process.poll() is None:
                time.sleep(0.005)
            found.append(time.monotonic() - began)
            assert process.poll() is None, "it ended without a new unit"
            process.kill()
            process.wait()
            time.sleep(0.5)  # its workers end with it, at their next beat
    return found


def _units(folder: Path) -> int:
    """Count the training units and evaluations that the journal has as finished."""
    if not (folder / "journal.sqlite").exists():
        return 0
    try:
        return sum(type(message).__name__ == "UnitFinished" for message in messages_of(folder))
    except JournalUnfinished:
        return 0  # the run is about to begin
