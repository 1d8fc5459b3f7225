"""The time until the loss of a dead or stopped worker is noticed, and until its unit runs again.

Two local workers train two trials in a real experiment. One worker that has just begun a unit gets a signal. Its loss
is noticed when the controller receives it; its unit runs again when the task's own code has started. The other worker
is busy, so this takes a new process, forked from the fork server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from statistics import median

import hopfleet as hop
from benchmarks.row import Row, milliseconds
from benchmarks.runs import endless, scratch
from benchmarks.tasks import Marking
from hopfleet.domain.messages import Message, RunUnit, WorkerLost
from hopfleet.store.journal import Journal

NOTICED_BAR, AGAIN_BAR, STOPPED_BAR = 0.05, 0.2, 2.0
SECONDS = 1.0
"""Seconds of a unit."""


def measure(quick: bool) -> list[Row]:
    killed = _disturbed(signal.SIGKILL, 2 if quick else 10)
    stopped = _disturbed(signal.SIGSTOP, 1 if quick else 10)
    what = "of a worker until it is noticed, median of"
    return [
        _row(f"SIGKILL {what} {len(killed[0])}", killed[0], "worst < 50 ms", NOTICED_BAR),
        _row("the same, until its unit runs again", killed[1], "worst < 200 ms", AGAIN_BAR),
        _row(f"SIGSTOP {what} {len(stopped[0])}", stopped[0], "worst ≤ 2 s", STOPPED_BAR),
        _row("the same, until its unit runs again", stopped[1]),
    ]


def _row(what: str, times: list[float], bar: str = "", limit: float | None = None) -> Row:
    ok = None if limit is None else max(times) <= limit
    return Row("faults", what, milliseconds(median(times)), f"worst {milliseconds(max(times))}", None, bar, ok)


def _disturbed(number: signal.Signals, times: int) -> tuple[list[float], list[float]]:
    """Return seconds from a signal to a worker until its loss is known, and until its unit runs again."""
    with scratch() as folder:
        marks = folder / "marks"
        marks.mkdir()
        space = {"number": hop.grid_search([0, 1]), "seconds": SECONDS, "marks": str(marks)}
        experiment, run = endless(Marking(), folder, space)
        journal = experiment.folder.journal_file
        while not any(isinstance(message, RunUnit) for _, message in _messages(journal)):
            time.sleep(0.05)
        found = [_disturb(journal, marks, number, turn % 2) for turn in range(times)]
        for trial in (1, 2):
            hop.control(folder / "run").stop(trial, now=True)
        run.join()
    return [noticed for noticed, _ in found], [again for _, again in found]


def _disturb(journal: Path, marks: Path, number: signal.Signals, trial: int) -> tuple[float, float]:
    _, pid = _next_unit(marks, trial, time.time())
    sent = time.time()
    os.kill(pid, number)
    began, successor = _next_unit(marks, trial, sent)
    assert successor != pid
    lost = [when for when, message in _messages(journal) if isinstance(message, WorkerLost) and when > sent]
    return lost[0] - sent, began - sent


def _next_unit(marks: Path, trial: int, after: float) -> tuple[float, int]:
    """Wait for the next unit of a trial; return when and in which process it began."""
    while True:
        for began, pid, number in sorted(mark.name.split("-") for mark in marks.iterdir()):
            if float(began) > after and int(number) == trial:
                return float(began), int(pid)
        time.sleep(0.005)


def _messages(journal: Path) -> list[tuple[float, Message]]:
    with contextlib.suppress(hop.HopfleetError), contextlib.closing(Journal(journal)) as reader:
        return [(when, message) for _, when, message in reader.read()]
    return []  # not created yet
