"""The switch, simulated: idle devices join as teams when trials run out, through the controller of real experiments.

The gain of a team of two is measured first: rows per second of a network on one process and on two (``ddp``), in
turn on this machine. Rates of larger teams follow by FLEET's equation 5.
"""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean, median

import numpy as np

import hopfleet as hop
from benchmarks.row import Row
from benchmarks.runs import scratch
from benchmarks.tasks import Wide
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.experiment.previewing import scratch_folder
from hopfleet.experiment.trial_runs import run_trials
from hopfleet.forecast.scenario import Scenario, SimulatedNode

PAIR = TeamShape("ddp", 2)
ROWS, BATCH = 16_384, 1024


def measure(quick: bool = False) -> list[Row]:
    pair = _pair(1 if quick else 5)
    rows = [_last_trials(f"of ddp on this machine ({pair:.2f} for two devices)", pair, bar=True)]
    rows += [_last_trials(f"assumed ({assumed} for two devices)", assumed) for assumed in (1.6, 1.8, 1.95)]
    return [*rows, *_drawn(10 if quick else 100)]


def _pair(rounds: int) -> float:
    """Return how many times faster two processes train than one; the median of some rounds."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((ROWS, 64), np.float32), "y": rng.integers(0, 10, ROWS)}
    found = []
    with scratch() as folder:
        experiment = hop.Experiment(
            Wide(),
            train=hop.partition(arrays, folder / "data", partitions=2),
            space={"lr": hop.uniform(0.05, 0.1)},
            search=hop.Random(trials=1, max_epochs=1),
            metric="train_loss",
            run_options=hop.RunOptions(folder=folder / "run"),
            batch_size=BATCH,
        )
        for _ in range(rounds):
            with scratch_folder(experiment) as place:
                one, two = run_trials(experiment, place, [SINGLE, PAIR], lambda text: None)
            if one.error or two.error:
                raise RuntimeError(one.error or two.error)
            found.append(two.rows_per_second / one.rows_per_second)
    return median(found)


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


def _makespan(scenario: Scenario, noise: float = 0.0, seed: int = 0) -> float:
    return scenario.simulate(noise=noise, seed=seed).simulation.makespan
