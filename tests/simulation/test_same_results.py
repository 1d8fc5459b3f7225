"""Simulated results that must not change: a change of these numbers is a change of schedules, or of virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from hopfleet.simulation.backend import Failure
from hopfleet.simulation.layouts import simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode
from hopfleet.simulation.simulator import simulate
from tests.chaos import simulated
from tests.helpers.virtual.driver import Driver

EXPERIMENTS: list[tuple[dict[str, Any], float]] = [
    ({"costs": "lognormal", "policy": "auto", "epochs": 2, "noise": 0.2, "seed": 22}, 24.546579289856396),
    ({"costs": "lognormal", "policy": "longest-remaining", "replicas": 2, "noise": 0.2, "seed": 35}, 13.79636504578389),
    ({"costs": "cnn", "policy": "random", "replicas": 4, "noise": 0.2, "seed": 18}, 7452.1530398515815),
    (
        {"costs": "lognormal", "policy": "portfolio", "replicas": 4, "epochs": 2, "noise": 0.2, "seed": 27},
        14.685877472999103,
    ),
]


@pytest.mark.parametrize(("options", "makespan"), EXPERIMENTS)
def test_simulations(options: dict[str, Any], makespan: float) -> None:
    assert simulate(trials=9, partitions=4, **options).makespan == pytest.approx(makespan, rel=1e-12)


def test_scenarios() -> None:
    nodes, rates = (SimulatedNode("a", 4, team=2), SimulatedNode("b", 2, 0.5)), (1500.0,) * 5 + (400.0,)
    scenario = Scenario(
        *(nodes, rates, 20000, 4, 2),
        scaling=(1.0, 1.8),
        spanning=True,
        form=0.5,
        prepare=0.001,
        model_bytes=1e8,
    )
    run = simulate_scenario(scenario, "longest-remaining", seed=2, failures=[Failure(3.0, "w1", 9.0)])
    assert run.simulation.makespan == pytest.approx(61.88085048010974, rel=1e-12)
    assert (run.prepared, run.needed, run.hops) == (25, 8, 6)


@pytest.mark.parametrize(
    ("seed", "makespan", "messages"), [(7, 20.5107, 69), (96, 11.0, 48), (211, 92.2033, 145), (334, 18.0625, 289)]
)
def test_experiments_with_faults(seed: int, makespan: float, messages: int) -> None:
    driver = Driver(simulated.setting(seed)).run()
    assert driver.makespan == pytest.approx(makespan, abs=1e-4) and len(driver.messages) == messages
