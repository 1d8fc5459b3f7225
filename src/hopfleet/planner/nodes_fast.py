"""Good plans for tasks on nodes with several GPUs, at once: list scheduling, forward-backward improvement, restarts.

A plan is built from a choice of strategies and a priority for each visit, by one of two builders. ``dispatch`` walks
through time and keeps no GPU idle that could run a task. ``insert`` takes visits one by one and places each at its
earliest start, gaps included. Applied to the visits of a plan from the last end to the first, and then to the result,
which is the same problem with time reversed, ``insert`` never makes a plan longer and often makes it shorter.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from hopfleet.planner.nodes import CLOSE, NodePlan, NodeShop, NodeStrategy, Visit, lower_bound, relaxed, whole_nodes

Pair = tuple[int, int]
"""A task and a node."""

Starts = dict[Pair, float]
Choice = dict[Pair, NodeStrategy]

NOISE = (0.02, 0.1, 0.5)
"""Random perturbations of restarts, as part of the largest load (priorities) or of the makespan (the best order)."""


def solve_fast(shop: NodeShop, rng: random.Random, *, effort: int = 300) -> NodePlan:
    """Return the best of ``effort`` plans, or the first one that ends at the lower bound."""
    bound = lower_bound(shop)
    best: tuple[float, Choice, Starts] = (math.inf, {}, {})
    choices = _first_choices(shop)
    for attempt in range(max(effort, 1)):
        if attempt < len(choices):
            choice = choices[attempt]
            starts = dispatch(shop, choice, _urgency(choice, rng, 0.0))
        elif rng.random() < 0.5:
            choice = _varied(shop, best[1], rng)
            starts = dispatch(shop, choice, _urgency(choice, rng, rng.choice(NOISE)))
        else:
            choice = _varied(shop, best[1], rng)
            blur = best[0] * rng.choice(NOISE)
            starts = insert(shop, choice, sorted(choice, key=lambda pair: best[2][pair] + rng.uniform(0, blur)))
        starts = _tightened(shop, choice, starts)
        span = _span(choice, starts)
        if span <= best[0]:
            best = span, choice, starts
        if span <= bound * (1 + CLOSE):
            break
    return as_plan(shop, best[1], best[2], bound)


def solve_randomly(shop: NodeShop, rng: random.Random) -> NodePlan:
    """Plan like the random scheduler of the thesis: one task per node, on all its GPUs, started in random order."""
    wide = whole_nodes(shop)
    choice = {(task, node): rng.choice(wide.strategies[task][node]) for task, node in wide.visits()}
    starts = dispatch(shop, choice, lambda pair, left, load: rng.random())
    return as_plan(shop, choice, starts, lower_bound(shop))


Priority = Callable[[Pair, Sequence[float], Sequence[float]], float]
"""The urgency of a visit, given the time left for each task, and for each node with all its GPUs at work."""


def dispatch(shop: NodeShop, choice: Mapping[Pair, NodeStrategy], priority: Priority) -> Starts:
    """Build a plan in the order of time: whenever visits can start, start the most urgent one."""
    left = [0.0] * shop.tasks
    load = [0.0] * shop.nodes
    for (task, node), strategy in choice.items():
        left[task] += strategy.seconds
        load[node] += strategy.seconds * strategy.gpus / shop.gpus[node]
    idle, free = set(range(shop.tasks)), list(shop.gpus)
    waiting = list(choice)
    starts: Starts = {}
    running: list[tuple[float, Pair]] = []
    now = 0.0
    while waiting:
        able = [pair for pair in waiting if pair[0] in idle and choice[pair].gpus <= free[pair[1]]]
        if able:
            task, node = pair = max(able, key=lambda pair: priority(pair, left, load))
            strategy = choice[pair]
            waiting.remove(pair)
            starts[pair] = now
            idle.discard(task)
            free[node] -= strategy.gpus
            left[task] -= strategy.seconds
            load[node] -= strategy.seconds * strategy.gpus / shop.gpus[node]
            heapq.heappush(running, (now + strategy.seconds, pair))
            continue
        now = running[0][0]
        while running and running[0][0] <= now:
            _, pair = heapq.heappop(running)
            idle.add(pair[0])
            free[pair[1]] += choice[pair].gpus
    return starts


def insert(shop: NodeShop, choice: Mapping[Pair, NodeStrategy], order: Iterable[Pair]) -> Starts:
    """Place each visit, in this order, at its earliest start without moving earlier visits."""
    starts: Starts = {}
    of_task: list[list[Pair]] = [[] for _ in range(shop.tasks)]
    of_node: list[list[Pair]] = [[] for _ in range(shop.nodes)]
    for pair in order:
        task, node = pair
        strategy = choice[pair]
        mine = [(starts[p], starts[p] + choice[p].seconds) for p in of_task[task]]
        others = [(starts[p], starts[p] + choice[p].seconds, choice[p].gpus) for p in of_node[node]]
        spare = shop.gpus[node] - strategy.gpus
        candidates = sorted({0.0, *(end for _, end in mine), *(end for _, end, _ in others)})
        starts[pair] = next(start for start in candidates if _fits(start, strategy, spare, mine, others))
        of_task[task].append(pair)
        of_node[node].append(pair)
    return starts


def _fits(
    start: float,
    strategy: NodeStrategy,
    spare: int,
    mine: Sequence[tuple[float, float]],
    others: Sequence[tuple[float, float, int]],
) -> bool:
    """Whether a task can run from ``start``, given its own visits and the other tasks' visits at the node."""
    end = start + strategy.seconds
    if any(first < end and start < last for first, last in mine):
        return False
    return _most_at_once([other for other in others if other[0] < end and start < other[1]], start) <= spare


def _most_at_once(visits: Sequence[tuple[float, float, int]], start: float) -> int:
    """Return the largest number of GPUs that these visits use at any moment from ``start`` on."""
    moments = {start, *(first for first, _, _ in visits if first > start)}
    return max(sum(gpus for first, last, gpus in visits if first <= moment < last) for moment in moments)


def _tightened(shop: NodeShop, choice: Choice, starts: Starts) -> Starts:
    """Repeat insertion from the back and from the front while the plan gets shorter."""
    span = _span(choice, starts)
    while True:
        backwards = insert(shop, choice, sorted(starts, key=lambda p: -(starts[p] + choice[p].seconds)))
        forwards = insert(shop, choice, sorted(backwards, key=lambda p: -(backwards[p] + choice[p].seconds)))
        shorter = _span(choice, forwards)
        if shorter >= span * (1 - CLOSE):
            return starts if shorter > span else forwards
        starts, span = forwards, shorter


def _urgency(choice: Choice, rng: random.Random, noise: float) -> Priority:
    """Return a priority for tasks and nodes with much time left, dominated by the larger of the two."""
    jitter = {pair: rng.uniform(0, noise) for pair in choice}

    def priority(pair: Pair, left: Sequence[float], load: Sequence[float]) -> float:
        most = max(*left, *load) or 1.0
        task, node = left[pair[0]] / most, load[pair[1]] / most
        return float(task**4 + node**4 + 0.3 * task * node + jitter[pair])

    return priority


def _first_choices(shop: NodeShop) -> list[Choice]:
    """Return initial strategies: those of the linear program, the fastest, and those with the least GPU time."""
    _, share = relaxed(shop)

    def pick(key: Callable[[NodeStrategy, float], tuple[float, float]]) -> Choice:
        return {
            (task, node): min(zip(shop.strategies[task][node], parts, strict=True), key=lambda both: key(*both))[0]
            for (task, node), parts in share.items()
        }

    return [
        pick(lambda strategy, part: (-part, strategy.seconds)),
        pick(lambda strategy, part: (strategy.seconds, strategy.gpus)),
        pick(lambda strategy, part: (strategy.seconds * strategy.gpus, strategy.seconds)),
    ]


def _varied(shop: NodeShop, choice: Choice, rng: random.Random) -> Choice:
    """Draw other strategies for a few visits."""
    varied = dict(choice)
    for task, node in rng.choices(list(choice), k=rng.choice((0, 0, 1, 2, 3))):
        varied[task, node] = rng.choice(shop.strategies[task][node])
    return varied


def _span(choice: Mapping[Pair, NodeStrategy], starts: Starts) -> float:
    return max((start + choice[pair].seconds for pair, start in starts.items()), default=0.0)


def as_plan(shop: NodeShop, choice: Mapping[Pair, NodeStrategy], starts: Starts, bound: float) -> NodePlan:
    """Number the GPUs of a plan: visits take the lowest free GPUs, by start; there are always enough."""
    free_at = [[0.0] * count for count in shop.gpus]
    visits = []
    for start, (task, node) in sorted((start, pair) for pair, start in starts.items()):
        strategy = choice[task, node]
        gpus = sorted(range(shop.gpus[node]), key=lambda gpu: (free_at[node][gpu] > start, gpu))[: strategy.gpus]
        for gpu in gpus:
            free_at[node][gpu] = start + strategy.seconds
        visits.append(Visit(task, node, strategy, start, tuple(sorted(gpus))))
    return NodePlan(shop, tuple(sorted(visits, key=lambda visit: (visit.start, visit.node))), bound)
