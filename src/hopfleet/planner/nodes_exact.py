"""The best plan for tasks on nodes of several GPUs, by constraint programming, with a proof of how good it is.

CP-SAT of OR-tools: an optional interval for each strategy of each visit, exactly one of them present; a cumulative
constraint for the GPUs of each node, for GPUs are equal and can be given out afterwards; no overlap for each task.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner.nodes import CLOSE, NodePlan, NodeShop
from hopfleet.planner.nodes_fast import Choice, as_plan, insert, solve_fast

TICKS = 2**20
"""The solver counts in whole ticks. Where times are not whole seconds, so many make up the plan to be beaten."""

THREADS = 8
"""Searches of different kinds that the solver runs side by side; more than cores, for their kinds help each other."""


def solve_exact(shop: NodeShop, *, seconds: float = 10.0, hint: NodePlan | None = None) -> NodePlan:
    """The best plan found in so many seconds, never longer than ``hint``.

    Its ``bound`` is what the solver proved; where it equals the makespan, no plan is shorter.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtra("OR-tools", "solver") from None
    if not 0 < seconds < math.inf:
        raise UsageError(f"seconds={seconds}: must be finite and above 0")
    if hint is not None and hint.shop != shop:
        raise UsageError("hint: a plan of another shop; plan this shop with solve_fast")
    first = hint or solve_fast(shop, random.Random(0), effort=1)
    if first.makespan <= first.bound * (1 + CLOSE):
        return first
    whole = all(s.seconds.is_integer() for row in shop.strategies for choice in row for s in choice)
    tick = 1.0 if whole else first.makespan / TICKS
    # Times are rounded up, by less than a tick for each visit on the longest chain of a plan.
    slack = 0 if whole else shop.tasks * shop.nodes
    horizon = math.ceil(first.makespan / tick) + slack

    model = cp_model.CpModel()
    makespan = model.new_int_var(math.ceil(first.bound / tick * (1 - CLOSE)), horizon, "makespan")
    starts = {pair: model.new_int_var(0, horizon, "start") for pair in shop.visits()}
    present = {}
    by_task: list[list[Any]] = [[] for _ in range(shop.tasks)]
    by_node: list[list[tuple[Any, int]]] = [[] for _ in range(shop.nodes)]
    for task, node in shop.visits():
        for number, strategy in enumerate(shop.strategies[task][node]):
            there = present[task, node, number] = model.new_bool_var("present")
            length = math.ceil(strategy.seconds / tick)
            interval = model.new_optional_fixed_size_interval_var(starts[task, node], length, there, "visit")
            model.add(starts[task, node] + length <= makespan).only_enforce_if(there)
            by_task[task].append(interval)
            by_node[node].append((interval, strategy.gpus))
        model.add_exactly_one(present[task, node, n] for n in range(len(shop.strategies[task][node])))
    for intervals in by_task:
        model.add_no_overlap(intervals)
    for count, demands in zip(shop.gpus, by_node, strict=True):
        model.add_cumulative([interval for interval, _ in demands], [gpus for _, gpus in demands], count)
    ticks = {
        (visit.task, visit.node): replace(visit.strategy, seconds=math.ceil(visit.strategy.seconds / tick))
        for visit in first.visits
    }
    for pair, start in insert(shop, ticks, ticks).items():
        model.add_hint(starts[pair], round(start))
    for visit in first.visits:
        for number, strategy in enumerate(shop.strategies[visit.task][visit.node]):
            model.add_hint(present[visit.task, visit.node, number], strategy == visit.strategy)
    model.minimize(makespan)

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = THREADS
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return first
    bound = max(first.bound, (solver.best_objective_bound - slack) * tick)
    choice: Choice = {
        (task, node): shop.strategies[task][node][number]
        for (task, node, number), there in present.items()
        if solver.boolean_value(there)
    }
    # In true times, without what rounding to ticks added.
    order = sorted(starts, key=lambda pair: solver.value(starts[pair]))
    plan = as_plan(shop, choice, insert(shop, choice, order), bound)
    return plan if plan.makespan <= first.makespan else NodePlan(shop, first.visits, bound)
