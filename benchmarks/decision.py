"""Decisions of the controller on a finished unit, from a few live trials to 10,000, and with Hyperband.

The simulated backend supplies the events; only the controller is timed. Unit times differ between trials, so that the
policy has a choice to make.
"""

from __future__ import annotations

import math
import time
from statistics import mean, median

from benchmarks.row import Row, milliseconds
from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted, UnitFinished
from hopfleet.domain.space import uniform
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Goal, Search
from hopfleet.search.hyperband import Hyperband
from hopfleet.search.random import Random
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver

WORKERS = 16
#: Policies that suit very many trials, and how their time may grow with the number of trials.
GROWTH = {"auto": ("linear", 1.0), "longest-remaining": ("square root", 0.5), "random": ("square root", 0.5)}
BAR = 1e-3
#: Limit of the mean time of a decision with a plan, by live trials; includes choosing again.
PLANNED = {16: 1e-3, 256: 2e-3}
#: Live trials, and the number of units to time.
SIZES = ((16, 500), (256, 8000), (1000, 1500), (10_000, 300))
QUICK = ((8, 50), (32, 50))
#: Limit of the mean time of a decision of `auto` with Hyperband.
BRACKETS = 2e-3


def measure(quick: bool) -> list[Row]:
    rows = []
    for policy, (law, power) in GROWTH.items():
        for pinned in (False, True):
            where = "each partition on one worker" if pinned else "all partitions everywhere"
            smaller: tuple[int, float] | None = None
            for trials, units in QUICK if quick else SIZES:
                search = Random(trials=trials, max_epochs=2)
                times = sorted(_decisions(policy, search, units, trials, pinned=pinned))
                middle, last = median(times), times[int(0.99 * len(times))]
                growth, bar, ok = "", "", None
                if policy == "auto" and pinned and trials in PLANNED:
                    most = PLANNED[trials]
                    bar, ok = f"mean < {milliseconds(most)}", mean(times) < most
                elif trials == 256:
                    bar, ok = "mean and p99 < 1 ms", mean(times) < BAR and last < BAR
                if smaller is not None and trials > 256:
                    more, slower = trials / smaller[0], middle / smaller[1]
                    growth = f"{milliseconds(smaller[1])} at {smaller[0]:,}: ×{slower:.1f} for ×{more:.1f}"
                    # Allow a tenth for noise.
                    bar, ok = law, slower <= 1.1 * more**power
                smaller = (trials, middle)
                name = f"{trials:,} live trials, {policy}, {where}"
                rows.append(Row("decision", name, _said(times), growth, None, bar, ok))
    epochs = 9 if quick else 81
    times = sorted(_decisions("auto", Hyperband(max_epochs=epochs), math.inf, 10_000, pinned=False))
    name, bar = f"Hyperband, {epochs} epochs, auto, all partitions everywhere", f"mean < {milliseconds(BRACKETS)}"
    rows.append(Row("decision", name, _said(times), "", None, bar, mean(times) < BRACKETS))
    return rows


def _said(times: list[float]) -> str:
    last = times[int(0.99 * len(times))]
    return f"mean {milliseconds(mean(times))}, median {milliseconds(median(times))}, p99 {milliseconds(last)}"


def _decisions(policy: str, search: Search, units: float, live: int, *, pinned: bool) -> list[float]:
    """Return the seconds of each decision on a finished unit."""
    search.setup({"cost": uniform(0.5, 1.5)}, seed=0, goal=Goal("loss", "min"))
    controller = Controller(search, POLICIES[policy](), partitions=WORKERS, valid_partitions=1, max_live=live)
    backend = Simulated(
        lambda command, trial: trial.config["cost"] if command.unit.trains else 0.05,
        partitions=[[number] for number in range(WORKERS)] if pinned else None,
    )
    backend.start(None, WORKERS)
    driver = simulated_driver(controller, backend)
    times: list[float] = []
    for events in driver.moments([RunStarted("benchmark", WORKERS)]):
        for event in events:
            start = time.perf_counter()
            messages = driver.decide([event])
            if isinstance(event, UnitFinished) and event.unit.trains:
                times.append(time.perf_counter() - start)
            driver.follow(messages)
        if len(times) >= units:
            break
    return times
