"""Optimal timetables from the CP-SAT solver of OR-tools: for small shops, and to judge the other planners."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner.grid import Grid, Order
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable

LIMIT = 5000
"""Units of the largest shop that the solver accepts: 256 configurations on 16 workers have 4096."""
FINEST = 2.0**36
"""Ticks in the sum of all times, unless the times are whole numbers; more could overflow the solver's own sums."""
STEPS = 0.115
"""The solver's deterministic time units per second of computing, as measured."""


def installed() -> bool:
    """Whether OR-tools can be imported."""
    return importlib.util.find_spec("ortools") is not None


def load() -> Any:
    """Return the solver's module. The first import takes most of a second."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtra("OR-tools", "solver") from None
    return cp_model


def solve(
    shop: Shop, *, seconds: float, hint: Timetable | None = None, workers: int = 1, counted: bool = False
) -> tuple[Timetable, bool]:
    """Return the best timetable found in ``seconds``, and whether it is proven to be optimal.

    Whole numbers of seconds are solved exactly; other times are rounded to 2^-36 of their sum, and the proof holds for
    the rounded times. The result is never worse than ``hint``. ``workers`` is the number of solver threads; one thread
    proves the most, because additional threads try search strategies that rarely suit this problem. If ``counted``, the
    solver limits its steps instead of reading the clock, so the same shop always gets the same timetable, in about the
    same time.
    """
    if len(shop.units) > LIMIT:
        raise UsageError(
            f"{len(shop.units)} units: the exact solver takes at most {LIMIT}; use portfolio.plan, which has no limit"
        )
    if not seconds > 0:
        raise UsageError(f"seconds={seconds}: must be above 0")
    if hint and hint.shop != shop:
        raise UsageError("hint: is a timetable of another shop; plan this shop with portfolio.plan")
    cp_model = load()
    grid = Grid.of(shop, FINEST)
    order = _order(grid, hint.starts) if hint else list(range(len(grid)))
    known = Timetable.of_order(shop, order)
    ends = grid.ends(order)
    if max(ends, default=0) <= grid.bound:
        return known, True

    model, starts = _model(cp_model, grid, horizon=max(ends))
    for start, time in zip(starts, _admissible_starts(grid, ends), strict=True):
        model.add_hint(start, time)
    solver = cp_model.CpSolver()
    if counted:
        solver.parameters.max_deterministic_time = STEPS * seconds
    else:
        solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    # An open shop has no linear structure worth a simplex step; strong propagation of precedences proves far more.
    solver.parameters.linearization_level = 0
    solver.parameters.use_strong_propagation_in_disjunctive = True
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return known, False
    found = [solver.value(start) for start in starts]
    best = Timetable.of_order(shop, _order(grid, found))
    return min(best, known, key=lambda timetable: timetable.makespan), status == cp_model.OPTIMAL


def _order(grid: Grid, starts: Sequence[float]) -> Order:
    """Return the units by start; units of zero length come before units that start at the same time."""
    return sorted(range(len(grid)), key=lambda u: (starts[u], grid.ticks[u]))


def _model(cp_model: Any, grid: Grid, horizon: int) -> tuple[Any, list[Any]]:
    """Build a model that minimises the makespan of intervals without overlap on any worker or configuration."""
    model = cp_model.CpModel()
    makespan = model.new_int_var(grid.bound, horizon, "makespan")
    starts, intervals = [], []
    for unit, length in enumerate(grid.ticks):
        ready = max(grid.config_ready[grid.config[unit]], grid.worker_ready[grid.worker[unit]])
        starts.append(model.new_int_var(ready, horizon - length, f"start{unit}"))
        intervals.append(model.new_fixed_size_interval_var(starts[-1], length, f"unit{unit}"))
        model.add(starts[-1] + length <= makespan)
    for owners in (grid.config, grid.worker):
        for owner in sorted(set(owners)):
            model.add_no_overlap([intervals[u] for u in range(len(grid)) if owners[u] == owner])
    if _reversible(grid):
        longest = _longest(grid)
        model.add(2 * starts[longest] + grid.ticks[longest] <= makespan)
    model.minimize(makespan)
    return model, starts


def _reversible(grid: Grid) -> bool:
    """Whether a reversed timetable is valid too, as it is when all are ready at 0.

    The longest unit may then be placed in the first half of the timetable.
    """
    return not any(grid.config_ready) and not any(grid.worker_ready)


def _longest(grid: Grid) -> int:
    return max(range(len(grid)), key=grid.ticks.__getitem__)


def _admissible_starts(grid: Grid, ends: list[int]) -> list[int]:
    """Return the starts of the timetable, or of the reversed timetable if the model admits only that one."""
    starts = [end - length for end, length in zip(ends, grid.ticks, strict=True)]
    longest, makespan = _longest(grid), max(ends)
    if _reversible(grid) and starts[longest] + ends[longest] > makespan:
        return [makespan - end for end in ends]
    return starts
