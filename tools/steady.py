"""Repeat tests in other orders while all cores are busy, and list what failed: ``make steady``.

Each repetition runs a command, e.g. ``make test``, with another seed for the order of tests, which
``tests/helpers/shuffle.py`` shuffles. The same seed gives the same order: ``make steady SEED=17 REPEAT=1``.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def busy_cores() -> Iterator[None]:
    """Occupy each core of this machine with a process that never waits."""
    spinning = [sys.executable, "-c", "import os\nwhile os.getppid() == " + str(os.getpid()) + ": sum(range(10**6))"]
    processes = [subprocess.Popen(spinning) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def failures(command: list[str], seed: int) -> list[str]:
    """Run a command that runs pytest, and return what failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "failed"
        options = (
            f"{os.environ.get('PYTEST_ADDOPTS', '')} -p tests.helpers.shuffle --shuffle {seed} --failed-to {report}"
        )
        done = subprocess.run(command, env=os.environ | {"PYTEST_ADDOPTS": options}, check=False)
        failed = report.read_text().splitlines() if report.exists() else []
    return failed or ([f"{shlex.join(command)}: exit code {done.returncode}"] if done.returncode else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--seed", type=int, help="seed of the first repetition; each other one adds 1")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    first = random.randrange(10**6) if asked.seed is None else asked.seed
    seeds: dict[str, list[int]] = defaultdict(list)
    with busy_cores():
        for seed in range(first, first + asked.repeat):
            print(f"repetition {seed - first + 1} of {asked.repeat}: seed {seed}", flush=True)
            for failed in failures(asked.command, seed):
                seeds[failed].append(seed)
    for failed, found in sorted(seeds.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{failed}: failed {len(found)} of {asked.repeat} times, with seed {', '.join(map(str, found))}")
    if not seeds:
        print(f"nothing failed in {asked.repeat} repetitions")
    return 1 if seeds else 0


if __name__ == "__main__":
    sys.exit(main())
