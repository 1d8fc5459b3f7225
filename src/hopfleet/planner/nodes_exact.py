"""Optimal plans for tasks on nodes with several GPUs, by constraint programming, with a proven lower bound.

The model for the CP-SAT solver of OR-tools has one optional interval per strategy of each visit, where exactly one is
present; a cumulative constraint per node, because its GPUs are interchangeable and can be numbered afterwards; and
a no-overlap constraint per task.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

from hopfleet.errors import UsageError
from hopfleet.planner import exact
from hopfleet.planner.nodes import CLOSE, NodePlan, NodeShop
from hopfleet.planner.nodes_fast import Choice, Pair, as_plan, insert, solve_fast

TICKS = 2**20
"""Solver ticks in the makespan of the plan to beat, when times are not whole seconds (whole seconds are the ticks)."""

THREADS = 8
"""Solver threads, each with its own search strategy; the strategies share bounds, so more threads than cores help."""


def solve_exact(shop: NodeShop, *, seconds: float = 10.0, hint: NodePlan | None = None) -> NodePlan:
    """Return the best plan found within ``seconds``, never longer than ``hint``.

    The plan's ``bound`` is the lower bound that the solver proved; a plan whose makespan equals the bound is optimal.
    """
    cp_model = exact.load()
    if not 0 < seconds < math.inf:
        raise UsageError(f"seconds={seconds}: must be finite and above 0")
    if hint is not None and hint.shop != shop:
        raise UsageError("hint: is a plan of another shop; plan this shop with solve_fast")
    first = hint or solve_fast(shop, random.Random(0), effort=1)
    if first.makespan <= first.bound * (1 + CLOSE):
        return first
    clock = _Clock.of(shop, first)
    variables = _Variables.of(cp_model, shop, first, clock)
    variables.hint(first, clock)

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = THREADS
    solver.parameters.random_seed = 0
    status = solver.solve(variables.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return first
    bound = max(first.bound, (solver.best_objective_bound - clock.slack) * clock.tick)
    plan = variables.plan(solver, bound)
    return plan if plan.makespan <= first.makespan else NodePlan(shop, first.visits, bound)


@dataclass(frozen=True, slots=True)
class _Clock:
    """The conversion from seconds to the whole ticks of the solver."""

    #: Seconds per tick.
    tick: float
    #: Ticks that rounding up adds to a plan at most: less than one per visit on the longest chain.
    slack: int
    #: The latest tick in the model.
    horizon: int

    @classmethod
    def of(cls, shop: NodeShop, first: NodePlan) -> _Clock:
        whole = all(s.seconds.is_integer() for row in shop.strategies for choice in row for s in choice)
        tick = 1.0 if whole else first.makespan / TICKS
        slack = 0 if whole else shop.tasks * shop.nodes
        return cls(tick, slack, math.ceil(first.makespan / tick) + slack)

    def ticks(self, seconds: float) -> int:
        return math.ceil(seconds / self.tick)


@dataclass(frozen=True, slots=True)
class _Variables:
    """The solver's model of a shop, with the variables that describe a plan."""

    shop: NodeShop
    model: Any
    starts: dict[Pair, Any]
    #: Whether a visit uses a strategy, by task, node and index of the strategy.
    present: dict[tuple[int, int, int], Any]

    @classmethod
    def of(cls, cp_model: Any, shop: NodeShop, first: NodePlan, clock: _Clock) -> _Variables:
        model = cp_model.CpModel()
        makespan = model.new_int_var(math.ceil(first.bound / clock.tick * (1 - CLOSE)), clock.horizon, "makespan")
        starts = {pair: model.new_int_var(0, clock.horizon, "start") for pair in shop.visits()}
        variables = cls(shop, model, starts, {})
        variables._constrain(makespan, clock)
        return variables

    def _constrain(self, makespan: Any, clock: _Clock) -> None:
        model, shop = self.model, self.shop
        by_task: list[list[Any]] = [[] for _ in range(shop.tasks)]
        by_node: list[list[tuple[Any, int]]] = [[] for _ in range(shop.nodes)]
        for task, node in shop.visits():
            start = self.starts[task, node]
            for number, strategy in enumerate(shop.strategies[task][node]):
                there = self.present[task, node, number] = model.new_bool_var("present")
                length = clock.ticks(strategy.seconds)
                interval = model.new_optional_fixed_size_interval_var(start, length, there, "visit")
                model.add(start + length <= makespan).only_enforce_if(there)
                by_task[task].append(interval)
                by_node[node].append((interval, strategy.gpus))
            model.add_exactly_one(self.present[task, node, n] for n in range(len(shop.strategies[task][node])))
        for intervals in by_task:
            model.add_no_overlap(intervals)
        for count, demands in zip(shop.gpus, by_node, strict=True):
            model.add_cumulative([interval for interval, _ in demands], [gpus for _, gpus in demands], count)
        model.minimize(makespan)

    def hint(self, first: NodePlan, clock: _Clock) -> None:
        """Start the solver from a known plan."""
        ticks = {
            (visit.task, visit.node): replace(visit.strategy, seconds=clock.ticks(visit.strategy.seconds))
            for visit in first.visits
        }
        for pair, start in insert(self.shop, ticks, ticks).items():
            self.model.add_hint(self.starts[pair], round(start))
        for visit in first.visits:
            for number, strategy in enumerate(self.shop.strategies[visit.task][visit.node]):
                self.model.add_hint(self.present[visit.task, visit.node, number], strategy == visit.strategy)

    def plan(self, solver: Any, bound: float) -> NodePlan:
        """Return the solver's plan in exact seconds, without the time that rounding to ticks added."""
        choice: Choice = {
            (task, node): self.shop.strategies[task][node][number]
            for (task, node, number), there in self.present.items()
            if solver.boolean_value(there)
        }
        order = sorted(self.starts, key=lambda pair: solver.value(self.starts[pair]))
        return as_plan(self.shop, choice, insert(self.shop, choice, order), bound)
