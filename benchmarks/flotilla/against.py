"""Workloads of ``benchmarks.flotilla.machine`` with another checkout, such as a release, and with this one, in turns.

    python -m benchmarks.flotilla.against CHECKOUT [flights short large preprocessing] [--modes exact fast] [--turns 3]

``git worktree add CHECKOUT COMMIT`` makes a checkout. Both use the packages that are installed here. The order changes
from turn to turn. Seconds are of the whole process, start-up included; processor seconds are sampled.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from pathlib import Path

from benchmarks.flotilla.machine import LIMIT_SECONDS, MODES, TIMES, Outcome, measured, prepared

HERE = Path(__file__).parents[2]


def compared(name: str, mode: str, checkouts: list[Path], turns: int, quick: bool) -> list[list[Outcome]]:
    """Run a workload with each checkout, in turns."""
    found: list[list[Outcome]] = [[] for _ in checkouts]
    with prepared(name, quick) as data:
        for turn in range(turns):
            order = list(enumerate(checkouts))
            for number, checkout in reversed(order) if turn % 2 else order:
                for left in (data / "home", *data.glob("hopfleet-*")):
                    shutil.rmtree(left, ignore_errors=True)
                one = measured(name, mode, data, quick, LIMIT_SECONDS, checkout)
                if one.trouble:
                    raise RuntimeError(f"{checkout}: {one.trouble}")
                found[number].append(one)
                print(f"{name} {mode} {checkout}: {one.seconds:.2f} s, {one.busy:.1f} of processors", file=sys.stderr)
    return found


def main() -> None:
    names = list(dict.fromkeys(name for name, _ in TIMES))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*", default=names)
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny data: a functional check only")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| workload | mode | there | here | ratio of medians | processor seconds | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names:
        for mode in options.modes:
            both = compared(name, mode, [options.checkout.resolve(), HERE], options.turns, options.quick)
            cells = [name, f"`{mode}`"]
            for read in (lambda one: one.seconds, lambda one: one.busy):
                there, here = (sorted(map(read, some)) for some in both)
                ratio = statistics.median(there) / statistics.median(here)
                texts = [", ".join(f"{value:.1f}" for value in some) for some in (there, here)]
                cells += [*texts, f"{ratio:.3f}"] if len(cells) == 2 else [" against ".join(texts), f"{ratio:.3f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
