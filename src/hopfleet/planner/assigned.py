"""Plans for trials on workers that share partitions, such as the teams of a node: first who, then when.

A linear program gives each unit to a worker (``balance``), epoch by epoch, so that no worker and no trial has too much.
Of the units of one trial and partition, any may come first. Units then start in the order of time, the trial and the
worker with the most work left first. Some restarts with other weights, each a small change of the best so far, find an
order in which few of them wait; in every second of them, workers that are as fast take each other's units.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hopfleet.planner.balance import balance

EFFORT = 20_000
"""Units to place in all attempts together, about."""

LEAST, MOST = 6, 240
"""Attempts."""

MIXES = (0.3, 1.0, 3.0)
"""How much it counts that both sides have much work left."""

CLOSE = 1.001
"""Ratio to the bound from which on no better order is looked for."""


class Visit(NamedTuple):
    """A unit of a plan: a trial, a partition and a worker, by number."""

    trial: int
    partition: int
    worker: int


@dataclass(frozen=True, slots=True)
class TrialWork:
    """What a trial has left to do."""

    #: Seconds on each worker that reads a partition, by partition.
    seconds: Sequence[Mapping[int, float]]
    #: The partitions to visit in this epoch, the epochs after it, and when the next unit can start.
    todo: frozenset[int]
    laps: int
    ready: float = 0.0


@dataclass(frozen=True, slots=True)
class Assigned:
    """The units of all tasks by start, their end, and a lower bound on it."""

    visits: list[Visit]
    end: float
    bound: float


def plan(tasks: Sequence[TrialWork], free: Sequence[float], rng: random.Random) -> Assigned:
    """Return the best plan found; ``free`` says when each worker can start its first unit."""
    chosen, bound = _workers(tasks, free)
    shops = [_Shop(tasks, free, chosen, range(len(free)))]
    kinds = _kinds(tasks, len(free))
    if len(set(kinds)) < len(kinds):
        shops.append(_Shop(tasks, free, chosen, kinds))
    units = sum(len(workers) for row in chosen for workers in row.values())
    best = Assigned([], math.inf, bound)
    weights = [shop.weights for shop in shops]
    for attempt in range(max(LEAST, min(MOST, EFFORT // max(1, units)))):
        turn, which = divmod(attempt, len(shops))
        tried = weights[which]
        if turn >= len(MIXES):
            blur = rng.choice((0.05, 0.2, 0.5))
            tried = _changed(tried[0], blur, rng), _changed(tried[1], blur, rng)
        visits, end = _dispatch(shops[which], tried, MIXES[turn % len(MIXES)], best.end)
        if end < best.end:
            best, weights[which] = Assigned(visits, end, bound), tried
        if best.end <= CLOSE * bound:
            break
    return best


def _workers(tasks: Sequence[TrialWork], free: Sequence[float]) -> tuple[list[dict[int, list[int]]], float]:
    """Return the workers of each task's units by partition, and a lower bound on the end of every plan."""
    partitions = len(tasks[0].seconds)
    cells = {
        (str(number), lap * partitions + partition): {str(worker): each for worker, each in seconds.items()}
        for number, task in enumerate(tasks)
        for lap in range(task.laps + 1)
        for partition, seconds in enumerate(task.seconds)
        if lap or partition in task.todo
    }
    shares = balance(
        cells,
        worker_ready={str(worker): ready for worker, ready in enumerate(free)},
        config_ready={str(number): task.ready for number, task in enumerate(tasks)},
    )
    wanted: list[dict[int, list[int]]] = [{} for _ in tasks]
    for (name, cell), worker in shares.worker.items():
        wanted[int(name)].setdefault(cell % partitions, []).append(int(worker))
    return wanted, shares.bound


def _kinds(tasks: Sequence[TrialWork], workers: int) -> list[int]:
    """Return the kind of each worker: those of one kind take as long for every unit, and stand in for each other."""
    numbers: dict[tuple[float | None, ...], int] = {}
    rows = [row for task in tasks for row in task.seconds]
    return [numbers.setdefault(tuple(row.get(worker) for row in rows), len(numbers)) for worker in range(workers)]


class _Shop:
    """Tasks and workers by kind, and the kind of worker that is to run each unit."""

    def __init__(
        self,
        tasks: Sequence[TrialWork],
        free: Sequence[float],
        workers: Sequence[Mapping[int, list[int]]],
        kinds: Sequence[int],
    ) -> None:
        self.tasks, self.free, self.kinds = tasks, free, kinds
        self.members = [[worker for worker, its in enumerate(kinds) if its == kind] for kind in range(max(kinds) + 1)]
        #: The kinds of workers of each task's units, by partition.
        self.wanted = [
            {partition: [kinds[worker] for worker in chosen] for partition, chosen in row.items()} for row in workers
        ]
        #: The seconds of each task, and those of each worker of a kind.
        self.left, self.load = [0.0] * len(tasks), [0.0] * len(self.members)
        for number, row in enumerate(self.wanted):
            for partition, chosen in row.items():
                for kind in chosen:
                    seconds = self.seconds(number, partition, kind)
                    self.left[number] += seconds
                    self.load[kind] += seconds / len(self.members[kind])

    @property
    def weights(self) -> tuple[list[float], list[float]]:
        return [1.0] * len(self.tasks), [1.0] * len(self.members)

    def seconds(self, task: int, partition: int, kind: int) -> float:
        return self.tasks[task].seconds[partition][self.members[kind][0]]


def _changed(weights: Sequence[float], blur: float, rng: random.Random) -> list[float]:
    return [weight * (1 + rng.uniform(-blur, blur)) for weight in weights]


def _dispatch(
    shop: _Shop, weights: tuple[list[float], list[float]], mix: float, limit: float
) -> tuple[list[Visit], float]:
    """Start units in the order of time, the most urgent first; give up when the end would be after ``limit``."""
    tasks, left, load = shop.tasks, shop.left.copy(), shop.load.copy()
    owed = [{partition: kinds.copy() for partition, kinds in row.items()} for row in shop.wanted]
    most = max(*left, *load) or 1.0
    todo, laps = [set(task.todo) for task in tasks], [task.laps for task in tasks]
    events = [(task.ready, number, -1) for number, task in enumerate(tasks)]
    events += [(ready, -1, worker) for worker, ready in enumerate(shop.free)]
    heapq.heapify(events)
    idle: list[list[int]] = [[] for _ in shop.members]
    waiting = set[int]()
    visits, end = list[Visit](), 0.0
    while events:
        now = events[0][0]
        while events and events[0][0] <= now + 1e-9 * most:
            _, number, worker = heapq.heappop(events)
            if worker >= 0:
                idle[shop.kinds[worker]].append(worker)
            if number >= 0:
                if not todo[number] and laps[number]:
                    todo[number], laps[number] = set(range(len(tasks[number].seconds))), laps[number] - 1
                if todo[number]:
                    waiting.add(number)
        busy = {kind: load[kind] / most * weights[1][kind] for kind, workers in enumerate(idle) if workers}
        able = list[tuple[float, int, int, int]]()
        for number in waiting:
            task = left[number] / most * weights[0][number]
            for partition in todo[number]:
                able += [
                    (task**4 + busy[kind] ** 4 + mix * task * busy[kind], number, partition, kind)
                    for kind in owed[number][partition]
                    if kind in busy
                ]
        able.sort(reverse=True)
        for _, number, partition, kind in able:
            if number in waiting and idle[kind]:
                seconds, worker = shop.seconds(number, partition, kind), idle[kind].pop()
                waiting.remove(number)
                owed[number][partition].remove(kind)
                todo[number].remove(partition)
                left[number] -= seconds
                load[kind] -= seconds / len(shop.members[kind])
                heapq.heappush(events, (now + seconds, number, worker))
                visits.append(Visit(number, partition, worker))
                end = max(end, now + seconds)
        if max(end, now + max((left[number] for number in waiting), default=0.0)) >= limit:
            return [], math.inf
    return visits, end
