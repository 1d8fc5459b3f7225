"""The bounds of ``benchmarks.unequal`` never exceed the best of all schedules, found by trying all of them."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.unequal import _by_rungs, _by_trial
from hopfleet.planner.unequal import lower_bound

Chain = list[tuple[int, int]]
"""The trials and epochs of a trial's units, in order."""


def optimum(chains: list[Chain], costs: dict[int, float], speeds: tuple[float, ...], rungs: Any) -> float:
    """Return the least makespan of all schedules; ``rungs`` gives the bracket and the rung of a trial's epoch."""
    best = float("inf")
    seen: set[Any] = set()

    def after(done: tuple[int, ...], ends: tuple[float, ...], free: tuple[float, ...], last: dict[Any, float]) -> None:
        nonlocal best
        if max(*ends, *free) >= best:
            return
        if all(count == len(chain) for count, chain in zip(done, chains, strict=True)):
            best = max(ends)
            return
        state = done, ends, free, frozenset(last.items())
        if state in seen:
            return
        seen.add(state)
        for number, chain in enumerate(chains):
            if done[number] == len(chain):
                continue
            trial, epoch = chain[done[number]]
            bracket, rung = rungs(trial, epoch)
            before = [key for key in open_units(done) if key[0] == bracket and key[1] < rung]
            if before:
                continue
            begins = max(ends[number], *(last.get((bracket, lower), 0.0) for lower in range(rung)), 0.0)
            for worker, speed in enumerate(speeds):
                end = max(begins, free[worker]) + costs[trial] / speed
                key = bracket, rung
                after(
                    (*done[:number], done[number] + 1, *done[number + 1 :]),
                    (*ends[:number], end, *ends[number + 1 :]),
                    (*free[:worker], end, *free[worker + 1 :]),
                    {**last, key: max(end, last.get(key, 0.0))},
                )

    def open_units(done: tuple[int, ...]) -> set[tuple[int, int]]:
        return {rungs(*unit) for count, chain in zip(done, chains, strict=True) for unit in chain[count:]}

    after((0,) * len(chains), (0.0,) * len(chains), (0.0,) * len(speeds), {})
    return best


@pytest.mark.parametrize("seed", range(12))
def test_brackets(seed: int) -> None:
    """Two brackets: three trials, one of them with a second epoch, and one trial that trains for two."""
    rng = random.Random(seed)
    speeds = rng.uniform(1, 4), rng.uniform(1, 4)
    costs = {trial: rng.lognormvariate(0, 0.6) for trial in range(4)}
    survivor = rng.randrange(3)
    chains = [[(trial, 1)] + [(trial, 2)] * (trial == survivor) for trial in range(3)] + [[(3, 1), (3, 2)]]
    least = optimum(chains, costs, speeds, lambda trial, epoch: (0, epoch - 1) if trial < 3 else (1, 0))
    work = {unit: costs[unit[0]] for chain in chains for unit in chain}
    search: Any = SimpleNamespace(table=[(3, [1, 2]), (1, [2])])
    assert max(_by_rungs(search, work, speeds), lower_bound(_by_trial(work), speeds)) <= least * (1 + 1e-9)


def test_chains_of_several_brackets_share_the_fastest_devices() -> None:
    """In each of two brackets, a trial of 4 s comes before one of 2 s that trains on, and one device is fast."""
    chains: list[Chain] = [[(0, 1), (0, 2)], [(1, 1)], [(2, 1), (2, 2)], [(3, 1)]]
    costs, speeds = {0: 2.0, 1: 4.0, 2: 2.0, 3: 4.0}, (4.0, 1.0, 1.0, 1.0)
    search: Any = SimpleNamespace(table=[(2, [1, 2]), (2, [1, 2])])
    work = {unit: costs[unit[0]] for chain in chains for unit in chain}
    bound = _by_rungs(search, work, speeds)
    assert bound == pytest.approx((6 + 6) / (4 + 1)) and bound > lower_bound(_by_trial(work), speeds)
    assert bound <= optimum(chains, costs, speeds, lambda trial, epoch: (trial // 2, epoch - 1))


@pytest.mark.parametrize("seed", range(12))
def test_trials(seed: int) -> None:
    rng = random.Random(seed)
    speeds = tuple(rng.uniform(1, 8) for _ in range(2))
    costs = {trial: rng.lognormvariate(0, 0.6) for trial in range(2)}
    chains: list[Chain] = [list(itertools.repeat((trial, 1), 3)) for trial in range(2)]
    least = optimum(chains, costs, speeds, lambda trial, epoch: (trial, 0))
    assert lower_bound([3 * cost for cost in costs.values()], speeds) <= least * (1 + 1e-9)
