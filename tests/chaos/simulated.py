"""Whole experiments in virtual time, one for each seed, with faults at every message boundary.

A seed makes an experiment, a fleet and what goes wrong: messages that are lost, late, doubled or in another order,
workers that die, that are only taken for dead, or do not hear, files that vanish, a controller that dies before it has
written anything down, after it, or between any two of its effects, and a user who makes requests meanwhile. The
driver checks the state after every transition and the whole history at the end.

    python -m tests.chaos.simulated --seeds 0:10000 --jobs 2
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import FAULTS, REQUESTS, Fault, Setting, covered

CHEAP, COSTLY = ("longest-remaining", "nearly-done", "random"), ("auto", "match-reserve")
CHUNK = 250
"""Seeds that a process takes at once."""
SHOWN = 5
"""Failing seeds that are told in full."""


def setting(seed: int) -> Setting:
    """The experiment of a seed, and all that goes wrong in it. Most are small: faults meet sooner there."""
    rng = random.Random(f"chaos {seed}")
    large = rng.random() < 0.02
    partitions = rng.randint(1, 8 if large else 4)
    trials, epochs = rng.randint(1, 10 if large else 4), rng.randint(1, 4 if large else 3)
    playful = rng.random() < 0.4
    workers = _fleet(rng, partitions)
    valid = rng.randint(0, 2)
    evaluators, whole = _evaluators(random.Random(f"evaluators {seed}"), len(workers), valid)
    return Setting(
        workers=workers,
        partitions=partitions,
        valid=valid,
        evaluators=evaluators,
        whole=whole,
        trials=trials,
        epochs=epochs,
        stops={rng.randrange(trials): rng.randint(1, epochs)} if rng.random() < 0.3 else {},
        policy=rng.choice(COSTLY if rng.random() < 0.1 else CHEAP),
        max_live=rng.choice([1, 3, 256]),
        seed=rng.randrange(2**16),
        steady=rng.random() < 0.3,
        save_seconds=rng.choice([0.0, 0.5, 5.0]),
        faults=tuple(_faults(rng, trials * epochs * partitions)),
        playful=playful,
        fixed=rng.random() < 0.3,
        moment=rng.choice([None, 0.0, 1.0]),
        together=rng.choice([0, 2, 8]),
        sticky=rng.random() < 0.3,
        lookahead=rng.random() < 0.5,
        brisk=rng.random() < 0.5,
    )


def _fleet(rng: random.Random, partitions: int) -> tuple[tuple[int, ...] | None, ...]:
    """1 to 4 workers, each with all or some partitions; every partition is somewhere."""
    workers: list[tuple[int, ...] | None] = [
        None if rng.random() < 0.5 else tuple(part for part in range(partitions) if rng.random() < 0.6)
        for _ in range(rng.randint(1, 4))
    ]
    if not covered(workers, partitions):
        workers[rng.randrange(len(workers))] = None
    return tuple(workers)


def _evaluators(rng: random.Random, workers: int, valid: int) -> tuple[tuple[tuple[int, ...] | None, ...], bool]:
    """Return the validation partitions of each worker, in half of all cases some, and whether metrics need all."""
    every = range(valid)
    if rng.random() < 0.5:
        return (), rng.random() < 0.1
    some = tuple(
        None if rng.random() < 0.2 else tuple(part for part in every if rng.random() < 0.6) for _ in range(workers)
    )
    return some, rng.random() < 0.2


def _faults(rng: random.Random, units: int) -> Iterator[Fault]:
    """Faults of many kinds, or again and again of a few; spread over the experiment, or all at once."""
    kinds = (*FAULTS, *REQUESTS) if rng.random() < 0.5 else FAULTS
    if rng.random() < 0.3:
        kinds = tuple(rng.sample(kinds, 2))
    last = rng.choice([10, 4 * units + 10])
    for _ in range(rng.choice([1, 3, 6, 12])):
        yield Fault(rng.randint(0, last), rng.choice(kinds), rng.randrange(1000))


@dataclass
class Tally:
    """What came of some seeds."""

    seeds: int = 0
    events: int = 0
    units: int = 0
    undone: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0  #: of processor time

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.units += other.units
        self.undone += other.undone
        self.faults += other.faults
        self.failed += other.failed
        self.seconds += other.seconds

    def __str__(self) -> str:
        faults = sum(self.faults.values())
        return (
            f"{self.seeds:,} seeds, {faults:,} faults, {self.events:,} transitions, {self.units:,} units counted, "
            f"{self.undone:,} of them rolled back; {len(self.failed)} seeds failed; "
            f"{1e3 * self.seconds / max(1, self.seeds):.1f} ms of processor time a seed"
        )


def run(seeds: Iterable[int]) -> Tally:
    """One after another, in this process."""
    gc.set_threshold(50_000, 20, 20)  # as in tests/conftest.py: a quarter of the time went into looking for garbage
    tally, began = Tally(), time.process_time()
    for seed in seeds:
        tally.seeds += 1
        driver = Driver(setting(seed))
        try:
            driver.run()
        except Exception:
            tally.failed.append((seed, traceback.format_exc()))
            continue
        tally.events += len(driver.boundaries)
        tally.units += driver.attempts.finished
        tally.undone += driver.attempts.undone
        tally.faults.update(driver.struck)
    tally.seconds = time.process_time() - began
    return tally


def run_all(first: int, last: int, jobs: int) -> Tally:
    """In several processes, telling how far it has come."""
    tally, began, told = Tally(), time.monotonic(), 0.0
    chunks = [range(start, min(start + CHUNK, last)) for start in range(first, last, CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for part in pool.map(run, chunks):
            tally.add(part)
            for seed, story in part.failed[: max(0, SHOWN - len(tally.failed) + len(part.failed))]:
                print(f"{story}seed {seed} fails; replay it with: {command(seed)}", flush=True)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                print(f"{tally.seeds:,} of {last - first:,} seeds in {told - began:.0f} s", flush=True)
    return tally


def command(seed: int) -> str:
    return f"{sys.executable} -m tests.chaos.simulated --seeds {seed}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.simulated", description=__doc__)
    parser.add_argument("--seeds", default="0:10000", help="FIRST:LAST, the last one excluded, or a single one")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    if not last:
        Driver(setting(int(first))).run()  # its exception, if any, is for the user who replays it
        print(f"seed {first} passes: {setting(int(first))}")
        return 0
    tally = run_all(int(first), int(last), options.jobs)
    print(tally)
    print("faults: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(tally.faults.items())))
    if tally.failed:
        print(f"failing seeds: {', '.join(str(seed) for seed, _ in tally.failed[:100])}")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
