"""The switch, simulated: idle devices join as teams when trials run out, through the controller of real experiments.

The gain of a team of two is measured first: a network trains on one process and on two (``ddp``, gloo), alternately, in
the same processes and with one thread each. Rates of larger teams follow by FLEET's equation 5. Only a machine with two
idle cores measures anything.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from statistics import mean, median

import torch

from benchmarks.row import Row
from benchmarks.tasks import Wide
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache, Session
from hopfleet.frameworks.torch.parallel.team import TorchTeam
from hopfleet.planner.divisions import least_seconds
from hopfleet.simulation.layouts import simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode
from hopfleet.testing.strategies import with_team

BATCH, BATCHES = 1024, 16

FRESH = 1000
"""The first seed of searches that were not looked at while the choice of teams was made."""


def measure(quick: bool = False) -> list[Row]:
    pair = _pair(1 if quick else 9)
    rows = [_last_trials(f"of ddp on this machine ({pair:.2f} for two devices)", pair, bar=True)]
    rows += [_last_trials(f"assumed ({assumed} for two devices)", assumed) for assumed in (1.6, 1.8, 1.95)]
    return [*rows, *_drawn(10 if quick else 100), *_bounded(4 if quick else 100)]


def _pair(rounds: int) -> float:
    """Return how many times faster two processes train than one; the median of some rounds.

    PyTorch reads the number of threads when it is loaded; set later, it does not hold for backward passes.
    """
    command = [sys.executable, "-m", "benchmarks.teams", str(rounds)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    return float(done.stdout.split()[-1])


def _rounds(rounds: int, team: TorchTeam, members: list[int]) -> float:
    batches = Ready({"x": torch.randn(BATCH, 64), "y": torch.randint(10, (BATCH,))} for _ in range(BATCHES))
    cache = EngineCache()
    cache.team = team
    one, two = (
        Wide().framework.open({}, seed=0, placement=placement, threads=1, cache=cache)
        for placement in (Placement.on("cpu"), Placement(("cpu",) * 2, "ddp"))
    )
    found = [_seconds(one, batches) / _seconds(two, batches) for _ in range(rounds + 1)]
    return median(found[1:])  # the first round warms up


class Ready(list[dict[str, torch.Tensor]]):
    """Batches in memory."""

    rows = BATCH * BATCHES


def _seconds(session: Session, batches: Ready) -> float:
    began = time.perf_counter()
    session.train(batches, last=False)
    return time.perf_counter() - began


def _last_trials(name: str, pair: float, *, bar: bool = False) -> Row:
    last = Scenario(
        (SimulatedNode("a", 8),), (100.0,) * 3, 8000, 8, 5, scaling=(1.0, pair) if pair > 1 else (1.0,), form=1.0
    )
    switched, without = _makespan(last), _makespan(replace(last, switch=False))
    gain = without / switched
    return Row(
        "teams",
        f"3 trials left on 8 devices, scaling {name}",
        f"{switched:.0f} s",
        f"{without:.0f} s without the switch",
        gain,
        "≥ 1.5" if bar else "",
        gain >= 1.5 if bar else None,
    )


def _drawn(count: int) -> list[Row]:
    gains = {"as expected": list[float](), "10% off": list[float]()}
    for seed in range(count):
        rng = random.Random(seed)
        scenario = Scenario(
            (SimulatedNode("a", rng.choice([2, 3, 4, 8, 16])),),
            tuple(rng.uniform(20, 200) for _ in range(rng.randint(1, 20))),
            rows=8000,
            partitions=rng.choice([1, 2, 8]),
            epochs=rng.randint(1, 6),
            scaling=(1.0, 1.0 + rng.uniform(0.05, 1.0)),
            form=rng.choice([0.0, 1.0, 20.0, 100.0]),
            fuse=rng.random() < 0.5,
        )
        for noise, found in zip((0.0, 0.1), gains.values(), strict=True):
            without = _makespan(replace(scenario, switch=False), noise, seed)
            found.append(without / _makespan(scenario, noise, seed))
    return [
        Row(
            "teams",
            f"{count} random searches, unit times {name}: gain of the switch, mean",
            f"{mean(found):.2f}",
            f"lowest {min(found):.3f}",
            mean(found),
            "never below 1" if name == "as expected" else "",
            min(found) >= 1 - 1e-9 if name == "as expected" else None,
        )
        for name, found in gains.items()
    ]


def _bounded(count: int) -> list[Row]:
    """Return how far from the bound random searches end, with teams and without.

    The bound lets trials share devices in any proportion, at no cost and at any time, and units be of any length.
    """
    rows = []
    for name, more in (("fewer trials than devices", False), ("one to two trials for each device", True)):
        teams, alone = list[float](), list[float]()
        for seed in range(FRESH, FRESH + count):
            scenario = _search(random.Random(seed), more=more)
            work = [scenario.epochs * scenario.rows / rate for rate in scenario.rates]
            bound = least_seconds(work, scenario.nodes[0].devices, scenario.teams.speed)
            teams.append(_makespan(scenario) / bound)
            alone.append(_makespan(replace(scenario, switch=False)) / bound)
        value, other = (f"mean {mean(found):.3f}, worst {max(found):.3f}" for found in (teams, alone))
        what = f"{count} random searches, {name}: makespan / bound"
        rows.append(Row("teams", what, value, f"{other} without teams", mean(teams), "≤ 1.03", mean(teams) <= 1.03))
    return rows


def _search(rng: random.Random, *, more: bool) -> Scenario:
    devices = rng.choice([2, 3, 4, 6, 8, 12, 16])
    trials = rng.randint(devices, 2 * devices) if more else rng.randint(1, devices - 1)
    return Scenario(
        (SimulatedNode("a", devices),),
        tuple(rng.uniform(20, 200) for _ in range(trials)),
        rows=8000,
        partitions=rng.choice([2, 4, 8]),
        epochs=rng.randint(2, 6),
        scaling=(1.0, 1.0 + rng.uniform(0.5, 1.0)),
        form=rng.choice([0.0, 0.5, 2.0]),
        fuse=False,
    )


def _makespan(scenario: Scenario, noise: float = 0.0, seed: int = 0) -> float:
    return simulate_scenario(scenario, noise=noise, seed=seed).simulation.makespan


if __name__ == "__main__":
    print(with_team(Wide(), 2, partial(_rounds, int(sys.argv[1]))))
