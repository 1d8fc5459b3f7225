"""Nodes of several GPUs: the three scenarios of the Cerebro thesis (its section 4.4), planned, and drawn on request.

The thesis reports makespans and no unit times. One model per GPU ends no earlier than max(GPUs · tmax, Σt), whole nodes
no earlier than max(nodes · tmax, Σt), so the longest and the total time follow from what it reports; the times between
are drawn at random, for several seeds. ``python -m benchmarks.nodes --charts FOLDER`` draws one chart per scenario.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.row import Row, milliseconds, table
from hopfleet.planner.nodes import NodePlan, Visit, per_gpu, sharded
from hopfleet.planner.nodes_exact import solve_exact
from hopfleet.planner.nodes_fast import solve_fast, solve_randomly


@dataclass(frozen=True)
class Scenario:
    figure: str
    tasks: int
    gpus: tuple[int, ...]
    #: The longest and the total time of the tasks on one shard.
    longest: float
    total: float
    #: What the thesis reports: its MILP after 300 s by one model per GPU.
    reported: float
    #: Limit of the planned makespan of one model per GPU, relative to its bound.
    gpu_bar: float

    def __str__(self) -> str:
        each = self.gpus[0] if len(set(self.gpus)) == 1 else list(self.gpus)
        return f"{self.tasks} models on {len(self.gpus)} nodes of {each} GPUs"

    def times(self, rng: random.Random) -> list[float]:
        """Return the seconds of each task on one shard with one GPU."""
        draws = [rng.random() for _ in range(self.tasks)]
        gaps = [max(draws) - draw for draw in draws]
        unit = (self.tasks * self.longest - self.total) / sum(gaps)
        return [self.longest - unit * gap for gap in gaps]


SCENARIOS = (
    Scenario("4.1", 6, (2,) * 8, 15926 / 16, 5280.0, 7967 / 15926, 1.0005),
    Scenario("4.2", 6, (4, 2, 2), 7780 / 8, 5252.0, 5255 / 7780, 1.0005),
    Scenario("4.3", 10, (4, 2, 2), 15926 / 16, 8956.0, 8995 / 10172, 1.04),
)
NODE_BAR = 1.0005


def measure(quick: bool) -> list[Row]:
    return [row for scenario in SCENARIOS for row in _rows(scenario, seeds=2 if quick else 20)]


def _rows(scenario: Scenario, seeds: int) -> list[Row]:
    node, gpu, node_random, gpu_random, ratios, times = [], [], [], [], [], []
    for seed in range(seeds):
        rng = random.Random(seed)
        seconds = scenario.times(rng)
        shop, single = sharded(seconds, scenario.gpus), per_gpu(seconds, scenario.gpus)
        start = time.perf_counter()
        plan = solve_fast(shop, rng)
        if plan.makespan > NODE_BAR * plan.bound:
            plan = solve_exact(shop, seconds=10, hint=plan)
        times.append(time.perf_counter() - start)
        alone = solve_randomly(single, rng)
        node.append(_ratio(plan))
        gpu.append(_ratio(solve_fast(single, rng)))
        node_random.append(_ratio(solve_randomly(shop, rng)))
        gpu_random.append(_ratio(alone))
        ratios.append(plan.makespan / alone.makespan)
    return [
        Row(
            "nodes",
            f"{scenario}: makespan by that of one model per GPU, {seeds} draws",
            f"mean {mean(ratios):.3f}, max {max(ratios):.3f}",
            f"{scenario.reported:.3f}: the thesis' MILP, 300 s",
            mean(ratios) / scenario.reported,
            "no higher",
            mean(ratios) <= scenario.reported,
        ),
        Row(
            "nodes",
            f"{scenario}: makespan / bound",
            f"mean {mean(node):.3f}, max {max(node):.3f} in {milliseconds(median(times))}",
            f"mean {mean(node_random):.3f}, max {max(node_random):.3f}: random",
            mean(node) / mean(node_random),
            "1.000",
            max(node) <= NODE_BAR,
        ),
        Row(
            "nodes",
            f"{scenario}, one model per GPU: makespan / bound",
            f"mean {mean(gpu):.3f}, max {max(gpu):.3f}",
            f"mean {mean(gpu_random):.3f}, max {max(gpu_random):.3f}: random",
            mean(gpu) / mean(gpu_random),
            f"≤ {scenario.gpu_bar:.3g}",
            max(gpu) <= scenario.gpu_bar,
        ),
    ]


def _ratio(plan: NodePlan) -> float:
    plan.check()
    return plan.makespan / plan.bound


# ------------------------------------------------------------------------------------------------------------ charts


def draw(scenario: Scenario, path: Path, seed: int = 0) -> None:
    """Draw three plans of one scenario, one above the other, on one time axis."""
    rng = random.Random(seed)
    seconds = scenario.times(rng)
    shop, single = sharded(seconds, scenario.gpus), per_gpu(seconds, scenario.gpus)
    plans = {
        "one model per GPU, random": solve_randomly(single, rng),
        "whole nodes, random": solve_randomly(shop, rng),
        "Hopfleet": solve_fast(shop, rng),
    }
    lanes = sum(scenario.gpus)
    figure = Figure(figsize=(11, 1.2 + 3 * (0.55 + 0.16 * lanes)), layout="constrained")
    figure.suptitle(f"{scenario} (the thesis' figure {scenario.figure})", fontsize=12, fontweight="bold")
    panels = figure.subplots(len(plans), sharex=True)
    latest = max(plan.makespan for plan in plans.values())
    for axes, (title, plan) in zip(panels, plans.items(), strict=True):
        _panel(axes, plan, scenario.gpus)
        axes.set_title(f"{title}: {plan.makespan:,.0f} s", loc="left", fontsize=10)
        axes.set_xlim(0, 1.01 * latest)
    panels[-1].set_xlabel("seconds")
    colors = colormaps["tab10"]
    handles = [Rectangle((0, 0), 1, 1, facecolor=colors(task)) for task in range(scenario.tasks)]
    labels = [f"model {task} ({seconds[task]:,.0f} s a shard)" for task in range(scenario.tasks)]
    columns = min(5, (scenario.tasks + 1) // 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.savefig(path, dpi=90)


def _panel(axes: Axes, plan: NodePlan, gpus: Sequence[int]) -> None:
    """Draw one plan: rows are GPUs, grouped by node; a visit of several neighbouring GPUs is one block."""
    lanes = [(node, gpu) for node, count in enumerate(gpus) for gpu in range(count)]
    first = [lanes.index((node, 0)) for node in range(len(gpus))]
    colors = colormaps["tab10"]
    for visit in plan.visits:
        # Where every GPU is its own node, the node's number is the row.
        rows = [visit.node] if plan.shop.nodes == len(lanes) else [first[visit.node] + gpu for gpu in visit.gpus]
        for top, height in _runs(rows):
            _block(axes, visit, top, height, colors(visit.task))
    axes.axvline(plan.makespan, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(len(lanes), 0)
    for row in first[1:]:
        axes.axhline(row, color="0.4", linewidth=0.6)
    middles = [row + count / 2 for row, count in zip(first, gpus, strict=True)]
    axes.set_yticks(middles, [f"node {node}" for node in range(len(gpus))], fontsize=8)
    axes.set_yticks([row + 0.5 for row in range(len(lanes))], [str(gpu) for _, gpu in lanes], minor=True, fontsize=6)
    axes.tick_params(axis="y", which="both", length=0)
    axes.tick_params(axis="y", which="major", pad=14)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _block(axes: Axes, visit: Visit, top: int, height: int, color: tuple[float, ...]) -> None:
    axes.add_patch(
        Rectangle((visit.start, top), visit.strategy.seconds, height, facecolor=color, edgecolor="white", linewidth=0.8)
    )
    middle = visit.start + visit.strategy.seconds / 2, top + height / 2
    axes.text(*middle, str(visit.task), ha="center", va="center", fontsize=7, color="white", clip_on=True)


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Merge neighbouring rows; return the first row and the length of each block."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and sum(runs[-1]) == row:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two draws: a functional check only")
    parser.add_argument("--charts", type=Path, metavar="FOLDER", help="folder for charts of the plans of each scenario")
    options = parser.parse_args()
    print(table(measure(options.quick)))
    if options.charts:
        options.charts.mkdir(parents=True, exist_ok=True)
        for scenario in SCENARIOS:
            draw(scenario, options.charts / f"nodes-{scenario.figure}.png")


if __name__ == "__main__":
    main()
