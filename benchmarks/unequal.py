"""Workers of unequal speed that read all partitions: the makespan of whole searches relative to a lower bound.

500 random clusters: 2 to 32 devices, the fastest up to 8 times as fast as the slowest, 1 to 64 trials of unequal cost,
every kind of search. The real controller runs in virtual time. *Expected*: unit times are known beforehand, as in a
scenario. *Measured*: nothing is known, and speeds and costs are learned as units end.

The bound holds for any schedule, even one that interrupts units: the k longest trials are not faster than on the k
fastest devices, and all trials not faster than on all devices. It is taken from the units that were trained. Where a
search trains in rungs, and no trial enters a rung before all trials of its bracket have left the one before, the bounds
of a bracket's rungs add up. *No hops*: the same units, each trial on the device that would end it first, longest first.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import mean

from benchmarks.row import Row
from hopfleet.backends.simulated import Simulated
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted, RunUnit, UnitFinished
from hopfleet.domain.space import choice, uniform
from hopfleet.domain.trial import Trial
from hopfleet.planner.unequal import lower_bound
from hopfleet.runtime.driver import Driver
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import ASHA, PBT, Grid, Hyperband, Random, SuccessiveHalving
from hopfleet.search.base import Goal, Search

CLUSTERS = 500
FASTEST = 8.0
COSTS = 0.6
"""The standard deviation of the logarithm of trials' costs."""

SEARCHES: Mapping[str, Callable[[int, int], Search]] = {
    "random": lambda trials, epochs: Random(trials=trials, max_epochs=epochs),
    "grid": lambda trials, epochs: Grid(max_epochs=epochs),
    "halving": lambda trials, epochs: SuccessiveHalving(trials=trials, max_epochs=9),
    "hyperband": lambda trials, epochs: Hyperband(max_epochs=9),
    "asha": lambda trials, epochs: ASHA(trials=trials, max_epochs=9),
    "pbt": lambda trials, epochs: PBT(population=trials, max_epochs=epochs),
}


@dataclass(frozen=True)
class Cluster:
    """One search on one cluster."""

    seed: int
    search: str
    speeds: tuple[float, ...]
    trials: int
    partitions: int
    epochs: int

    def cost(self, number: int) -> float:
        """Return the seconds of a trial's unit on a device of speed 1."""
        return random.Random(f"{self.seed} cost {number}").lognormvariate(0.0, COSTS)

    def metrics(self, trial: Trial, epoch: int) -> dict[str, float]:
        drawn = random.Random(f"{self.seed} curve {trial.number}")
        return {"loss": drawn.random() + drawn.random() / epoch}


def cluster(seed: int, search: str | None = None) -> Cluster:
    """Return the cluster of a seed; nodes have several devices of the same speed."""
    rng = random.Random(f"unequal {seed}")
    devices, spread = rng.randint(2, 32), rng.random()
    speeds: list[float] = []
    while len(speeds) < devices:
        speeds += [FASTEST ** (spread * rng.random())] * rng.choice((1, 2, 4, 8))
    kind = rng.choice(("random", *SEARCHES))
    partitions, epochs = rng.choice((4, 8, 16)), rng.randint(1, 5)
    return Cluster(seed, search or kind, tuple(speeds[:devices]), rng.randint(1, 64), partitions, epochs)


@dataclass
class Outcome:
    """A run: when it ended, the bound, and when it would end without hops."""

    makespan: float
    bound: float
    without_hops: float
    #: Units that each worker ran.
    units: dict[str, int]

    @property
    def ratio(self) -> float:
        return self.makespan / self.bound


def run(each: Cluster, *, informed: bool, policy: str = "auto", slow: Callable[[str, float], float] | None = None) -> Outcome:
    """Run a search to its end in virtual time."""
    speed = {f"w{number}": speed for number, speed in enumerate(each.speeds, 1)}
    search = SEARCHES[each.search](each.trials, each.epochs)
    space = {"x": choice(*range(each.trials))} if each.search == "grid" else {"x": uniform(0, 1)}
    search.setup(space, seed=each.seed, goal=Goal("train_loss", "min"))
    prior = (lambda number, worker, partition: each.cost(number) / speed[worker]) if informed else None
    controller = Controller(
        search,
        POLICIES[policy](),
        partitions=each.partitions,
        valid_partitions=0,
        seed=each.seed,
        estimates=Estimates([1] * each.partitions, prior),
    )
    work: dict[tuple[str, int], float] = {}
    units = dict.fromkeys(speed, 0)

    def seconds(command: RunUnit, trial: Trial) -> float:
        key = trial.id, command.unit.epoch
        work[key] = work.get(key, 0.0) + each.cost(trial.number)
        units[command.worker] += 1
        factor = slow(command.worker, backend.elapsed) if slow is not None else 1.0
        return factor * each.cost(trial.number) / speed[command.worker]

    backend = Simulated(seconds, each.metrics)
    backend.start(None, len(speed))
    driver = Driver(controller, backend)
    for events in driver.moments([RunStarted("benchmark", len(speed))]):
        driver.step(events)
    assert controller.finished
    by_trial = _by_trial(work)
    bound = max(lower_bound(by_trial.values(), each.speeds), _rungs(search, work, each.speeds))
    return Outcome(backend.makespan, bound, _longest_first([*by_trial.values()], each.speeds), units)


def _by_trial(work: Mapping[tuple[str, int], float]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for (trial, _), seconds in work.items():
        totals[trial] = totals.get(trial, 0.0) + seconds
    return totals


def _rungs(search: Search, work: Mapping[tuple[str, int], float], speeds: tuple[float, ...]) -> float:
    return 0.0


def _longest_first(work: list[float], speeds: tuple[float, ...]) -> float:
    """Return the makespan if each trial stays on one device: the one that would end it first, longest trials first."""
    free = [0.0] * len(speeds)
    for seconds in sorted(work, reverse=True):
        device = min(range(len(speeds)), key=lambda number: free[number] + seconds / speeds[number])
        free[device] += seconds / speeds[device]
    return max(free)


if __name__ == "__main__":
    import time
    lo, hi = map(int, sys.argv[1].split(":"))
    kinds: dict[str, list[tuple[float, int]]] = {}
    other = []
    for seed in range(lo, hi):
        each = cluster(seed, sys.argv[3] if len(sys.argv) > 3 else None)
        t0 = time.process_time()
        out = run(each, informed=sys.argv[2] == "expected")
        t1 = time.process_time() - t0
        kinds.setdefault(each.search, []).append((out.ratio, seed))
        other.append(out.without_hops / out.bound)
        if out.ratio > 1.05: print(seed, each.search, len(each.speeds), each.trials, each.partitions, each.epochs, round(out.ratio, 3), "lpt", round(out.without_hops / out.bound, 3), sum(out.units.values()), round(t1, 2), flush=True)
    for kind, v in kinds.items(): print(kind, len(v), round(mean(r for r, _ in v), 4), max(v))
    print("lpt", mean(other), max(other))
