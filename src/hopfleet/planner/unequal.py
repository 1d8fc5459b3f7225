"""Trials on workers of unequal speed that read all partitions: a lower bound, and list scheduling.

A trial is a chain of units. Units of a trial may run on different workers, one after another. If units could be
interrupted at any moment, the bound would be reached (uniform machines, preemptive); since they cannot, units are
placed one by one. The next unit is that of the trial with the most work left, and it goes to the worker that would end
it first, whether that worker is idle or still busy: so a long trial waits for a fast worker rather than start on a slow
one. Two numbers bend the rule, and no pair of them is best everywhere (``STYLES``).

Units may follow the last one of a trial, of the trial or of one that waits for it: those of the later rungs of its
bracket. They count as work that the trial has left.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

Start = tuple[int, int]
"""A trial and the worker that starts its next unit now."""


@dataclass(frozen=True, slots=True)
class Style:
    """How units are placed."""

    #: The cost of each second that a trial waits for a worker, in seconds by which the unit could end later elsewhere.
    wait: float
    #: Seconds of work left that a trial must have more than another, to go ahead, for each second that it is later.
    age: float


STYLES = tuple(Style(wait, age) for age in (1.0, 0.3, 0.0, 3.0, 10.0) for wait in (0.3, 0.0, 1.0, 3.0))
"""What to try; the first is the best on average."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Trials and workers at one moment. Workers of equal speed form a class."""

    now: float
    #: The workers of each class, and when each worker is free, by class and worker.
    free: Sequence[Sequence[tuple[float, int]]]
    #: Seconds of a unit, by trial and class.
    seconds: list[list[float]] = field(default_factory=list)
    #: Units that have not started, and when the next of them may start, by trial.
    units: list[int] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    #: The number of units that can only follow a trial's last one, one after another.
    onward: list[int] = field(default_factory=list)

    def add(self, seconds: list[float], units: int, ready: float, onward: int = 0) -> None:
        """Add a trial."""
        self.seconds.append(seconds)
        self.units.append(units)
        self.ready.append(ready)
        self.onward.append(onward)


def lower_bound(work: Iterable[float], speeds: Iterable[float]) -> float:
    """Return the least seconds in which workers of these speeds can do the work of all trials.

    ``work`` holds the seconds of each trial on a worker of speed 1. No k trials can be faster than on the k fastest
    workers, and all trials not faster than on all workers.
    """
    longest, fastest = sorted(work, reverse=True), sorted(speeds, reverse=True)
    firsts = zip(itertools.accumulate(longest), itertools.accumulate(fastest), strict=False)
    return max(sum(longest) / sum(fastest), *(some / speed for some, speed in firsts))


@dataclass(frozen=True, slots=True)
class Placed:
    """Units in the order in which they were placed: of each worker, and of each trial, in the order of time."""

    #: The trial and the worker of each unit.
    units: list[Start]
    #: The units that start now.
    now: list[Start]
    end: float


def best(chains: Chains, styles: Iterable[Style] = STYLES) -> tuple[Style, Placed]:
    """Return the style that ends all units first, and what comes of it."""
    tried = ((style, place(chains, style)) for style in styles)
    return min(tried, key=lambda each: each[1].end)


def place(chains: Chains, style: Style, *, most: float = math.inf, idle: Collection[int] | None = None) -> Placed:
    """Place all units, or as many as ``most``.

    Given the ``idle`` workers, place only as many as it takes to know what these start now. At least one starts if no
    worker is busy.
    """
    now, seconds = chains.now, chains.seconds
    free = [sorted(workers) for workers in chains.free]
    ends, left = chains.ready[:], chains.units[:]
    pace = [sum(row) / len(row) for row in seconds]
    # Which trial's units will follow is not known yet, so the usual trial stands for it.
    usual, least = _mean(pace), _mean([min(row) for row in seconds])
    after = [count * usual for count in chains.onward]
    queue = [(style.age * ends[n] - count * pace[n] - after[n], n) for n, count in enumerate(left) if count]
    heapq.heapify(queue)
    waiting = {trial for _, trial in queue if ends[trial] <= now}
    undecided = set(idle or ())
    units: list[Start] = []
    found: list[Start] = []
    end = now
    while queue and len(units) < most:
        _, trial = heapq.heappop(queue)
        row, ready = seconds[trial], ends[trial]
        chosen, cost, begin = -1, math.inf, 0.0
        for number, workers in enumerate(free):
            start = workers[0][0]
            if start < ready:
                start = ready
            costs = start + row[number] + style.wait * (start - ready)
            if costs < cost:
                chosen, cost, begin = number, costs, start
        ends[trial] = done = begin + row[chosen]
        end = max(end, done + chains.onward[trial] * least)
        # Of several workers that are free by then, the one that was the last to become free idles the least.
        workers = free[chosen]
        worker = workers.pop(max(0, bisect_right(workers, (ready, math.inf)) - 1))[1]
        insort(workers, (done, worker))
        units.append((trial, worker))
        if trial in waiting:
            waiting.remove(trial)
            if begin <= now:
                found.append((trial, worker))
        if idle is not None:
            undecided.discard(worker)
            if not waiting or not undecided:
                break
        left[trial] -= 1
        if left[trial]:
            heapq.heappush(queue, (style.age * done - left[trial] * pace[trial] - after[trial], trial))
    return Placed(units, found, end)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
