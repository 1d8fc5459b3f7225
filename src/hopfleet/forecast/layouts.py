"""Teams for nodes with several devices: how to divide each node's devices, chosen by dry runs of the whole scenario.

Candidates divide all nodes alike, into teams of one size or into one team and smaller ones. An estimate without
schedules picks those to simulate, and the two best are mixed. One device for each worker, and all devices of a node for
one worker, are always simulated, so the choice is never worse than both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopfleet.forecast.scenario import Scenario

DRY_RUNS = 4
"""Candidates to simulate beside those that are always simulated."""

Layout = tuple[tuple[int, ...], ...]
"""The numbers of devices of each node's teams."""


def with_best_teams(scenario: Scenario, policy: str) -> Scenario:
    """Return a scenario whose nodes are divided into the teams that end all networks soonest."""
    found = {layout: _makespan(scenario, layout, policy) for layout in _to_simulate(scenario)}
    first, second, *_ = [*sorted(found, key=lambda layout: found[layout]), next(iter(found))]
    for part in (4, 2):  # a quarter or half of the nodes like the second best
        mixed = tuple((first if number % part else second)[number] for number in range(len(first)))
        if mixed not in found:
            found[mixed] = _makespan(scenario, mixed, policy)
    return divided(scenario, min(found, key=lambda layout: found[layout]))


def divided(scenario: Scenario, layout: Layout) -> Scenario:
    """Return a scenario with these teams."""
    nodes = zip(scenario.nodes, layout, strict=True)
    return replace(scenario, nodes=tuple(replace(node, team=1, teams=teams) for node, teams in nodes))


def _makespan(scenario: Scenario, layout: Layout, policy: str) -> float:
    return divided(scenario, layout).simulate(policy).simulation.makespan


def _to_simulate(scenario: Scenario) -> list[Layout]:
    devices = [node.devices for node in scenario.nodes]
    every = list(dict.fromkeys(tuple(_split(count, sizes) for count in devices) for sizes in _sizes(max(devices))))
    always = [every[0], tuple((count,) for count in devices)]
    best = sorted(every, key=lambda layout: _least_seconds(scenario, layout))[:DRY_RUNS]
    return list(dict.fromkeys([*always, *best]))


def _sizes(most: int) -> Iterator[tuple[int, ...]]:
    """Yield sizes of teams, whose last is repeated: 1, 2, 3 ..., and one larger team before smaller ones."""
    yield from ((size,) for size in range(1, most + 1))
    for larger in range(2, most):
        yield from ((larger, smaller) for smaller in range(1, larger))


def _split(devices: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Divide the devices of a node into teams of these sizes as far as they go."""
    teams, left, wanted = [], devices, list(sizes)
    while left:
        teams.append(min(left, wanted[0]))
        left -= teams[-1]
        wanted = wanted[1:] or wanted
    return tuple(teams)


def _least_seconds(scenario: Scenario, layout: Layout) -> float:
    """Return the time of a layout if no team ever waits, though no more teams work than there are networks."""
    speed, shares = scenario.teams.speed, scenario.shares
    alone = [scenario.epochs * scenario.rows / rate for rate in scenario.rates]
    speeds = [[node.speed * speed(size) for size in teams] for node, teams in zip(scenario.nodes, layout, strict=True)]
    at_once = sorted((each for some in speeds for each in some), reverse=True)[: len(alone)]
    slowest = max(share / sum(some) for share, some in zip(shares, speeds, strict=True))
    longest = sum(share / max(some) for share, some in zip(shares, speeds, strict=True))
    return max(sum(alone) * max(slowest, 1 / sum(at_once)), max(alone) * longest)
