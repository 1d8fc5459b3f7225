"""Lower bounds for nodes whose devices are divided into fixed teams, to compare divisions without schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hopfleet.errors import MissingExtra

TeamsOfNode = tuple[float, tuple[float, ...]]
"""The part of all rows on a node, and the speeds of the node's teams."""


def least_seconds(work: Sequence[float], speeds: Sequence[float]) -> float:
    """Return how long tasks take at least on teams that can all run every task, one team at a time.

    ``work`` holds the seconds of each task on a team of speed 1. The bound is reached if tasks hop often enough: the k
    longest tasks have no more than the k fastest teams, and all tasks have all teams.
    """
    longest, fastest = sorted(work, reverse=True), sorted(speeds, reverse=True)
    few = range(1, min(len(longest), len(fastest)))
    return max([sum(longest) / sum(fastest[: len(longest)]), *(sum(longest[:k]) / sum(fastest[:k]) for k in few)])


def least_seconds_on_nodes(work: Sequence[float], nodes: Sequence[TeamsOfNode]) -> float:
    """Return how long tasks take at least that visit every node once, on one of its teams.

    This is the optimum of a linear program over shares x[task, node, team] ≥ 0 that add up to 1 for each task and node,
    where neither a task nor a team is busy for longer than C. Nodes that are alike are counted together, as are teams.
    """
    import numpy as np

    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array
    except ImportError as error:
        raise MissingExtra("SciPy", "scipy") from error

    kinds = Counter((part, tuple(sorted(speeds))) for part, speeds in nodes)
    tasks, longest = len(work), max(work)
    values: list[float] = []
    loads: list[int] = []  #: the row of each value: first those of tasks, then those of teams
    columns: list[int] = []
    pairs: list[int] = []  #: the task and kind of node of each column
    teams = 0
    for kind, ((part, speeds), count) in enumerate(kinds.items()):
        for speed, alike in Counter(speeds).items():
            for task, seconds in enumerate(work):
                time = part * seconds / longest / speed
                values += [count * time, time / alike]
                loads += [task, tasks + teams]
                columns += [len(pairs), len(pairs)]
                pairs.append(kind * tasks + task)
            teams += 1
    rows, last = tasks + teams, len(pairs)
    solution = linprog(
        np.eye(1, last + 1, last)[0],
        A_ub=csr_array(
            (values + [-1.0] * rows, ([*loads, *range(rows)], columns + [last] * rows)), shape=(rows, last + 1)
        ),
        b_ub=np.zeros(rows),
        A_eq=csr_array((np.ones(last), (pairs, np.arange(last))), shape=(tasks * len(kinds), last + 1)),
        b_eq=np.ones(tasks * len(kinds)),
        method="highs",
    )
    return float(solution.fun) * longest
