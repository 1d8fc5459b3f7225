"""Plans for trials on workers that share partitions, such as the teams of a node: first who, then when.

A linear program gives each unit to a worker (``balance``), epoch by epoch, so that no worker and no trial has too much.
Of the units of one trial and partition, any may come first. Units then start in the order of time, the trial and the
worker with the most work left first; some restarts with other weights, each a small change of the best so far, find an
order in which few of them wait.
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
class Task:
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


def plan(tasks: Sequence[Task], free: Sequence[float], rng: random.Random) -> Assigned:
    """Return the best plan found; ``free`` says when each worker can start its first unit."""
    wanted, bound = _workers(tasks, free)
    units = sum(len(workers) for row in wanted for workers in row.values())
    best = Assigned([], math.inf, bound)
    weights = [1.0] * len(tasks), [1.0] * len(free)
    for attempt in range(max(LEAST, min(MOST, EFFORT // max(1, units)))):
        tried = weights
        if attempt >= len(MIXES):
            blur = rng.choice((0.05, 0.2, 0.5))
            tried = _changed(weights[0], blur, rng), _changed(weights[1], blur, rng)
        visits, end = _dispatch(tasks, free, wanted, tried, MIXES[attempt % len(MIXES)], best.end)
        if end < best.end:
            best, weights = Assigned(visits, end, bound), tried
        if best.end <= CLOSE * bound:
            break
    return best


def _workers(tasks: Sequence[Task], free: Sequence[float]) -> tuple[list[dict[int, list[int]]], float]:
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


def _loads(
    tasks: Sequence[Task], free: Sequence[float], wanted: Sequence[dict[int, list[int]]]
) -> tuple[list[float], list[float]]:
    """Return the seconds of each task and of each worker."""
    left, load = [0.0] * len(tasks), [0.0] * len(free)
    for number, row in enumerate(wanted):
        for partition, workers in row.items():
            for worker in workers:
                seconds = tasks[number].seconds[partition][worker]
                left[number] += seconds
                load[worker] += seconds
    return left, load


def _changed(weights: Sequence[float], blur: float, rng: random.Random) -> list[float]:
    return [weight * (1 + rng.uniform(-blur, blur)) for weight in weights]


def _dispatch(
    tasks: Sequence[Task],
    free: Sequence[float],
    wanted: Sequence[dict[int, list[int]]],
    weights: tuple[list[float], list[float]],
    mix: float,
    limit: float,
) -> tuple[list[Visit], float]:
    """Start units in the order of time, the most urgent first; give up when the end would be after ``limit``."""
    left, load = _loads(tasks, free, wanted)
    owed = [{partition: workers.copy() for partition, workers in row.items()} for row in wanted]
    most = max(*left, *load) or 1.0
    todo, laps = [set(task.todo) for task in tasks], [task.laps for task in tasks]
    events = [(task.ready, number, -1) for number, task in enumerate(tasks)]
    events += [(ready, -1, worker) for worker, ready in enumerate(free)]
    heapq.heapify(events)
    idle, waiting = set[int](), set[int]()
    visits, end = list[Visit](), 0.0
    while events:
        now = events[0][0]
        while events and events[0][0] <= now + 1e-9 * most:
            _, number, worker = heapq.heappop(events)
            if worker >= 0:
                idle.add(worker)
            if number >= 0:
                if not todo[number] and laps[number]:
                    todo[number], laps[number] = set(range(len(tasks[number].seconds))), laps[number] - 1
                if todo[number]:
                    waiting.add(number)
        able = []
        for number in waiting:
            task = left[number] / most * weights[0][number]
            for partition in todo[number]:
                for worker in set(owed[number][partition]) & idle:
                    busy = load[worker] / most * weights[1][worker]
                    able.append((task**4 + busy**4 + mix * task * busy, number, partition, worker))
        able.sort(reverse=True)
        for _, number, partition, worker in able:
            if number in waiting and worker in idle:
                seconds = tasks[number].seconds[partition][worker]
                waiting.remove(number)
                idle.remove(worker)
                owed[number][partition].remove(worker)
                todo[number].remove(partition)
                left[number] -= seconds
                load[worker] -= seconds
                heapq.heappush(events, (now + seconds, number, worker))
                visits.append(Visit(number, partition, worker))
                end = max(end, now + seconds)
        if max(end, now + max((left[number] for number in waiting), default=0.0)) >= limit:
            return [], math.inf
    return visits, end
