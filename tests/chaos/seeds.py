"""The command line of attacks that run one simulated experiment for each seed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

CHUNK = 250
"""Seeds that a process takes at once."""
SHOWN = 5
"""Failing seeds that are told in full."""

RunAll = Callable[[Iterable[int]], Sequence[tuple[int, BaseException]]]
"""Runs seeds, and returns those that fail with the reasons."""


def run_in_processes(module: str, run_all: RunAll, first: int, last: int, jobs: int) -> list[int]:
    """Run seeds in several processes, printing progress; return the seeds that fail."""
    failed: list[int] = []
    done, began, told = 0, time.monotonic(), 0.0
    chunks = [range(start, min(start + CHUNK, last)) for start in range(first, last, CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for chunk, problems in zip(chunks, pool.map(run_all, chunks), strict=True):
            done += len(chunk)
            for seed, error in problems:
                failed.append(seed)
                if len(failed) <= SHOWN:
                    again = f"{sys.executable} -m {module} --seeds {seed}:{seed + 1}"
                    print(f"{error!r}\nseed {seed} fails; replay it with: {again}", flush=True)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                print(f"{done:,} of {last - first:,} seeds in {told - began:.0f} s", flush=True)
    return failed


def main(module: str, description: str, run_all: RunAll) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seeds", default="0:100000", help="FIRST:LAST, the last one excluded")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    failed = run_in_processes(module, run_all, first, last, options.jobs)
    print(f"{last - first:,} seeds; {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, failed[:100]))}")
    return 1 if failed else 0
