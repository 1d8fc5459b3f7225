"""How long a person waits for an answer: from asking to having it, while real worker processes train.

The run looks for wishes whenever something happens, and four times a second otherwise; the answer is on the disk before
it is given.
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
"""The length of a unit: long enough that answers do not come with its end."""


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
            f"{asked} wishes of a running experiment (units of {SECONDS} s): from asking to the answer, median",
            milliseconds(median(times)),
            f"worst {milliseconds(worst)}",
            None,
            "worst < 0.5 s",
            worst < BAR,
        )
    ]


def _answers(experiment: hop.Experiment, count: int) -> list[float]:
    """Seconds until each answer, from when all workers are at work."""
    busy = 0
    while busy < 2:
        time.sleep(0.05)
        with contextlib.suppress(hop.HopfleetError):  # it is not there yet
            busy = sum(bool(worker.doing) for worker in hop.load(experiment.folder.path).history.live_workers())
    wheel = hop.control(experiment.folder.path)
    times = []
    for number in range(count):
        time.sleep(0.037)  # not in step with anything
        began = time.perf_counter()
        wheel.prioritise(number % 4 + 1, number % 3)
        times.append(time.perf_counter() - began)
    return times
