"""Dike's planner: its plans against all plans of small clusters, its time on 20 nodes, and a cluster of 300 nodes.

All plans are those of ``benchmarks.dike_plans``: any set of servers and, on each node, any workers with any numbers of
CPUs and GPUs. Throughput is that of the planner's own model of a step (``planner.dike.problem``), so this shows how
well the planner searches, not how well the model predicts.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from statistics import mean
from unittest.mock import patch

from benchmarks.dike_plans import LARGEST, best_of_all, combinations
from benchmarks.row import Row, milliseconds, table
from hopfleet.planner.dike import place
from hopfleet.planner.dike.place import compare
from hopfleet.planner.dike.problem import Cluster, Model, Node, Placement, rows_per_second, worker_need

LINKS = (0.125e9, 0.5e9, 1.25e9)
"""Bytes per second of links of 1, 4 and 10 Gbit/s."""

MEAN, WORST, SECONDS = 0.97, 0.90, 1.0
"""Bars: throughput by that of the best of all plans, and the time to plan for 20 nodes."""


def draw(seed: int, nodes: int, *, heavy: bool = False) -> tuple[Cluster, Model]:
    """Return a random cluster and model; ``heavy`` models take a core longer to prepare than a GPU to train on."""
    rng = random.Random(f"dike {seed} {nodes}")
    some = [
        Node(f"n{at}", rng.choice([2, 4, 8]), rng.choice([0, 1, 2, 4]) if at else 2, rng.choice([16e9, 32e9]))
        for at in range(nodes)
    ]
    speed = [[rng.choice(LINKS) * rng.uniform(0.7, 1.0) for _ in some] for _ in some]
    costs = tuple(
        tuple(1 / 8e9 if one == other else 1 / speed[min(one, other)][max(one, other)] for other in range(nodes))
        for one in range(nodes)
    )
    # Parameters and operations of ResNet-50, ResNet-152 and Inception-v3, as the paper has them.
    parameters, flops = rng.choice([(21.3e6, 12e9), (64.0e6, 34e9), (21.8e6, 17e9)])
    model = Model(4 * parameters, flops, 32, prepare_seconds=0.02 if heavy else rng.choice([0.0, 0.005, 0.02]))
    return Cluster(tuple(some), costs, 4e12), model


def small(count: int, nodes: range = range(3, 6)) -> Iterator[tuple[Cluster, Model]]:
    """Yield random clusters whose plans can all be tried."""
    seed = 0
    while count:
        cluster, model = draw(seed, nodes[seed % len(nodes)])
        if combinations(cluster, model) <= LARGEST:
            yield cluster, model
            count -= 1
        seed += 1


def round_robin(cluster: Cluster, model: Model) -> float:
    """Return the throughput of one core and one GPU for each worker and a server on every second node, all in turn."""
    half = range(0, len(cluster.nodes), 2)
    rooms = [min(node.gpus, node.cpus - (at in half)) for at, node in enumerate(cluster.nodes)]
    workers = tuple((worker_need(model, 1, 1),) * count for count in rooms)
    return rows_per_second(cluster, model, Placement(tuple(half), workers))


def measure(quick: bool = False) -> list[Row]:
    shares, found, gains, tried = [], [], [], 0
    for cluster, model in small(10 if quick else 150):
        best, count = best_of_all(cluster, model)
        ours = compare(cluster, model)[0].rows_per_second
        with patch.object(place, "ENUMERATED", 0):
            found.append(compare(cluster, model)[0].rows_per_second / best)
        shares.append(ours / best)
        gains.append(ours / round_robin(cluster, model))
        tried += count
    what = f"throughput by that of the best of all plans, {len(shares)} clusters of 3–5 nodes"
    rows = [
        *_shares(what, shares, f"{tried:,} plans tried"),
        *_shares("the same, searched as on large clusters", found),
        Row(
            "dike",
            "throughput by that of a round-robin placement, mean",
            f"{mean(gains):.2f}",
            f"lowest {min(gains):.2f}",
            mean(gains),
        ),
    ]
    seconds = [_timed(*draw(seed, 20, heavy=True))[0] for seed in range(2 if quick else 20)]
    what = f"20 nodes planned, the longest of {len(seconds)}"
    longest = max(seconds)
    rows.append(Row("dike", what, milliseconds(longest), bar=f"< {SECONDS:g} s", ok=longest < SECONDS))
    size = 40 if quick else 300
    took, plans = _timed(*draw(1, size))
    what = f"{size} nodes planned ({plans} plans compared)"
    rows.append(Row("dike", what, milliseconds(took), "paper: 23 minutes", took / 1380, "< 60 s", took < 60))
    return rows


def _shares(what: str, shares: list[float], remark: str = "") -> list[Row]:
    average, worst = mean(shares), min(shares)
    return [
        Row("dike", f"{what}, mean", f"{average:.4f}", remark, average, f"≥ {MEAN}", average >= MEAN),
        Row("dike", "the same, worst cluster", f"{worst:.4f}", "", worst, f"≥ {WORST}", worst >= WORST),
    ]


def _timed(cluster: Cluster, model: Model) -> tuple[float, int]:
    """Return the processor seconds of a plan, and the number of plans that it compares."""
    began = time.process_time()
    plans = compare(cluster, model)
    return time.process_time() - began, len(plans)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dike", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and small clusters: a functional check only")
    print(table(measure(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
