"""Plans in which each unit has its worker."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.planner.assigned import Assigned, TrialWork, plan

seconds = st.floats(0.5, 5.0)
layouts = st.lists(st.lists(st.sampled_from([1.0, 1.9, 2.7]), min_size=1, max_size=3), min_size=1, max_size=3)


def tasks(costs: list[float], layout: list[list[float]], laps: int, ready: float = 0.0) -> tuple[list[TrialWork], int]:
    """Return trials that visit nodes, each with some teams of these speeds."""
    teams = [(node, speed) for node, speeds in enumerate(layout) for speed in speeds]
    rows = [{w: 1 / speed for w, (at, speed) in enumerate(teams) if at == node} for node in range(len(layout))]
    every = frozenset(range(len(layout)))
    return [
        TrialWork([{w: cost * s for w, s in row.items()} for row in rows], every, laps, ready) for cost in costs
    ], len(teams)


def replayed(found: Assigned, given: list[TrialWork], free: list[float]) -> float:
    """Run the units of each worker and of each trial in the order of the plan; return the end."""
    workers, trials = free.copy(), [task.ready for task in given]
    done: list[Counter[int]] = [Counter() for _ in given]
    for trial, partition, worker in found.visits:
        lap = min(done[trial][each] for each in range(len(given[trial].seconds)))
        assert done[trial][partition] == lap, "an epoch begins when the last one is done"
        done[trial][partition] += 1
        workers[worker] = trials[trial] = max(workers[worker], trials[trial]) + given[trial].seconds[partition][worker]
    assert all(count[each] == task.laps + 1 for count, task in zip(done, given, strict=True) for each in task.todo)
    return max(trials)


@settings(max_examples=60, deadline=None)
@given(st.lists(seconds, min_size=1, max_size=5), layouts, st.integers(0, 2), st.floats(0, 3))
def test_a_plan_has_each_unit_once_and_ends_when_it_says(
    costs: list[float], layout: list[list[float]], laps: int, ready: float
) -> None:
    given, workers = tasks(costs, layout, laps, ready)
    free = [0.5] * workers
    found = plan(given, free, random.Random(0))
    assert replayed(found, given, free) <= found.end + 1e-6
    assert found.bound <= found.end + 1e-6


def test_units_are_divided_among_teams_of_different_speed() -> None:
    given, workers = tasks([1.0] * 6, [[1.0, 2.0]], laps=2)
    found = plan(given, [0.0] * workers, random.Random(0))
    assert found.end <= 1.02 * found.bound and found.bound == 6.0


def test_a_plan_for_teams_of_equal_speed_reaches_the_bound() -> None:
    rng = random.Random(2)
    given, workers = tasks([rng.uniform(1, 4) for _ in range(9)], [[1.9, 1.9], [1.9], [1.9]], laps=2)
    found = plan(given, [0.0] * workers, random.Random(0))
    assert found.end <= 1.03 * found.bound


def test_teams_of_equal_speed_stand_in_for_each_other() -> None:
    """Six models on a node with double rows and two teams, and two nodes with one: it took 1.041 of the bound."""
    rng = random.Random(0)
    costs = [rng.uniform(100, 1000) / 1.9 for _ in range(6)]
    rows = [({0: 4 * cost, 1: 4 * cost}, {2: 2 * cost}, {3: 2 * cost}) for cost in costs]
    found = plan([TrialWork(row, frozenset(range(3)), 2) for row in rows], [0.0] * 4, random.Random(0))
    assert found.end <= 1.035 * found.bound
