"""Online scheduling: the makespan of whole runs relative to the bound, and the cost of a decision, by policy.

The settings are those of the Cerebro paper's Figure 6: 16 or 256 trials, 8 or 16 workers with one partition each, unit
time = cost of a CNN divided by speed of a GPU, or all alike. The real controller runs in virtual time. *Exact*: one
epoch, and every unit takes as long as expected. *Noise*: five epochs without a barrier, and a unit takes the expected
time times a lognormal factor. The bound is the work of the busiest worker or trial in these actual times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import mean

from benchmarks.row import Row, milliseconds
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted, RunUnit, UnitFinished
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Trial
from hopfleet.planner.costs import Times, cnns, homogeneous
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.slots import Assignment
from hopfleet.search.base import Goal
from hopfleet.search.random import Random
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver

EPOCHS = 5
NOISES = (0.1, 0.3, 0.5)
SIZES = ((16, 8), (16, 16), (256, 8), (256, 16))
#: Policies that are too slow for 256 trials are left out there.
SMALL = ("auto", "match-reserve", "portfolio", "exact", "vector-rearrangement", "longest-remaining", "random")
LARGE = ("auto", "match-reserve", "longest-remaining", "random")
NOISY = ("auto", "match-reserve", "longest-remaining", "random")


def measure(quick: bool) -> list[Row]:
    rows = []
    for alike in (True, False):
        for trials, workers in ((4, 3),) if quick else SIZES:
            small = trials <= 16
            for policy in SMALL if small else LARGE:
                seeds = 2 if quick else 30 if small else 3
                rows.append(_exact(policy, trials, workers, seeds, alike=alike))
        for noise in (0.3,) if quick else NOISES:
            for trials, workers in ((4, 3),) if quick else SIZES[:2]:
                seeds = 2 if quick else 10
                rows += [_noisy(policy, trials, workers, seeds, noise, alike=alike) for policy in NOISY]
    return rows


def _exact(policy: str, trials: int, workers: int, seeds: int, *, alike: bool) -> Row:
    runs = [run(POLICIES[policy], times(trials, workers, seed, alike), seed=seed) for seed in range(seeds)]
    bar, ok = "", None
    ratios = [each.ratio for each in runs]
    if policy == "auto":
        bar, ok = "mean ≤ 1.0005, max ≤ 1.005", mean(ratios) <= 1.0005 and max(ratios) <= 1.005
    elif policy == "match-reserve":
        bar, ok = "mean ≤ 1.005", mean(ratios) <= 1.005
    return _row(f"{_kind(alike)} {trials}×{workers}, exact, {seeds} seeds: {policy}", runs, bar, ok)


def _noisy(policy: str, trials: int, workers: int, seeds: int, noise: float, *, alike: bool) -> Row:
    runs = [
        run(POLICIES[policy], times(trials, workers, seed, alike), epochs=EPOCHS, noise=noise, seed=seed)
        for seed in range(seeds)
    ]
    bar, ok = "", None
    if policy == "auto":
        limit = 1.06 if alike and trials == workers else 1.015
        bar, ok = f"mean ≤ {limit}", mean(each.ratio for each in runs) <= limit
    return _row(f"{_kind(alike)} {trials}×{workers}, noise {noise}, {seeds} seeds: {policy}", runs, bar, ok)


def _kind(alike: bool) -> str:
    return "homogeneous" if alike else "heterogeneous"


def _row(what: str, runs: list[Run], bar: str, ok: bool | None) -> Row:
    ratios = [each.ratio for each in runs]
    decisions = [seconds for each in runs for seconds in each.decisions]
    spent = f"a decision: mean {milliseconds(mean(decisions))}, longest {milliseconds(max(decisions))}"
    return Row("online", what, f"mean {mean(ratios):.4f}, max {max(ratios):.4f}; {spent}", bar=bar, ok=ok)


def times(trials: int, workers: int, seed: int, alike: bool) -> Times:
    return homogeneous(trials, workers) if alike else cnns(trials, workers, random.Random(seed))


@dataclass
class Run:
    """The outcome of one experiment."""

    ratio: float = 0.0
    #: Seconds of every call to the policy.
    decisions: list[float] = field(default_factory=list)


def run(make: Callable[[], Policy], expected: Times, *, epochs: int = 1, noise: float = 0.0, seed: int = 0) -> Run:
    """Run a whole experiment in virtual time, with partition j on worker j."""
    trials, workers = len(expected), len(expected[0])
    result = Run()
    controller = Controller(
        _search(trials, epochs),
        _timed(make(), result.decisions),
        partitions=workers,
        valid_partitions=0,
        seed=seed,
        max_live=trials,
        estimates=Estimates([1] * workers, prior=lambda number, worker, partition: expected[number][partition]),
    )
    trial_loads, worker_loads = [0.0] * trials, [0.0] * workers

    def seconds(command: RunUnit, trial: Trial) -> float:
        draw = random.Random(f"{seed} {trial.number} {command.unit.epoch} {command.unit.partition}")
        actual = expected[trial.number][command.unit.partition] * draw.lognormvariate(0.0, noise)
        trial_loads[trial.number] += actual
        worker_loads[command.unit.partition] += actual
        return actual

    backend = Simulated(seconds, partitions=[[partition] for partition in range(workers)])
    backend.start(None, workers)
    makespan = 0.0
    driver = simulated_driver(controller, backend)
    for events in driver.moments([RunStarted("benchmark", workers)]):
        for event in events:
            if isinstance(event, UnitFinished) and event.unit.trains:
                makespan = backend.elapsed
                event = replace(event, sums={"train_loss": RowSum.of(1.0, 1)})
            driver.step([event])
    result.ratio = makespan / max(*trial_loads, *worker_loads)
    return result


def _search(trials: int, epochs: int) -> Random:
    search = Random(trials=trials, max_epochs=epochs)
    search.setup({"x": 1}, seed=0, goal=Goal("train_loss", "min"))
    return search


def _timed(policy: Policy, decisions: list[float]) -> Policy:
    def timed(schedule: Schedule, rng: random.Random) -> Assignment | None:
        start = time.perf_counter()
        assignment = policy(schedule, rng)
        decisions.append(time.perf_counter() - start)
        return assignment

    return timed
