"""``python -m tests.chaos``: all attacks in their long forms, and one table of bars and results."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median

import benchmarks.faults
import benchmarks.verify
from benchmarks.row import Row, milliseconds, table
from tests.chaos import asking, files, liveness, processes, seeds, simulated, soak
from tests.chaos.runs import Report

RESUME_BAR = 3.0
STALL_SEEDS = 100_000
"""Simulated experiments that must not stall, at most."""

#: The attacks on real processes. Each takes the number of faults wanted of all together, and the seed.
ATTACKS: dict[str, Callable[[int, int], Report]] = {
    "worker-steps": lambda faults, seed: processes.worker_points(faults * 2 // 5, seed),
    "controller-steps": lambda faults, seed: processes.controller_points("inline", every=max(1, 1000 // faults)),
    "controller-steps-local": lambda faults, seed: processes.controller_points("local", every=max(4, 4000 // faults)),
    "controller-again": lambda faults, seed: processes.controller_again_and_again(max(3, faults // 10), seed),
    "writes": lambda faults, seed: processes.writes(max(3, faults // 10), seed),
    "soak": lambda faults, seed: soak.soak(max(16, 2 * faults), 0.02, (0.1, 0.3), seed)[0],
    "stop": lambda faults, seed: processes.stopped_and_continued(max(3, faults // 50), seed),
    "requests": lambda faults, seed: asking.random_requests(faults, seed),
    "models": lambda faults, seed: files.damaged_models(max(6, faults // 10), seed),
    "journal": lambda faults, seed: files.damaged_journal(max(3, faults // 50), seed),
    "clock": lambda faults, seed: files.clock_jumps(max(2, faults // 100), seed),
    "disk": lambda faults, seed: files.full_disk(max(1, faults // 300)),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000, help="of simulated experiments; 0: none")
    parser.add_argument("--faults", type=int, default=1000, help="in real processes, about; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="of what strikes real processes, and the first simulated")
    parser.add_argument("--only", choices=ATTACKS, action="append", help="this attack on real processes alone")
    parser.add_argument("--figures", action=argparse.BooleanOptionalAction, default=True, help="measure times too")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.faults:
        rows += attack(options.only or list(ATTACKS), options.faults, options.seed)
    if options.figures and not options.only:
        rows += figures()
    if options.seeds and not options.only:
        rows.append(stall(options.seed, min(options.seeds, STALL_SEEDS)))
        rows.append(simulate(options.seed, options.seeds))
    print(table(rows))
    return 1 if any(row.ok is False for row in rows) else 0


def attack(names: list[str], faults: int, seed: int) -> list[Row]:
    rows, sums, places = [], Counter[str](), Counter[str]()
    for name in names:
        began = time.monotonic()
        report = ATTACKS[name](faults, seed)
        print(f"{name}: {report.faults} faults in {time.monotonic() - began:.0f} s", flush=True)
        for problem in report.problems[:5]:
            again = f"--only {name} --faults {faults} --seed {seed}"
            print(f"  {problem}\n  again: {sys.executable} -m tests.chaos {again}")
        sums.update(faults=report.faults, lost=report.lost, doubled=report.doubled, checked=report.checked)
        places += report.places
        result = f"{report.faults} faults, {report.checked} runs compared, {len(report.problems)} problems"
        rows.append(Row(name, report.name, result, report.note, None, "as undisturbed", report.ok))
    print("where: " + ", ".join(f"{place} {count}" for place, count in places.most_common()))
    result = f"{sums['lost']} lost, {sums['doubled']} doubled"
    rows.append(Row("units", f"over {sums['faults']:,} real faults", result, "", None, "0 and 0", result[0] == "0"))
    return rows


def figures() -> list[Row]:
    rows = [*benchmarks.faults.measure(quick=False), *benchmarks.verify.measure(quick=False)]
    report, measured = soak.soak(48, 1.0, (2.0, 4.0), 1, controller=False)
    allowed = f"{measured.quiet:.1f} s undisturbed, {measured.faults} faults in units of {measured.unit:.0f} s"
    ok = report.ok and measured.overhead <= measured.allowed
    bar = f"≤ faults × unit + 10%: {measured.allowed:.1f} s"
    rows.append(Row("soak", "what faults cost in all", f"{measured.overhead:.1f} s", allowed, None, bar, ok))
    times = soak.resume_seconds(5)
    worst = f"worst {milliseconds(max(times))}"
    what = "process start to first new unit after the controller was killed, import included, median of 5"
    rows.append(
        Row("resume", what, milliseconds(median(times)), worst, None, "< 3 s + import", max(times) < RESUME_BAR)
    )
    return rows


def stall(first: int, count: int) -> Row:
    began = time.monotonic()
    failed = seeds.run_in_processes(
        "tests.chaos.liveness", liveness.run_all, first, first + count, len(os.sched_getaffinity(0))
    )
    result, other = f"{len(failed)} of {count:,} seeds failed", f"{time.monotonic() - began:.0f} s"
    return Row("liveness", "whole experiments that must not stall", result, other, None, "0", not failed)


def simulate(first: int, count: int) -> Row:
    began = time.monotonic()
    tally = simulated.run_all(first, first + count, len(os.sched_getaffinity(0)))
    result = f"{len(tally.failed)} of {tally.seeds:,} seeds failed"
    other = f"{sum(tally.faults.values()):,} faults, {tally.events:,} transitions, {time.monotonic() - began:.0f} s"
    return Row("simulated", "whole experiments, from seed " + str(first), result, other, None, "0", not tally.failed)


if __name__ == "__main__":
    sys.exit(main())
