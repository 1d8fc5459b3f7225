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
from hopfleet.planner.nodes_divided import least_seconds_on_nodes
from hopfleet.planner.nodes_exact import solve_exact
from hopfleet.planner.nodes_fast import solve_fast, solve_randomly
from hopfleet.simulation.layouts import divided, simulate_scenario, with_best_teams
from hopfleet.simulation.scenario import Scenario as SimulatedCluster
from hopfleet.simulation.scenario import SimulatedNode


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


MIXES = (((4, 2, 2), 4), ((2,) * 8, 2), ((8,) * 16, 1))
"""GPUs of each node, and the number of draws."""


def measure(quick: bool) -> list[Row]:
    scenarios = SCENARIOS[1:2] if quick else SCENARIOS
    rows = [row for scenario in scenarios for row in _rows(scenario, seeds=2 if quick else 20)]
    return [*rows, *_controlled(scenarios, 1 if quick else 10), *_mixes(quick)]


def _controlled(scenarios: Sequence[Scenario], seeds: int) -> list[Row]:
    """Return the figures of the thesis through the controller of real runs, with teams chosen by dry runs."""
    rows = []
    for scenario in scenarios:
        found = [
            simulate_scenario(
                _simulated(scenario.times(random.Random(seed)), scenario.gpus, (1.0, 2.0), 1)
            ).simulation.ratio
            for seed in range(seeds)
        ]
        what = f"{scenario}, through the controller: makespan / bound, {seeds} draws"
        value, most, bar = f"{mean(found):.3f}", f"max {max(found):.3f}", scenario.gpu_bar
        rows.append(Row("nodes", what, value, most, mean(found), f"≤ {bar:.3g}", max(found) <= bar))
    return rows


def _mixes(quick: bool) -> list[Row]:
    """Return mixes of short and long models through the controller; two GPUs are 1.9 times as fast as one."""
    ratios, fixed, fewer, least, slowest = [], [], [], [], 0.0
    for gpus, draws in MIXES[:1] if quick else MIXES:
        for count in (6,) if quick else (6, 10, 16, 32, 64):
            for seed in range(1 if quick else draws):
                rng = random.Random(seed)
                cluster = _simulated([rng.uniform(100, 1000) for _ in range(count)], gpus, (1.0, 1.9), 3)
                chosen = with_best_teams(cluster, "auto")
                found = simulate_scenario(chosen).simulation
                ratios.append(found.ratio)
                fixed.append(found.makespan / _bound(chosen))
                slowest = max(slowest, found.schedule_seconds / found.decisions)
                layouts = tuple((1,) * each for each in gpus), tuple((each,) for each in gpus)
                others = [simulate_scenario(divided(cluster, layout)).simulation.makespan for layout in layouts]
                least.append(min(others) / found.makespan)
                if count < sum(gpus):
                    fewer += [other / found.makespan for other in others]
    ratio, gain = mean(ratios), mean(fewer)
    what = "6-64 models through the controller"
    better, both = "gain over the better of one GPU each and whole nodes", "mean gain over both, models fewer than GPUs"
    return [
        Row(
            "nodes",
            f"{what}: makespan / bound, mean and worst",
            f"{ratio:.3f}, {max(ratios):.3f}",
            f"{mean(fixed):.3f}, {max(fixed):.3f}: the bound of the chosen teams",
            ratio,
            "≤ 1.02, ≤ 1.06",
            ratio <= 1.02 and max(ratios) <= 1.06,
        ),
        Row("nodes", f"{what}: decision", milliseconds(slowest), "", 1e3 * slowest, "< 5 ms", slowest < 0.005),
        Row("nodes", f"{what}: {better}, at least", f"{min(least):.3f}", "", min(least), "≥ 1", min(least) >= 1),
        Row("nodes", f"{what}: {both}", f"{gain:.2f}", "", gain, "≥ 1.3", gain >= 1.3),
    ]


def _bound(cluster: SimulatedCluster) -> float:
    """Return a lower bound for the teams that a cluster has, which do not change during a run."""
    work = [cluster.epochs * cluster.rows / rate for rate in cluster.rates]
    speeds = [tuple(map(cluster.teams.speed, node.sizes)) for node in cluster.nodes]
    return least_seconds_on_nodes(work, list(zip(cluster.shares, speeds, strict=True)))


def _simulated(
    seconds: Sequence[float], gpus: Sequence[int], scaling: tuple[float, float], epochs: int
) -> SimulatedCluster:
    """Return models on a cluster with a shard on each GPU; ``seconds`` are those of a shard on one GPU."""
    nodes = tuple(SimulatedNode(f"n{number}", count, team=0) for number, count in enumerate(gpus))
    rates = tuple(1000 / each for each in seconds)
    return SimulatedCluster(
        *(nodes, rates, 1000 * sum(gpus), len(gpus), epochs), scaling=scaling, switch=False, sharded=True, fuse=False
    )


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
