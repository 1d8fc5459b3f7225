"""Nodes whose devices are divided into teams by dry runs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hopfleet.errors import UsageError
from hopfleet.simulation.layouts import divided, simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode


def cluster(gpus: tuple[int, ...], seconds: list[float], **options: Any) -> Scenario:
    """Return models on nodes with a shard on each GPU; ``seconds`` are those of a shard on one GPU."""
    nodes = tuple(SimulatedNode(f"n{number}", count, team=0) for number, count in enumerate(gpus))
    rates = tuple(1000 / each for each in seconds)
    usual: dict[str, Any] = {"scaling": (1.0, 2.0), "switch": False, "sharded": True, "fuse": False}
    return Scenario(nodes, rates, 1000 * sum(gpus), len(gpus), **{**usual, **options})


def test_whole_nodes_where_teams_lose_nothing() -> None:
    few = cluster((4, 2, 2), [100.0, 200.0, 300.0])
    run = simulate_scenario(few).simulation
    assert run.workers == 3, "all GPUs of each node join"
    assert run.ratio == pytest.approx(1.0)
    assert run.lower_bound == pytest.approx(max(3 * 300.0, 600.0))


@pytest.mark.parametrize("trials", [3, 6, 12])
def test_never_worse_than_either_extreme(trials: int) -> None:
    rng = random.Random(trials)
    mixed = cluster((4, 2, 2), [rng.uniform(100, 1000) for _ in range(trials)], scaling=(1.0, 1.9), epochs=2)
    found = simulate_scenario(mixed).simulation
    for layout in (((1,) * 4, (1,) * 2, (1,) * 2), ((4,), (2,), (2,))):
        assert found.makespan <= simulate_scenario(divided(mixed, layout)).simulation.makespan
    assert 1 - 1e-9 <= found.ratio < 1.2


def test_units_are_planned_where_teams_share_partitions() -> None:
    """Shares of all epochs and rules that never wait end at 1.06 to 1.11 of the same bound in the first case."""
    for seed, most in ((0, 1.07), (2, 1.02)):
        rng = random.Random(seed)
        few = cluster((4, 2, 2), [rng.uniform(100, 1000) for _ in range(6)], scaling=(1.0, 1.9), epochs=3)
        few = divided(few, ((2, 2), (2,), (2,)))
        assert 1 - 1e-9 <= simulate_scenario(few).simulation.makespan / cluster_bound(few) <= most


def cluster_bound(scenario: Scenario) -> float:
    """Return the bound if teams could change between any two units."""
    return replace(scenario, nodes=tuple(replace(node, team=0, teams=()) for node in scenario.nodes)).lower_bound


def test_one_device_each_where_networks_are_many() -> None:
    assert simulate_scenario(cluster((2, 2), [100.0] * 16, scaling=(1.0, 1.5))).simulation.workers == 4


def test_partitions_are_sized_by_the_devices_of_their_node() -> None:
    sharded = cluster((4, 2, 2), [100.0])
    assert sharded.partition_rows == [4000, 2000, 2000]
    fast = replace(sharded, nodes=(SimulatedNode("a", 1, 3.0), SimulatedNode("b")), partitions=2)
    assert fast.partition_rows == [6000, 2000]


def test_a_file_leaves_teams_to_dry_runs() -> None:
    content = {
        "rows": 8000,
        "partitions": 2,
        "nodes": [{"devices": 2, "team": "auto"}, {"devices": 2, "team": "auto"}],
        "networks": [{"rate": 100}],
        "scaling": [1, 1.9],
        "switch": False,
        "sharded": True,
    }
    assert simulate_scenario(Scenario.of(content)).simulation.workers == 2
    with pytest.raises(UsageError, match="partitions=3: a sharded scenario has one for each node; use 2"):
        Scenario.of({**content, "partitions": 3})
    with pytest.raises(UsageError, match="teams need scaling"):
        Scenario.of({**content, "scaling": []})
