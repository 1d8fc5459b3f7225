"""Timetables of the planner compared with the lower bound, and with optimal ones.

The settings of the Cerebro paper's figure 6, then square shops of the kinds that the literature uses: times drawn
evenly from 1 to 99 (after Taillard), and times with equal sums for all workers and configurations, which are much
harder (after Guéret and Prins, and, with shorter units, after Brucker). Where the optimum is not proven in time,
makespans are compared with the best that was found, and the row says so.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from statistics import mean

from benchmarks.row import Row, milliseconds, table
from hopfleet.planner import costs, exact, rearrangement
from hopfleet.planner.portfolio import best, plan
from hopfleet.planner.rules import random_unit, schedule
from hopfleet.planner.shop import Shop

SECOND = 450_000
"""An effort of about a second."""
BEFORE, SOLVER = SECOND // 5, 0.8
"""The same second, split: an effort for the search, and seconds for the solver that continues from its result."""
PROOF = 15.0
"""Seconds that the exact solver may take."""

Square = Callable[[int, random.Random], costs.Times]


def measure(quick: bool) -> list[Row]:
    return [*_paper(quick), *_jitter(quick), *_classic(quick), *_rearrangement(quick)]


# ---------------------------------------------------------------------------------------------------- figure 6


def _paper(quick: bool) -> list[Row]:
    rows = []
    for configs in (16,) if quick else (16, 256):
        for workers in (8, 16):
            for name in ("homogeneous", "heterogeneous"):
                ratios, theirs, times = [], [], []
                for seed in range(3 if quick else 100 if configs == 16 else 10):
                    rng = random.Random(seed)
                    unit_times = (
                        costs.homogeneous(configs, workers)
                        if name == "homogeneous"
                        else costs.cnns(configs, workers, rng)
                    )
                    shop = Shop.of_times(unit_times)
                    began = time.perf_counter()
                    timetable = plan(shop, rng)
                    times.append(time.perf_counter() - began)
                    timetable.check()
                    ratios.append(timetable.ratio)
                    theirs.append(schedule(shop, random_unit, rng).ratio)
                limit = 0.2 if configs == 16 else 2.0
                rows.append(
                    Row(
                        "openshop",
                        f"{name} {configs}×{workers}, {len(ratios)} seeds: makespan / lower bound",
                        f"mean {mean(ratios):.4f}, max {max(ratios):.4f}; {_spread(times)}",
                        f"random: mean {mean(theirs):.4f}, max {max(theirs):.4f}",
                        mean(ratios) / mean(theirs),
                        f"mean ≤ 1.0005, max ≤ 1.005, < {limit} s",
                        mean(ratios) <= 1.0005 and max(ratios) <= 1.005 and mean(times) < limit,
                    )
                )
    return rows


def _jitter(quick: bool) -> list[Row]:
    rows = []
    for configs, workers, sigma in ((16, 16, 0.05), (16, 16, 0.3), (18, 16, 0.05), (10, 8, 0.1), (256, 16, 0.3)):
        if quick and configs > 10:
            continue
        ratios, times = [], []
        for seed in range(5):
            rng = random.Random(seed)
            shop = Shop.of_times(costs.lognormal(configs, workers, rng, sigma))
            began = time.perf_counter()
            ratios.append(plan(shop, rng).ratio)
            times.append(time.perf_counter() - began)
        ours = f"mean {mean(ratios):.4f}, max {max(ratios):.4f}; {_spread(times)}"
        rows.append(Row("openshop", f"lognormal σ={sigma} {configs}×{workers}, 5 seeds: makespan / lower bound", ours))
    return rows


# ---------------------------------------------------------------------------------------------------- squares


def even(size: int, rng: random.Random) -> costs.Times:
    """Draw whole seconds from 1 to 99, as in Taillard's benchmark."""
    return [[float(rng.randint(1, 99)) for _ in range(size)] for _ in range(size)]


def balanced(size: int, rng: random.Random, total: int = 1000) -> costs.Times:
    """Draw times whose rows and columns all have the same sum, by moving time around in rectangles."""
    base, rest = divmod(total, size)
    times = [[base + ((i + j) % size < rest) for j in range(size)] for i in range(size)]
    for _ in range(20 * size * size):
        (i, k), (j, m) = rng.sample(range(size), 2), rng.sample(range(size), 2)
        moved = min(rng.randint(0, min(times[i][j], times[k][m])), min(times[i][j], times[k][m]) - 1)
        times[i][j] -= moved
        times[k][m] -= moved
        times[i][m] += moved
        times[k][j] += moved
    return [[float(seconds) for seconds in row] for row in times]


def nearly_balanced(size: int, rng: random.Random) -> costs.Times:
    """Draw times whose sums differ a little: every unit loses up to a fifth."""
    return [[float(max(1, round(x * rng.uniform(0.8, 1.0)))) for x in row] for row in balanced(size, rng)]


def _classic(quick: bool) -> list[Row]:
    rows = []
    kinds: tuple[tuple[str, Square, tuple[int, ...]], ...] = (
        ("Taillard-like", even, (4, 5, 7, 10, 15, 20)),
        ("Guéret–Prins-like", balanced, (4, 5, 7, 10)),
        ("Brucker-like", nearly_balanced, (4, 5, 7, 10)),
    )
    for name, kind, sizes in kinds:
        for size in sizes[: 1 if quick else None]:
            rows += _squares(name, kind, size, 1 if quick else 6)
    return rows


def _squares(name: str, kind: Square, size: int, seeds: int) -> list[Row]:
    ratios, alone, times, proofs, proven = [], [], [], [], 0
    for seed in range(seeds):
        rng = random.Random(1000 * size + seed)
        shop = Shop.of_times(kind(size, rng))
        searched = plan(shop, random.Random(seed), effort=SECOND)
        searched.check()
        began = time.perf_counter()
        timetable = best(shop, rng, effort=BEFORE, seconds=SOLVER)
        times.append(time.perf_counter() - began)
        timetable.check()
        began = time.perf_counter()
        hint = min(timetable, searched, key=lambda each: each.makespan)
        solved, proof = exact.solve(shop, seconds=PROOF, hint=hint)
        proofs.append(time.perf_counter() - began)
        solved.check()
        ratios.append(timetable.makespan / solved.makespan)
        alone.append(searched.makespan / solved.makespan)
        proven += proof
    limit = 1.01 if size >= 10 else 1.03
    return [
        Row(
            "openshop",
            f"{name} {size}×{size}, {seeds} seeds: makespan / best known, {proven} of {seeds} proven optimal",
            f"mean {mean(ratios):.4f}, max {max(ratios):.4f}; {_spread(times)}",
            f"search alone: mean {mean(alone):.4f}, max {max(alone):.4f}; exact: {_spread(proofs)}",
            mean(ratios) / mean(alone),
            f"max ≤ {limit}",
            max(ratios) <= limit,
        )
    ]


def _rearrangement(quick: bool) -> list[Row]:
    rows = []
    for configs, workers in ((40, 4),) if quick else ((16, 8), (256, 8), (256, 16)):
        rng = random.Random(0)
        shop = Shop.of_times(costs.cnns(configs, workers, rng))
        began = time.perf_counter()
        timetable = rearrangement.rearrange(shop)
        ours = f"{timetable.ratio:.4f}; {milliseconds(time.perf_counter() - began)}"
        promise = "promised to be optimal" if rearrangement.optimal(shop) else "promised: C* + (p − 1) Tmax"
        rows.append(
            Row("openshop", f"vector rearrangement, heterogeneous {configs}×{workers}: makespan / bound", ours, promise)
        )
    return rows


def _spread(times: list[float]) -> str:
    return f"{milliseconds(mean(times))}, at most {milliseconds(max(times))}"


if __name__ == "__main__":
    print(table(measure("--quick" in sys.argv)))
