"""The time until a control request is answered, while real worker processes train.

The run checks for requests after each event, and five times a second otherwise; the answer is on disk before it is
returned.
"""

from __future__ import annotations

import contextlib
import time
from statistics import median

import hopfleet as hop
from benchmarks.row import Row, milliseconds
from benchmarks.runs import endless, scratch
from benchmarks.tasks import NoWork

BAR = 0.5
SECONDS = 0.5
"""Seconds of a unit: long enough that answers do not coincide with its end."""


def measure(quick: bool) -> list[Row]:
    asked = 4 if quick else 60
    with scratch() as folder:
        space = {"number": hop.grid_search([0, 1, 2, 3]), "seconds": SECONDS}
        experiment, run = endless(NoWork(), folder, space)
        times = _answers(experiment, asked)
        for number in range(1, 5):
            hop.control(folder / "run").stop(number, now=True)
        run.join()
    worst = max(times)
    return [
        Row(
            "control",
            f"{asked} requests to a running experiment (units of {SECONDS} s): from the call to the answer, median",
            milliseconds(median(times)),
            f"worst {milliseconds(worst)}",
            None,
            "worst < 0.5 s",
            worst < BAR,
        )
    ]


def _answers(experiment: hop.Experiment, count: int) -> list[float]:
    """Return the seconds until each answer, once all workers are busy."""
    busy = 0
    while busy < 2:
        time.sleep(0.05)
        with contextlib.suppress(hop.HopfleetError):  # not created yet
            busy = sum(bool(worker.doing) for worker in hop.load(experiment.folder.path).history.live_workers())
    control = hop.control(experiment.folder.path)
    times = []
    for number in range(count):
        time.sleep(0.037)  # out of step with the units
        began = time.perf_counter()
        control.prioritise(number % 4 + 1, number % 3)
        times.append(time.perf_counter() - began)
    return times
