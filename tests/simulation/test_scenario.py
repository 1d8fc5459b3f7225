"""Scenarios: nodes, networks and rows that take time to prepare."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from hopfleet.errors import UsageError
from hopfleet.simulation.backend import Failure
from hopfleet.simulation.cluster import ScenarioRun
from hopfleet.simulation.layouts import simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode, is_scenario

TWO = (SimulatedNode("a", 2),)
EQUAL = Scenario(TWO, (100.0,) * 8, rows=800, partitions=4, epochs=3)


def test_networks_that_need_no_preparation_are_at_the_bound() -> None:
    run = simulate_scenario(EQUAL)
    assert run.simulation.makespan == pytest.approx(run.simulation.lower_bound) == pytest.approx(8 * 3 * 8 / 2)
    assert (run.prepared, run.needed, run.hops) == (0, 0, 0)


def test_one_network_per_device_prepares_for_itself() -> None:
    """With one kept partition and no sharing, each unit takes as long as its preparation."""
    slow = replace(EQUAL, prepare=0.05, fuse=False, kept=1, partitions=1, epochs=1)
    run = simulate_scenario(slow, "longest-remaining")
    assert run.prepared > run.needed == 1
    assert run.simulation.makespan > slow.lower_bound


def test_fleet_prepares_rows_once_on_a_node() -> None:
    rates = tuple(100.0 / cost for cost in (1, 1, 1, 2, 2, 3, 4, 5))
    unequal = replace(EQUAL, rates=rates, prepare=0.02, epochs=6)
    fleet, auto = simulate_scenario(unequal, "fleet"), simulate_scenario(unequal, "auto")
    assert fleet.prepared < auto.prepared
    alone = simulate_scenario(replace(unequal, fuse=False, kept=1), "auto")
    assert alone.simulation.makespan > 1.1 * fleet.simulation.makespan
    assert fleet.simulation.makespan <= auto.simulation.makespan * 1.001


def test_a_fast_node_trains_more() -> None:
    nodes = (SimulatedNode("a", 1, 3.0), SimulatedNode("b", 1, 1.0))
    run = simulate_scenario(replace(EQUAL, nodes=nodes, model_bytes=1e6, bandwidth=1e6), "fleet")
    assert run.hops > 0
    count = {worker: sum(span.worker == worker for span in run.simulation.history.spans) for worker in ("w1", "w2")}
    assert count["w1"] > 2 * count["w2"]


def test_noise_and_failures() -> None:
    calm, noisy = simulate_scenario(EQUAL), simulate_scenario(EQUAL, noise=0.3, seed=1)
    assert noisy.simulation.makespan != calm.simulation.makespan
    lost = simulate_scenario(EQUAL, failures=[Failure(5.0, "w2")])
    assert lost.simulation.makespan > 1.5 * calm.simulation.makespan
    with pytest.raises(UsageError, match="failure of 'w3': there are only w1 to w2"):
        simulate_scenario(EQUAL, failures=[Failure(5.0, "w3")])
    with pytest.raises(UsageError, match="noise=-1"):
        simulate_scenario(EQUAL, noise=-1)


FEW = Scenario((SimulatedNode("a", 8),), (100.0,) * 3, rows=8000, partitions=8, epochs=5, scaling=(1.0, 1.9))


def test_teams_take_the_time_of_their_scaling() -> None:
    """Efficiency falls by the same factor with each device."""
    pairs = simulate_scenario(
        replace(FEW, nodes=(SimulatedNode("a", 8, team=2),), switch=False), "longest-remaining"
    ).simulation
    assert pairs.workers == 4 and pairs.makespan == pytest.approx(5 * 80 / 1.9)
    fours = simulate_scenario(
        replace(FEW, nodes=(SimulatedNode("a", 8, team=4),), rates=(100.0,) * 2, switch=False)
    ).simulation
    assert fours.makespan == pytest.approx(fours.lower_bound) == pytest.approx(5 * 80 / (4 * 0.95**3))


def test_idle_devices_join_when_networks_are_fewer() -> None:
    switched, without = simulate_scenario(FEW).simulation, simulate_scenario(replace(FEW, switch=False)).simulation
    assert without.makespan == pytest.approx(400)
    assert switched.lower_bound <= switched.makespan < without.makespan / 1.5
    assert len(switched.history.workers) > 8, "teams joined"
    assert simulate_scenario(replace(FEW, form=500)).simulation.makespan == pytest.approx(400), "forming takes longer"
    enough = simulate_scenario(replace(FEW, rates=(100.0,) * 8)).simulation
    assert enough.makespan == pytest.approx(400) and len(enough.history.workers) == 8


@pytest.mark.parametrize("seed", range(20))
def test_the_switch_never_makes_a_run_longer(seed: int) -> None:
    rng = random.Random(seed)
    rates = tuple(rng.uniform(20, 200) for _ in range(rng.randint(1, 10)))
    devices, scaling = rng.choice([2, 4, 8]), (1.0, 1 + rng.uniform(0.05, 1))
    options = {"partitions": rng.choice([1, 2, 4]), "epochs": rng.randint(1, 4), "form": rng.choice([0, 1, 20, 100])}
    drawn = Scenario(
        (SimulatedNode("a", devices),), rates, rows=4000, scaling=scaling, fuse=rng.random() < 0.5, **options
    )
    without = simulate_scenario(replace(drawn, switch=False)).simulation
    assert simulate_scenario(drawn).simulation.makespan <= without.makespan * (1 + 1e-9)


CONTENT = {
    "rows": "1e3",
    "partitions": 2,
    "nodes": [{"name": "a", "devices": 2}, {"speed": 0.5}],
    "networks": [{"rate": 10, "count": 2}, {"rate": 5}],
}


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(CONTENT))
    assert is_scenario(path)
    found = Scenario.read(path)
    assert found.nodes == (SimulatedNode("a", 2), SimulatedNode("n2", 1, 0.5))
    assert found.rates == (10.0, 10.0, 5.0) and found.rows == 1000 and found.epochs == 1 and found.fuse


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speed": 1}, "speed: unknown in a scenario; there are bandwidth"),
        ({"nodes": 3}, "nodes: must be a list of items with devices, name, speed, team"),
        ({"nodes": []}, "at least one node and one network"),
        ({"nodes": [{"gpus": 1}]}, "nodes, item 1: gpus: unknown; there are devices"),
        ({"nodes": [{"name": "x", "devices": 0}]}, "node x: 0 devices of speed 1"),
        ({"networks": [{"rate": 0}]}, "network 1: 0 rows per second: must be above 0"),
        ({"networks": [{}]}, "rate of network 1: None: must be a number"),
        ({"partitions": 0}, "partitions=0: must be at least 1"),
        ({"rows": 1}, "rows=1: must be at least the number of partitions"),
        ({"prepare": -1}, "prepare=-1: must be finite"),
        ({"bandwidth": 0}, "bandwidth=0 bytes per second: must be above 0"),
        ({"nodes": [{"name": "x", "devices": 4, "team": 2}]}, "node x: team=2 of 4 devices: .* teams need scaling"),
        ({"nodes": [{"devices": 4, "team": 3}], "scaling": [1, 2]}, "team=3 of 4 devices: must divide the devices"),
        ({"replicas": -1}, "replicas=-1: must be at least 0, and 0 if sharded"),
        ({"replicas": 1, "sharded": True, "partitions": 2}, "replicas=1: must be at least 0, and 0 if sharded"),
        ({"scaling": [1, 0.9]}, r"scaling=\[1.0, 0.9\]: rates must be above 0 and grow"),
        ({"scaling": 2}, "scaling=2: must be a list of rates"),
        ({"nodes": [{"devices": 2.7}]}, "devices of node 1: 2.7: must be a whole number"),
        ({"nodes": [{"devices": math.inf}]}, "devices of node 1: inf: must be a whole number"),
        ({"networks": [{"rate": 1, "count": 10**8}]}, "count of network 1: 100,000,000: must be at most 1,000,000"),
        ({"epochs": 1.5}, "epochs: 1.5: must be a whole number"),
        ({"switch": "yes"}, "switch: 'yes': must be true or false"),
        ({"form": -1}, "form=-1 seconds: must be finite and at least 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Scenario.of({**CONTENT, **change})


NODES = Scenario(
    tuple(SimulatedNode(name, devices) for name, devices in (("a", 4), ("b", 2), ("c", 2))),
    (100.0,),
    rows=8000,
    partitions=8,
    epochs=2,
    scaling=(1.0, 1.9),
    replicas=1,
)


def sizes(run: ScenarioRun) -> list[int]:
    """Return the number of devices of each worker, in the order in which they joined."""
    return [worker.device.count("simulated") for worker in run.simulation.history.workers.values()]


def test_each_node_reads_its_part_of_the_rows() -> None:
    read = NODES.readable
    assert [len(mine or ()) for mine in read] == [4, 2, 2]
    assert sorted(partition for mine in read for partition in mine or ()) == list(range(8))
    assert replace(NODES, replicas=0).readable == [None] * 3


def test_idle_devices_join_within_their_nodes() -> None:
    switched, without = simulate_scenario(NODES), simulate_scenario(replace(NODES, switch=False))
    assert sizes(switched)[8:] == [4, 2, 2]
    assert switched.simulation.makespan < without.simulation.makespan / 1.5
    speed = NODES.teams.speed
    each = 160 * (0.5 / speed(4) + 0.5 / speed(2))
    assert switched.simulation.makespan == pytest.approx(each), "every team reads the rows of its own node"


def test_teams_that_span_nodes_are_led_by_one_of_them() -> None:
    spanning = simulate_scenario(replace(NODES, spanning=True))
    assert sizes(spanning)[8:] == [8]
    assert (
        spanning.simulation.lower_bound <= spanning.simulation.makespan < simulate_scenario(NODES).simulation.makespan
    )
