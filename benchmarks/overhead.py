"""A unit of no work, end to end: controller, SQLite journal, local worker processes, saving at epochs' ends.

The time runs from the first unit's start to the last one's, divided by the units between; starting workers is excluded.
The last row is the processor time of the process that calls ``fit()``, start and end included, with many trials.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch, tiny_data, units_of
from benchmarks.tasks import NoWork

BAR = 5e-3
SHARE = 0.1
"""Part of a core that the process of the controller may use."""
SECONDS = 0.25
"""Seconds of a unit while that is measured."""


def measure(quick: bool) -> list[Row]:
    trials, partitions, epochs, repeats = (2, 4, 1, 1) if quick else (8, 8, 8, 3)
    rows = []
    for workers in (1, 2):
        times, hops = [], 0
        for _ in range(repeats):
            with scratch() as folder:
                data = tiny_data(folder, partitions)
                configs = [{"number": number} for number in range(trials)]
                units = units_of(NoWork(), data, configs, folder / "run", epochs=epochs, workers=workers)
            starts = sorted(unit.sums["train_began"].mean for _, unit in units)
            times.append((starts[-1] - starts[0]) / (len(starts) - 1))
            hops = sum(unit.hopped for _, unit in units)
        what = (
            f"{trials * partitions * epochs} units of no work on {workers} worker{'s' * (workers > 1)}, {hops} hops: "
        )
        rows.append(
            Row(
                "overhead",
                f"{what}wall time per unit, median of {repeats} runs",
                milliseconds(median(times)),
                f"best run {milliseconds(min(times))}",
                None,
                "< 5 ms",
                median(times) < BAR,
            )
        )
    return [*rows, _share(quick)]


def _share(quick: bool) -> Row:
    """Measure the controller's process on 8 workers that sleep, so that processors are free for it."""
    trials, partitions, workers = 16 if quick else 2000, 2, 8
    with scratch() as folder:
        data = tiny_data(folder, partitions)
        configs = [{"seconds": SECONDS + number * 1e-9} for number in range(trials)]
        used = time.process_time()
        units = units_of(NoWork(), data, configs, folder / "run", epochs=1, workers=workers)
        used = time.process_time() - used
    starts = sorted(unit.sums["train_began"].mean for _, unit in units)
    share = used / (starts[-1] - starts[0])
    return Row(
        "overhead",
        f"{trials} trials of one epoch, {len(units)} units of {SECONDS} s on {workers} workers: processor time of the "
        "controller's process in each second of training",
        f"{share:.1%} of a core",
        f"{milliseconds(used / len(units))} per unit",
        None,
        f"< {SHARE:.0%}",
        share < SHARE,
    )
