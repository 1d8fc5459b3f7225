"""Units of one second: a whole experiment against a hand-written loop over the same units.

A unit is a fixed number of matrix products on one core, measured beforehand to take about a second. The hand-written
loop deals the same units evenly to two processes that do nothing else. Both are timed from the start of the first
unit to the end of the last; start-up is reported separately. They take turns, so that noise affects both alike.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from statistics import median

import torch

from benchmarks.row import Row, milliseconds
from benchmarks.runs import scratch, tiny_data, units_of
from benchmarks.tasks import Products, multiply

WORKERS = 2
BAR = 0.95


def measure(quick: bool) -> list[Row]:
    seconds, trials, partitions, repeats = (0.02, 2, 2, 1) if quick else (1.0, 4, 4, 3)
    products = _calibrated(seconds)
    ours, theirs, whole, busy = [], [], [], []
    for _ in range(repeats):
        theirs.append(_by_hand(products, trials * partitions))
        took, share, wall = _by_hopfleet(products, trials, partitions)
        ours.append(took)
        busy.append(share)
        whole.append(wall)
    span, hand = median(ours), median(theirs)
    efficiency = hand / span
    what = f"{trials * partitions} units of about {seconds:g} s on {WORKERS} workers"
    return [
        Row(
            "efficiency",
            f"{what}, first start to last end, median of {repeats}",
            f"{milliseconds(span)} (best {milliseconds(min(ours))})",
            f"{milliseconds(hand)} (best {milliseconds(min(theirs))}): by hand, dealt evenly",
            efficiency,
            "ratio of theirs to ours ≥ 0.95",
            efficiency >= BAR,
        ),
        Row("efficiency", "share of that time in which workers were in a unit", f"{median(busy):.3f}"),
        Row(
            "efficiency",
            "the whole of `fit()`, starting workers and importing torch included",
            milliseconds(median(whole)),
            f"{milliseconds(hand)}: by hand, without its start-up",
            hand / median(whole),
        ),
    ]


def _calibrated(seconds: float) -> int:
    """Return how many products take the given time on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            multiply(100)
            times.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return max(1, round(100 * seconds / min(times)))


def _by_hopfleet(products: int, trials: int, partitions: int) -> tuple[float, float, float]:
    """Return the seconds from first start to last end, the share of it spent in units, and the seconds of fit()."""
    with scratch() as folder:
        data = tiny_data(folder, partitions)
        configs = [{"products": products, "number": number} for number in range(trials)]
        start = time.perf_counter()
        heard = units_of(Products(), data, configs, folder / "run", epochs=1, workers=WORKERS)
        wall = time.perf_counter() - start
    units = [unit for _, unit in heard]
    span = max(unit.ended for unit in units) - min(unit.started for unit in units)
    return span, sum(unit.ended - unit.started for unit in units) / (WORKERS * span), wall


def _by_hand(products: int, units: int) -> float:
    """Return the seconds from the first unit's start to the last one's end."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(WORKERS)]
    processes = [context.Process(target=_loop, args=(theirs, products, units // WORKERS)) for _, theirs in pipes]
    for process in processes:
        process.start()
    for mine, _ in pipes:
        mine.recv()
    for mine, _ in pipes:
        mine.send("go")
    spans = [mine.recv() for mine, _ in pipes]
    for process in processes:
        process.join()
    return float(max(ended for _, ended in spans) - min(started for started, _ in spans))


def _loop(connection: Connection, products: int, units: int) -> None:
    torch.set_num_threads(1)
    multiply(1)
    connection.send("ready")
    connection.recv()
    started = time.monotonic()
    for _ in range(units):
        multiply(products)
    connection.send((started, time.monotonic()))
