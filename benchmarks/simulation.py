"""A whole experiment in virtual time with very many trials: the total cost of ``hop.simulate``.

Each run has its own process, so that its memory can be measured.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks.row import Row
from hopfleet.simulation.simulator import simulate

POLICIES = ("longest-remaining", "random")
BAR_SECONDS, BAR_MEGABYTES = 60, 1000


def measure(quick: bool) -> list[Row]:
    trials, partitions = (40, 4) if quick else (10_000, 16)
    rows = []
    for policy in POLICIES:
        for replicas in (1, partitions):
            where = "each partition on one worker" if replicas == 1 else "all partitions everywhere"
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                seconds, busy, megabytes, ratio = process.submit(_run, policy, trials, partitions, replicas).result()
            what = f"simulate {trials:,} trials x {partitions} workers x 1 epoch, {policy}, {where}"
            ours = f"{seconds:.1f} s ({busy:.1f} s of CPU), {megabytes:.0f} MB resident"
            bound = f"makespan {ratio:.4f} of the lower bound"
            ok = None if quick else seconds < BAR_SECONDS and megabytes < BAR_MEGABYTES
            rows.append(Row("simulation", what, ours, bound, None, "" if quick else "< 60 s, < 1 GB", ok))
    return rows


def _run(policy: str, trials: int, partitions: int, replicas: int) -> tuple[float, float, float, float]:
    """Return seconds, seconds of CPU, megabytes, and the ratio of the makespan to its bound."""
    began, busy = time.perf_counter(), time.process_time()
    ratio = simulate(trials=trials, partitions=partitions, replicas=replicas, policy=policy).ratio
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    return seconds, busy, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, ratio
