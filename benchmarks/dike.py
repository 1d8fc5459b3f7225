"""Dike's planner: its plans against all plans of small clusters, the size of its search, and a cluster of 300 nodes.

Throughput is that of the planner's own model of a step (``planner.dike.problem``), so this shows how well it searches,
not how well the model predicts.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from statistics import mean

import numpy as np

from benchmarks.row import Row, milliseconds, table
from hopfleet.planner.dike.generate import assignments
from hopfleet.planner.dike.place import compare
from hopfleet.planner.dike.problem import Assignment, Cluster, Model, Node, Placement, rows_per_second, step_seconds

LINKS = (0.125e9, 0.5e9, 1.25e9)
"""Bytes per second of links of 1, 4 and 10 Gbit/s."""


def draw(seed: int, nodes: int) -> tuple[Cluster, Model]:
    rng = random.Random(f"dike {seed}")
    # Few enough on many nodes to try all plans.
    gpus = [0, 1, 2, 2, 4] if nodes <= 5 else [0, 1, 1, 2]
    some = [
        Node(f"n{at}", rng.choice([4, 8]), rng.choice(gpus) if at else 2, rng.choice([16e9, 32e9]))
        for at in range(nodes)
    ]
    speed = [[rng.choice(LINKS) * rng.uniform(0.7, 1.0) for _ in some] for _ in some]
    costs = tuple(
        tuple(1 / 8e9 if one == other else 1 / speed[min(one, other)][max(one, other)] for other in range(nodes))
        for one in range(nodes)
    )
    # Parameters and operations of ResNet-50, ResNet-152 and Inception-v3, as the paper has them.
    parameters, flops = rng.choice([(21.3e6, 12e9), (64.0e6, 34e9), (21.8e6, 17e9)])
    model = Model(4 * parameters, flops, 32, prepare_seconds=rng.choice([0.0, 0.005, 0.02]))
    return Cluster(tuple(some), costs, 4e12), model


def exhaustive(cluster: Cluster, model: Model) -> tuple[float, int]:
    """Return the highest throughput of all plans, and their number."""
    best, tried = 0.0, 0
    for assignment in assignments(cluster, model):
        for servers in itertools.combinations(range(len(cluster.nodes)), assignment.servers):
            speeds = _all_workers(cluster, model, assignment, list(servers))
            best, tried = max(best, float(speeds.max(initial=0.0))), tried + len(speeds)
    return best, tried


def _all_workers(cluster: Cluster, model: Model, assignment: Assignment, servers: list[int]) -> np.ndarray:
    rooms = [assignment.room(node, server=at in servers) for at, node in enumerate(cluster.nodes)]
    if min(rooms[at] for at in servers) < 0:
        return np.zeros(0)
    counts = np.stack(np.meshgrid(*(np.arange(max(0, room) + 1) for room in rooms), indexing="ij"), -1)
    counts = counts.reshape(-1, len(rooms))
    costs = np.array(cluster.seconds_per_byte)[servers]
    downloads = np.where(counts > 0, costs.sum(0), 0.0).max(1)
    uploads = (counts @ costs.T).max(1)
    gpus = counts.sum(1) * assignment.worker.gpus
    seconds = step_seconds(cluster, model, assignment.worker, 1)  # with a batch for each GPU, the same on all
    transfers = 2 * model.parameters / len(servers) * np.maximum(downloads, uploads)
    return np.asarray(gpus * model.batch / (seconds + transfers))


def round_robin(cluster: Cluster, model: Model) -> float:
    """Return the throughput of one GPU for each worker and a server on every second node, all in turn."""
    half = range(0, len(cluster.nodes), 2)
    assignment = next(
        each for each in assignments(cluster, model) if each.servers == len(half) and each.worker.gpus == 1
    )
    workers = tuple(max(0, assignment.room(node, server=at in half)) for at, node in enumerate(cluster.nodes))
    return rows_per_second(cluster, model, assignment, Placement(tuple(half), workers))


def measure(quick: bool = False) -> list[Row]:
    shares, gains, tried = [], [], 0
    for seed in range(20 if quick else 500):
        cluster, model = draw(seed, 3 + seed % 6 if not quick else 3 + seed % 2)
        best, count = exhaustive(cluster, model)
        ours = compare(cluster, model)[0].rows_per_second
        shares.append(ours / best)
        gains.append(ours / round_robin(cluster, model))
        tried += count
    rows = [
        Row(
            "dike",
            f"throughput by that of the best of all plans, {len(shares)} clusters of 3–8 nodes, mean",
            f"{mean(shares):.4f}",
            f"{tried:,} plans tried",
            mean(shares),
            "≥ 0.99",
            mean(shares) >= 0.99,
        ),
        Row("dike", "the same, worst cluster", f"{min(shares):.4f}", "", min(shares), "≥ 0.95", min(shares) >= 0.95),
        Row(
            "dike",
            "throughput by that of a round-robin placement, mean",
            f"{mean(gains):.2f}",
            f"lowest {min(gains):.2f}",
            mean(gains),
        ),
    ]
    five = tuple(Node(f"n{at}", 8, 4, 32e9) for at in range(5))
    links = tuple(tuple(1 / 8e9 if one == other else 1 / 1.25e9 for other in range(5)) for one in range(5))
    count = len(assignments(Cluster(five, links, 4e12), Model(85.2e6, 12e9, 32, prepare_seconds=0.005)))
    rows.append(
        Row(
            "dike",
            "assignments of the paper's five nodes",
            str(count),
            "paper: fewer than 20",
            bar="< 20",
            ok=count < 20,
        )
    )
    size = 40 if quick else 300
    began = time.perf_counter()
    plans = compare(*draw(1, size))
    seconds = time.perf_counter() - began
    rows.append(
        Row(
            "dike",
            f"{size} nodes planned ({len(plans)} plans compared)",
            milliseconds(seconds),
            "paper: 23 minutes",
            seconds / 1380,
            "< 60 s",
            seconds < 60,
        )
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dike", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and small clusters: a functional check only")
    print(table(measure(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
