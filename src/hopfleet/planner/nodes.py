"""Tasks that visit nodes with several GPUs: the problem, its bounds and its plans.

This is the unified scheduling problem of the Cerebro platform. Every task visits every node exactly once, in any order
and one node at a time. At a node the task runs with one of several strategies, each with its number of GPUs and its
time; all its GPUs start together, and a GPU runs one task at a time. With one GPU per node, the problem is the open
shop of model hopping. ``nodes_fast`` finds good plans at once, ``nodes_exact`` the best ones given time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopfleet.errors import InvariantBroken, MissingExtra, UsageError

CLOSE = 1e-9
"""Times that differ by no more than this part of the makespan are equal."""


@dataclass(frozen=True, slots=True)
class NodeStrategy:
    """One way to run a task at a node."""

    name: str
    gpus: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeShop:
    """The tasks and nodes to plan for."""

    #: The number of GPUs of each node.
    gpus: tuple[int, ...]
    #: The strategies available to each task at each node: ``strategies[task][node]``.
    strategies: tuple[tuple[tuple[NodeStrategy, ...], ...], ...]

    def __post_init__(self) -> None:
        for node, count in enumerate(self.gpus):
            if count < 1:
                raise UsageError(f"gpus={count} at node {node}: must be at least 1; leave the node out")
        for task, row in enumerate(self.strategies):
            if len(row) != len(self.gpus):
                raise UsageError(
                    f"task {task} has strategies for {len(row)} nodes: must have them for all {len(self.gpus)} nodes"
                )
            for node, choice in enumerate(row):
                self._check(task, node, choice)

    def _check(self, task: int, node: int, choice: Sequence[NodeStrategy]) -> None:
        if not choice:
            raise UsageError(f"task {task} has no strategy at node {node}: add one, or leave the task out")
        for strategy in choice:
            what = f"strategy {strategy.name} of task {task} at node {node}"
            if not 0 < strategy.seconds < math.inf:
                raise UsageError(
                    f"{what}: {strategy.seconds} seconds: must be finite and above 0; profile the strategy again"
                )
            if not 1 <= strategy.gpus <= self.gpus[node]:
                raise UsageError(
                    f"{what}: {strategy.gpus} GPUs: must be from 1 to the {self.gpus[node]} of the node; "
                    "leave the strategy out"
                )

    @property
    def tasks(self) -> int:
        return len(self.strategies)

    @property
    def nodes(self) -> int:
        return len(self.gpus)

    def visits(self) -> Iterable[tuple[int, int]]:
        """Return all pairs of a task and a node."""
        return itertools.product(range(self.tasks), range(self.nodes))


@dataclass(frozen=True, slots=True)
class Visit:
    """A run of a task at a node."""

    task: int
    node: int
    strategy: NodeStrategy
    start: float
    #: The indices of the GPUs at the node, counted from 0.
    gpus: tuple[int, ...]

    @property
    def end(self) -> float:
        return self.start + self.strategy.seconds


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The start, strategy and GPUs of each visit of a shop."""

    shop: NodeShop
    #: Sorted by start, then by node.
    visits: tuple[Visit, ...]
    #: A lower bound on the makespan of every plan of this shop.
    bound: float

    @property
    def makespan(self) -> float:
        return max((visit.end for visit in self.visits), default=0.0)

    def check(self) -> None:
        """Raise InvariantBroken unless the plan covers every visit of the shop once, without overlap."""
        _ensure(sorted((v.task, v.node) for v in self.visits) == list(self.shop.visits()), "not each pair once")
        for visit in self.visits:
            _ensure(visit.strategy in self.shop.strategies[visit.task][visit.node], f"no such strategy: {visit}")
            _ensure(len(set(visit.gpus)) == len(visit.gpus) == visit.strategy.gpus, f"wrong number of GPUs: {visit}")
            _ensure(set(visit.gpus) <= set(range(self.shop.gpus[visit.node])), f"no such GPU: {visit}")
            _ensure(visit.start >= 0, f"before the beginning: {visit}")
        for task in range(self.shop.tasks):
            self._disjoint(visit for visit in self.visits if visit.task == task)
        for node, count in enumerate(self.shop.gpus):
            for gpu in range(count):
                self._disjoint(visit for visit in self.visits if visit.node == node and gpu in visit.gpus)

    def _disjoint(self, visits: Iterable[Visit]) -> None:
        ordered = sorted(visits, key=lambda visit: (visit.start, visit.end))
        for first, second in itertools.pairwise(ordered):
            _ensure(first.end <= second.start + CLOSE * self.makespan, f"two at once: {first}; {second}")


def _ensure(holds: bool, problem: str) -> None:
    if not holds:
        raise InvariantBroken(problem)


def lower_bound(shop: NodeShop) -> float:
    """Return a lower bound on the makespan, the larger of

    - the optimum of a linear program over shares of strategies y[task, node, strategy] ≥ 0 that add up to 1, subject to
      Σ y · seconds ≤ C for each task, which is at one node at a time, and Σ y · GPUs · seconds ≤ C · GPUs of the node,
      where no GPU runs two tasks at a time;
    - for each node, the total least time of the tasks that need more than half of its GPUs under every strategy, since
      no two of these tasks can run side by side.
    """
    wide = [
        sum(
            min(strategy.seconds for strategy in row[node])
            for row in shop.strategies
            if all(2 * strategy.gpus > count for strategy in row[node])
        )
        for node, count in enumerate(shop.gpus)
    ]
    return max([relaxed(shop)[0], *wide])


def relaxed(shop: NodeShop) -> tuple[float, dict[tuple[int, int], list[float]]]:
    """Solve the linear program of ``lower_bound``; return its optimum and the share of each strategy of each visit."""
    import numpy as np

    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array
    except ImportError as error:
        raise MissingExtra("SciPy", "scipy") from error

    columns = [(task, node, s) for task, node in shop.visits() for s in shop.strategies[task][node]]
    if not columns:
        return 0.0, {}
    last = len(columns)
    scale = max(strategy.seconds for _, _, strategy in columns)
    loads = shop.tasks + shop.nodes
    values, rows, places = [-1.0] * loads, [*range(loads)], [last] * loads
    for column, (task, node, strategy) in enumerate(columns):
        seconds = strategy.seconds / scale
        values += [seconds, seconds * strategy.gpus / shop.gpus[node]]
        rows += [task, shop.tasks + node]
        places += [column, column]
    pair = [task * shop.nodes + node for task, node, _ in columns]
    solution = linprog(
        np.eye(1, last + 1, last)[0],
        A_ub=csr_array((values, (rows, places)), shape=(loads, last + 1)),
        b_ub=np.zeros(loads),
        A_eq=csr_array((np.ones(last), (pair, np.arange(last))), shape=(shop.tasks * shop.nodes, last + 1)),
        b_eq=np.ones(shop.tasks * shop.nodes),
        method="highs",
    )
    share: dict[tuple[int, int], list[float]] = {pair: [] for pair in shop.visits()}
    for (task, node, _), part in zip(columns, solution.x.tolist(), strict=False):
        share[task, node].append(max(0.0, part))
    return float(solution.fun) * scale, share


def sharded(seconds: Sequence[float], gpus: Sequence[int]) -> NodeShop:
    """Return the shop of equal GPUs with one shard of data each, where k GPUs train k times as fast as one.

    ``seconds`` holds the time of each task on one shard with one GPU. A node holds the shards of all its GPUs.
    """
    return NodeShop(
        tuple(gpus),
        tuple(
            tuple(tuple(NodeStrategy(f"{k} GPU", k, time * count / k) for k in range(1, count + 1)) for count in gpus)
            for time in seconds
        ),
    )


def per_gpu(seconds: Sequence[float], gpus: Sequence[int]) -> NodeShop:
    """Return the shop of the same cluster with every GPU as a node of its own, with its own shard."""
    return sharded(seconds, [1] * sum(gpus))


def whole_nodes(shop: NodeShop) -> NodeShop:
    """Return the same shop with only the strategies that use the most GPUs at their node."""

    def widest(choice: tuple[NodeStrategy, ...]) -> tuple[NodeStrategy, ...]:
        most = max(strategy.gpus for strategy in choice)
        return tuple(strategy for strategy in choice if strategy.gpus == most)

    return NodeShop(shop.gpus, tuple(tuple(map(widest, row)) for row in shop.strategies))


def capacity_rows(rows: int, capacities: Sequence[float]) -> list[int]:
    """Return the number of rows for each worker's partition: in proportion to its capacity, and at least one.

    The numbers are rounded by largest remainders, where ties go to the earlier worker, and add up to ``rows``.
    """
    for worker, capacity in enumerate(capacities):
        if not 0 < capacity < math.inf:
            raise UsageError(
                f"capacity {capacity} of worker {worker}: must be finite and above 0; leave the worker out"
            )
    if not capacities or rows < len(capacities):
        raise UsageError(
            f"rows={rows} for {len(capacities)} workers: each worker needs at least one row; use 1 to {rows} workers"
        )
    # Every worker gets one row; the rest goes by the capacity not yet covered.
    total = math.fsum(capacities)
    missing_each = [max(0.0, rows * (capacity / total) - 1) for capacity in capacities]
    spare = rows - len(capacities)
    exact = [spare * missing / (math.fsum(missing_each) or 1.0) for missing in missing_each]
    counts = [1 + math.floor(share) for share in exact]
    missing = rows - sum(counts)
    for worker in sorted(range(len(exact)), key=lambda worker: math.floor(exact[worker]) - exact[worker])[:missing]:
        counts[worker] += 1
    return counts
