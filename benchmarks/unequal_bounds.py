"""A lower bound for brackets on workers of unequal speed: no schedule is shorter, whatever it knows beforehand.

A rung of a bracket is a barrier: no unit of the next rung starts before all trials of this one have ended. Take any
schedule, and divide its time at the ends of rungs. Within such a part, each bracket is in one rung. No k trials advance
faster than on the k fastest workers, and all trials no faster than on all workers; a rung is done at its end. These
conditions are a linear program for each order in which rungs may end, and the least of all orders is the bound.

The conditions are also sufficient if units can be interrupted at any moment (Horvath, Lam and Sethi, 1977). So no
bound is tighter that ignores that units are whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from scipy.optimize import linprog
from scipy.sparse import csr_array

Rungs = Sequence[Sequence[float]]
"""The rungs of a bracket: the seconds of each trial's part, on a worker of speed 1."""
Spans = list[tuple[range, float]]
"""The intervals in which a trial may do its part of a rung, and the part."""


def least_seconds(brackets: Sequence[Rungs], speeds: Sequence[float]) -> float:
    """Return the least seconds in which workers of these speeds can do the work of all brackets."""
    left = Counter({number: len(rungs) for number, rungs in enumerate(brackets)})
    return min(_least_seconds(_spans(brackets, order), len(order), speeds) for order in _orders(+left))


def _orders(left: Counter[int]) -> Iterator[tuple[int, ...]]:
    """Yield all orders in which rungs may end, as the bracket of each; ``left`` counts the rungs of each bracket."""
    if not left:
        yield ()
    for bracket in left:
        for order in _orders(left - Counter([bracket])):
            yield bracket, *order


def _spans(brackets: Sequence[Rungs], order: Sequence[int]) -> Spans:
    spans = []
    for number, rungs in enumerate(brackets):
        ends = [place for place, bracket in enumerate(order, 1) if bracket == number]
        for begin, end, parts in zip([0, *ends], ends, rungs, strict=False):
            spans += [(range(begin, end), part) for part in parts]
    return spans


def _least_seconds(spans: Spans, intervals: int, speeds: Sequence[float]) -> float:
    """Return the least sum of the lengths of all intervals.

    The k largest of some numbers sum up to k t, plus what each number exceeds t by, for the best t.
    """
    fastest = [*accumulate(sorted(speeds, reverse=True))]
    # The first variables are the lengths of the intervals. A trial may do more than its part, which is of no use.
    size, rows = intervals, list[dict[int, float]]()
    limits: list[float] = []
    active: list[list[int]] = [[] for _ in range(intervals)]
    for span, part in spans:
        mine = range(size, size := size + len(span))
        rows.append(dict.fromkeys(mine, -1.0))
        limits.append(-part)
        for interval, variable in zip(span, mine, strict=True):
            active[interval].append(variable)
    for interval, trained in enumerate(active):
        whole = min(len(trained), len(fastest))
        rows.append({interval: -fastest[whole - 1], **dict.fromkeys(trained, 1.0)})
        for count in range(1, whole):
            level, size = size, size + 1
            excess = range(size, size := size + len(trained))
            rows += [{variable: 1.0, level: -1.0, over: -1.0} for variable, over in zip(trained, excess, strict=True)]
            rows.append({interval: -fastest[count - 1], level: float(count), **dict.fromkeys(excess, 1.0)})
    limits += [0.0] * (len(rows) - len(limits))
    entries = [(number, column, value) for number, row in enumerate(rows) for column, value in row.items()]
    at, columns, values = zip(*entries, strict=True)
    solution = linprog(
        [1.0] * intervals + [0.0] * (size - intervals),
        A_ub=csr_array((values, (at, columns)), shape=(len(rows), size)),
        b_ub=limits,
        method="highs",
    )
    assert solution.success, solution.message
    return float(solution.fun)
