"""Workers of unequal speed that read all partitions: the makespan of whole searches relative to a lower bound.

500 random clusters: 2 to 32 devices, the fastest up to 8 times as fast as the slowest, 1 to 64 trials of unequal cost,
all kinds of search. The real controller runs in virtual time. *Expected*: unit times are known beforehand, as in a
scenario. *Measured*: nothing is known, and speeds and costs are learned as units end.

The bound holds for any schedule, even one that interrupts units: the k longest trials are not faster than on the k
fastest devices, and all trials not faster than on all devices. It is taken from the units that were trained. Where no
trial of a bracket enters a rung before all have left the one before, a linear program minimizes over all orders in
which the rungs may end (``unequal_bounds``). ASHA, PBT and TPE
ask for work as results arrive. For them the bound takes as given when they asked: no schedule ends before the work
that they asked for at some moment, or later, could be done. The bound that takes nothing as given, which no search
reaches that waits for results, is in a row of its own. *No hops*: the units of a random or grid search, each trial on
the device that would end it first, longest first.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean

from benchmarks.row import Row
from benchmarks.unequal_bounds import least_seconds
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted, RunUnit
from hopfleet.domain.space import choice, uniform
from hopfleet.domain.trial import Trial
from hopfleet.planner.unequal import lower_bound
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.asha import ASHA
from hopfleet.search.base import Goal, Search
from hopfleet.search.brackets import Bracketed
from hopfleet.search.grid import Grid
from hopfleet.search.halving import SuccessiveHalving
from hopfleet.search.hyperband import Hyperband
from hopfleet.search.optuna import TPE
from hopfleet.search.pbt import PBT
from hopfleet.search.random import Random
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver

Speeds = tuple[float, ...]
Slowed = Callable[[str, float], float]

CLUSTERS = 500
SMALL = 100
"""Units of a cluster for a functional check, at most."""
MEAN, MOST = 1.03, 1.1
"""The bar."""
BUILD = Path(__file__).parents[1] / "build" / "benchmarks"
SOURCE = Path(__file__).parents[1] / "src" / "hopfleet"
FASTEST = 8.0
COSTS = 0.6
"""The standard deviation of the logarithm of trials' costs."""

SEARCHES: Mapping[str, Callable[[int, int], Search]] = {
    "random": lambda trials, epochs: Random(trials=trials, max_epochs=epochs),
    "grid": lambda trials, epochs: Grid(max_epochs=epochs),
    "halving": lambda trials, epochs: SuccessiveHalving(trials=trials, max_epochs=9),
    "hyperband": lambda trials, epochs: Hyperband(max_epochs=9),
    "asha": lambda trials, epochs: ASHA(trials=trials, max_epochs=9),
    "pbt": lambda trials, epochs: PBT(population=max(2, trials // 2), max_epochs=epochs),
    "tpe": lambda trials, epochs: TPE(trials=trials, max_epochs=epochs),
}


@dataclass(frozen=True)
class Cluster:
    """One search on one cluster."""

    seed: int
    search: str
    speeds: Speeds
    trials: int
    partitions: int
    epochs: int

    def cost(self, number: int) -> float:
        """Return the seconds of a trial's unit on a device of speed 1."""
        return _cost(self.seed, number)

    def metrics(self, trial: Trial, epoch: int) -> dict[str, float]:
        drawn = random.Random(f"{self.seed} curve {trial.number}")
        return {"loss": drawn.random() + drawn.random() / epoch}


@cache
def _cost(seed: int, number: int) -> float:
    return random.Random(f"{seed} cost {number}").lognormvariate(0.0, COSTS)


def cluster(seed: int, search: str | None = None) -> Cluster:
    """Return the cluster of a seed; nodes have several devices of the same speed."""
    rng = random.Random(f"unequal {seed}")
    devices, spread = rng.randint(2, 32), rng.random()
    speeds: list[float] = []
    while len(speeds) < devices:
        speeds += [FASTEST ** (spread * rng.random())] * rng.choice((1, 2, 4, 8))
    kind = rng.choice(("random", *SEARCHES))
    partitions, epochs = rng.choice((4, 8, 16)), rng.randint(1, 4)
    return Cluster(seed, search or kind, tuple(speeds[:devices]), rng.randint(1, 64), partitions, epochs)


@dataclass(frozen=True)
class Outcome:
    """A run: when it ended, the bounds, and when it would end without hops."""

    makespan: float
    bound: float
    #: The bound that does not take as given when a search asked for work.
    hindsight: float
    without_hops: float
    #: Units that each worker ran.
    units: Mapping[str, int]

    @property
    def ratio(self) -> float:
        return self.makespan / self.bound


Work = dict[tuple[int, int], float]
"""Seconds on a device of speed 1, by trial and epoch."""


def run(
    each: Cluster, *, informed: bool = True, policy: str = "auto", slowed: Slowed = lambda worker, now: 1.0
) -> Outcome:
    """Run a search to its end in virtual time; ``slowed`` multiplies the times of units that start on a worker."""
    speed = {f"w{number}": speed for number, speed in enumerate(each.speeds, 1)}
    search = SEARCHES[each.search](each.trials, each.epochs)
    space = {"x": choice(range(each.trials)) if each.search == "grid" else uniform(0, 1)}
    search.setup(space, seed=each.seed, goal=Goal("train_loss", "min"))
    prior = (lambda number, worker, partition: each.cost(number) / speed[worker]) if informed else None
    controller = Controller(
        search,
        POLICIES[policy](),
        partitions=each.partitions,
        valid_partitions=0,
        seed=each.seed,
        max_live=search.concurrency(len(speed)),
        estimates=Estimates([1] * each.partitions, prior),
    )
    work: Work = {}
    asked: Work = {}
    units = dict.fromkeys(speed, 0)

    def seconds(command: RunUnit, trial: Trial) -> float:
        key, cost = (trial.number, command.unit.epoch), each.cost(trial.number)
        work[key] = work.get(key, 0.0) + cost
        units[command.worker] += 1
        return slowed(command.worker, backend.elapsed) * cost / speed[command.worker]

    backend = Simulated(seconds, each.metrics)
    backend.start(None, len(speed))
    driver = simulated_driver(controller, backend)
    for events in driver.moments([RunStarted("benchmark", len(speed))]):
        driver.step(events)
        for progress in controller.schedule.trials.values():
            for epoch in range(progress.trial.epochs, 0, -1):
                if (progress.trial.number, epoch) in asked:
                    break
                asked[progress.trial.number, epoch] = backend.elapsed
    assert controller.finished
    hindsight = _bound(work, each.speeds)
    bound = _by_rungs(search, work, each.speeds) if isinstance(search, Bracketed) else _since(work, asked, each.speeds)
    return Outcome(backend.makespan, bound, hindsight, _longest_first(_by_trial(work), each.speeds), units)


def _by_trial(work: Work) -> list[float]:
    totals: dict[int, float] = {}
    for (trial, _), seconds in work.items():
        totals[trial] = totals.get(trial, 0.0) + seconds
    return [*totals.values()]


def _bound(work: Work, speeds: Speeds) -> float:
    return lower_bound(_by_trial(work), speeds)


def _by_rungs(search: Bracketed, work: Work, speeds: Speeds) -> float:
    """Return the bound given the rungs; brackets are filled one after another."""
    brackets, first = [], 0
    for size, levels in search.table:
        mine = {key: seconds for key, seconds in work.items() if first <= key[0] < first + size}
        rungs = pairwise([0, *levels])
        parts = [_by_trial({key: mine[key] for key in mine if low < key[1] <= high}) for low, high in rungs]
        brackets.append([part for part in parts if part])
        first += size
    return least_seconds(brackets, speeds)


def _since(work: Work, asked: Work, speeds: Speeds) -> float:
    """Return the bound, given when each epoch was asked for."""
    moments = {asked[key] for key in work}
    return max(now + _bound({key: work[key] for key in work if asked[key] >= now}, speeds) for now in moments)


def _longest_first(work: list[float], speeds: Speeds) -> float:
    """Return the makespan if each trial stays on one device: the one that would end it first, longest trials first."""
    free = [0.0] * len(speeds)
    for seconds in sorted(work, reverse=True):
        device = min(range(len(speeds)), key=lambda number: free[number] + seconds / speeds[number])
        free[device] += seconds / speeds[device]
    return max(free)


@dataclass(frozen=True)
class Result:
    """What is kept of a run: the makespan by the bound, by that in hindsight, and that of no hops by the latter."""

    seed: int
    informed: bool
    search: str
    ratio: float
    hindsight: float
    without_hops: float


def measure(quick: bool) -> list[Row]:
    seeds = [*filter(_small, range(CLUSTERS))][:6] if quick else range(CLUSTERS)
    asked = [(seed, informed) for informed in (True, False) for seed in seeds]
    results = [*map(result, asked)] if quick else _resumed(asked)
    rows = []
    for informed in (True, False):
        some = [each for each in results if each.informed == informed]
        rows += _rows(some, "expected" if informed else "measured", bar=informed)
    return rows


def result(asked: tuple[int, bool]) -> Result:
    """Run the cluster of a seed."""
    seed, informed = asked
    each = cluster(seed)
    outcome = run(each, informed=informed)
    others = outcome.makespan / outcome.hindsight, outcome.without_hops / outcome.hindsight
    return Result(seed, informed, each.search, outcome.ratio, *others)


def _resumed(asked: Sequence[tuple[int, bool]]) -> list[Result]:
    """Run clusters on all cores; results of the same code are kept, so a run that was stopped goes on."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"unequal-{_digest()}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    known = {(each.seed, each.informed) for each in results}
    missing = [each for each in asked if each not in known]
    context = multiprocessing.get_context("spawn")
    with path.open("a", encoding="utf-8") as file, context.Pool(len(os.sched_getaffinity(0))) as processes:
        for found in processes.imap_unordered(result, missing):
            file.write(json.dumps(asdict(found)) + "\n")
            file.flush()
            results.append(found)
    return [each for each in results if (each.seed, each.informed) in set(asked)]


def _digest() -> str:
    """Return a digest of all code that a result may depend on."""
    files = [Path(__file__), *sorted(SOURCE.rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _small(seed: int) -> bool:
    found = cluster(seed)
    return found.trials * found.partitions * found.epochs <= SMALL


def _rows(results: Sequence[Result], known: str, *, bar: bool) -> list[Row]:
    """Return a row for all clusters, and one for each kind of search."""
    rows = []
    for kinds in ((*SEARCHES,), *((kind,) for kind in SEARCHES)):
        some = [each for each in results if each.search in kinds]
        if not some:
            continue
        worst, average = max(some, key=lambda each: each.ratio), mean(each.ratio for each in some)
        above, whole = sum(each.ratio > MOST for each in some), len(kinds) > 1
        stay = [each.without_hops for each in results if each.search in ("random", "grid")]
        rows.append(
            Row(
                "unequal",
                f"{len(some)} clusters, {known}: {'all searches' if whole else kinds[0]}",
                f"mean {average:.4f}, max {worst.ratio:.4f} (cluster {worst.seed}), {above} above {MOST}",
                f"no hops: mean {mean(stay):.4f}, max {max(stay):.4f}"
                if whole and stay
                else f"hindsight: mean {mean(each.hindsight for each in some):.4f}",
                bar=f"mean ≤ {MEAN}, max ≤ {MOST}" if bar and whole else "",
                ok=(average <= MEAN and worst.ratio <= MOST) if bar and whole else None,
            )
        )
    return rows
