"""Teams for nodes with several devices: how to divide each node's devices, chosen by dry runs of the whole scenario.

Candidates divide nodes with as many devices alike, in every way, or mix two such layouts. A lower bound of each layout
picks those to simulate, and one device for each worker and all devices of a node for one worker are always among them.
A layout whose bound is above what a simulation took is left out. So the choice is never worse than both of those.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hopfleet.planner.nodes_divided import least_seconds, least_seconds_on_nodes
from hopfleet.simulation.backend import Failure
from hopfleet.simulation.cluster import ScenarioRun, run
from hopfleet.simulation.scenario import Scenario

DRY_RUNS = 4
"""Layouts with nodes alike to simulate, beside those that are always simulated; half as many are mixed from them."""

ALIKE = 256
"""Layouts to compare; beyond that, all teams of a node have one size."""

DeviceGroups = tuple[tuple[int, ...], ...]
"""The numbers of devices of each node's teams."""


def simulate_scenario(
    scenario: Scenario, policy: str = "auto", *, noise: float = 0.0, failures: Sequence[Failure] = (), seed: int = 0
) -> ScenarioRun:
    """Run a scenario, whose nodes with ``team: auto`` are divided first; ``noise`` as in ``hopfleet.simulate``."""
    undivided = any(not node.team for node in scenario.nodes)
    chosen = with_best_teams(scenario, policy) if undivided else scenario
    return run(chosen, policy, noise=noise, failures=failures, seed=seed)


def with_best_teams(scenario: Scenario, policy: str) -> Scenario:
    """Return a scenario whose nodes are divided into the teams that end all networks soonest."""
    found = dry_runs(scenario, policy)
    return divided(scenario, min(found, key=lambda layout: found[layout]))


def dry_runs(scenario: Scenario, policy: str) -> dict[DeviceGroups, float]:
    """Return the makespans of the layouts that may be best, by simulation."""
    found: dict[DeviceGroups, float] = {}
    for layout in _to_simulate(scenario):
        if _least_seconds(scenario, layout) < min(found.values(), default=math.inf):
            found[layout] = run(divided(scenario, layout), policy).simulation.makespan
    return found


def divided(scenario: Scenario, layout: DeviceGroups) -> Scenario:
    """Return a scenario with these teams."""
    nodes = zip(scenario.nodes, layout, strict=True)
    return replace(scenario, nodes=tuple(replace(node, team=1, teams=teams) for node, teams in nodes))


def _to_simulate(scenario: Scenario) -> list[DeviceGroups]:
    devices = [node.devices for node in scenario.nodes]
    most = scenario.most or max(devices)
    always = [tuple(_teams_of(size, count) for count in devices) for size in (1, most)]
    good = _best(scenario, (each for each in _alike(devices) if max(map(max, each)) <= most), DRY_RUNS)
    mixed = [
        # Every second or every fourth node is like another layout.
        tuple((first if number % part else second)[number] for number in range(len(devices)))
        for first, second in itertools.permutations(good, 2)
        for part in (2, 4)
    ]
    every = [*good, *_best(scenario, mixed, DRY_RUNS // 2), *always]
    return _best(scenario, every, len(every))


def _best(scenario: Scenario, layouts: Iterable[DeviceGroups], count: int) -> list[DeviceGroups]:
    """Return the layouts that end soonest if no team ever waits."""
    return sorted(dict.fromkeys(layouts), key=lambda layout: _least_seconds(scenario, layout))[:count]


def _alike(devices: Sequence[int]) -> list[DeviceGroups]:
    """Return layouts in which nodes with as many devices are alike."""
    divisions = {count: list(_divisions(count)) for count in set(devices)}
    if math.prod(map(len, divisions.values())) > ALIKE:
        divisions = {count: _even(count) for count in divisions}
    chosen = (dict(zip(divisions, each, strict=True)) for each in itertools.product(*divisions.values()))
    return [tuple(teams[count] for count in devices) for teams in itertools.islice(chosen, ALIKE)]


def _divisions(devices: int, most: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield all ways to divide devices into teams, the largest team first."""
    if not devices:
        yield ()
    for first in range(1, min(devices, most or devices) + 1):
        yield from ((first, *others) for others in _divisions(devices - first, first))


def _even(devices: int) -> list[tuple[int, ...]]:
    """Return the ways to divide devices into teams of one size, and what is left over."""
    return [_teams_of(size, devices) for size in range(1, devices + 1)]


def _teams_of(size: int, devices: int) -> tuple[int, ...]:
    return (size,) * (devices // size) + ((devices % size,) if devices % size else ())


def _least_seconds(scenario: Scenario, layout: DeviceGroups) -> float:
    work = [scenario.epochs * scenario.rows / rate for rate in scenario.rates]
    speed = scenario.teams.speed
    nodes = zip(scenario.nodes, layout, strict=True)
    speeds = [tuple(node.speed * speed(size) for size in teams) for node, teams in nodes]
    if scenario.sharded:
        return least_seconds_on_nodes(work, list(zip(scenario.shares, speeds, strict=True)))
    return least_seconds(work, list(itertools.chain(*speeds)))
