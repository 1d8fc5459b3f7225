"""Optimal timetables, by the CP-SAT solver of OR-tools: for small shops, and to say how good the others are."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner.grid import Grid, Order
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable

LIMIT = 5000
"""Units of the largest shop that is worth a try: 256 configurations on 16 workers have 4096."""
FINEST = 2.0**36
"""Ticks in the sum of all times, unless they are whole numbers: the solver's own sums must not overflow."""


STEPS = 0.115
"""What the solver does in about a second, as it counts its steps itself."""


def installed() -> bool:
    return importlib.util.find_spec("ortools") is not None


def load() -> Any:
    """The solver. The first time takes the better part of a second."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtra("OR-tools", "solver") from None
    return cp_model


def solve(
    shop: Shop, *, seconds: float, hint: Timetable | None = None, workers: int = 1, counted: bool = False
) -> tuple[Timetable, bool]:
    """The best timetable that is found in ``seconds``, and whether it is proven to be optimal.

    Whole numbers of seconds are solved exactly; others are rounded to 2^-36 of their sum, and proofs hold for those.
    ``hint`` is where to start: the result is no worse. ``workers`` is the number of the solver's threads. One thread
    proves most: two or more spend their time on other ways to search, of which few fit this problem. If ``counted``,
    the solver counts its steps instead of reading the clock: the same question gets the same answer, in about the time.
    """
    if len(shop.units) > LIMIT:
        raise UsageError(f"{len(shop.units)} units: exact solving takes at most {LIMIT}; portfolio.plan has no limit")
    if not seconds > 0:
        raise UsageError(f"seconds={seconds}: must be above 0")
    if hint and hint.shop != shop:
        raise UsageError("hint: is a timetable of another shop; plan this one")
    cp_model = load()
    grid = Grid.of(shop, FINEST)
    order = _order(grid, hint.starts) if hint else list(range(len(grid)))
    known = Timetable.of_order(shop, order)
    ends = grid.ends(order)
    if max(ends, default=0) <= grid.bound:
        return known, True

    model, starts = _model(cp_model, grid, horizon=max(ends))
    for start, time in zip(starts, _mirrored(grid, ends), strict=True):
        model.add_hint(start, time)
    solver = cp_model.CpSolver()
    if counted:
        solver.parameters.max_deterministic_time = STEPS * seconds
    else:
        solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    # A shop has no linear structure worth a simplex step, and strong propagation on who goes first proves far more.
    solver.parameters.linearization_level = 0
    solver.parameters.use_strong_propagation_in_disjunctive = True
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return known, False
    found = [solver.value(start) for start in starts]
    best = Timetable.of_order(shop, _order(grid, found))
    return min(best, known, key=lambda timetable: timetable.makespan), status == cp_model.OPTIMAL


def _order(grid: Grid, starts: Sequence[float]) -> Order:
    """By start; units without length come before what starts with them."""
    return sorted(range(len(grid)), key=lambda u: (starts[u], grid.ticks[u]))


def _model(cp_model: Any, grid: Grid, horizon: int) -> tuple[Any, list[Any]]:
    """Minimise the makespan of intervals that do not overlap on any worker or configuration."""
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
    """If all are ready at 0, a timetable read from its end is one too: the longest unit may lie in the first half."""
    return not any(grid.config_ready) and not any(grid.worker_ready)


def _longest(grid: Grid) -> int:
    return max(range(len(grid)), key=grid.ticks.__getitem__)


def _mirrored(grid: Grid, ends: list[int]) -> list[int]:
    """Starts, of the reversed timetable if that is the one of the two which the model admits."""
    starts = [end - length for end, length in zip(ends, grid.ticks, strict=True)]
    longest, makespan = _longest(grid), max(ends)
    if _reversible(grid) and starts[longest] + ends[longest] > makespan:
        return [makespan - end for end in ends]
    return starts
