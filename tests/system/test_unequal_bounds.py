"""The bounds of ``benchmarks.unequal`` never exceed the best of all schedules, found by trying all of them."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.unequal import _by_rungs, _by_trial
from benchmarks.unequal_bounds import least_seconds
from hopfleet.planner.unequal import lower_bound

ROUNDING = 1e-6
"""Relative error of linear programs."""

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
    bound = _by_rungs(search, work, speeds)
    assert lower_bound(_by_trial(work), speeds) * (1 - ROUNDING) <= bound <= least * (1 + ROUNDING)


def test_chains_of_several_brackets_share_the_fastest_devices() -> None:
    """In each of two brackets, a trial of 4 s comes before one of 2 s that trains on, and one device is fast."""
    chains: list[Chain] = [[(0, 1), (0, 2)], [(1, 1)], [(2, 1), (2, 2)], [(3, 1)]]
    costs, speeds = {0: 2.0, 1: 4.0, 2: 2.0, 3: 4.0}, (4.0, 1.0, 1.0, 1.0)
    search: Any = SimpleNamespace(table=[(2, [1, 2]), (2, [1, 2])])
    work = {unit: costs[unit[0]] for chain in chains for unit in chain}
    bound = _by_rungs(search, work, speeds)
    # Two chains of 6 s, of a trial of 4 s and one of 2 s that waits for it, take 12 / 5 s on the two fastest devices.
    assert bound > (6 + 6) / (4 + 1) > lower_bound(_by_trial(work), speeds)
    assert bound <= optimum(chains, costs, speeds, lambda trial, epoch: (trial // 2, epoch - 1))


def test_devices_that_a_rung_needs_are_not_free_for_other_brackets() -> None:
    """On three devices, a rung of six trials of 1 s comes before a trial of 4 s; beside them there is one of 6 s.

    Beside the trial of 4 s, 4 of the 6 s can be done, so 2 s are left to do during the rung. To end later than that
    trial would take longer than it saves in the rung.
    """
    assert least_seconds([[[1.0] * 6, [4.0]], [[6.0]]], [1.0] * 3) == pytest.approx((6 + 2) / 3 + 4)


@pytest.mark.parametrize("seed", range(12))
def test_trials(seed: int) -> None:
    rng = random.Random(seed)
    speeds = tuple(rng.uniform(1, 8) for _ in range(2))
    costs = {trial: rng.lognormvariate(0, 0.6) for trial in range(2)}
    chains: list[Chain] = [list(itertools.repeat((trial, 1), 3)) for trial in range(2)]
    least = optimum(chains, costs, speeds, lambda trial, epoch: (trial, 0))
    assert lower_bound([3 * cost for cost in costs.values()], speeds) <= least * (1 + 1e-9)
