"""Dike (2019): plans against all plans, and the number of candidates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import mean

import numpy as np

from benchmarks import dike
from benchmarks.dike_plans import best_of_all
from benchmarks.papers import charts
from benchmarks.papers.section import Effort, Figure, How, Section
from benchmarks.paradigms import plans
from benchmarks.paradigms.network import missing
from hopfleet.monitor.wording import plural
from hopfleet.planner.dike.place import compare
from hopfleet.planner.dike.problem import Cluster, Model, Node
from hopfleet.planner.dike.search import PlacementSearch
from hopfleet.planner.dike.shapes import paces

PAPER = "Dike"
MODELS = {"ResNet-50": (21.3e6, 12e9), "ResNet-152": (64.0e6, 34e9), "Inception-v3": (21.8e6, 17e9)}
"""Parameters as the paper has them, and operations for each row."""


def figure_4(effort: Effort) -> Section:
    rows, drawn = [], dict[str, list[float]]({"round robin": [], "the planner": []})
    for nodes, published in ((3, ""), (4, ""), (5, "100%")):
        shares, others, tried = [], [], 0
        for cluster, model in dike.small(effort.pick(1, 50, 150), range(nodes, nodes + 1)):
            best, count = best_of_all(cluster, model)
            shares.append(compare(cluster, model)[0].rows_per_second / best)
            others.append(dike.round_robin(cluster, model) / best)
            tried += count
        drawn["round robin"].append(100 * mean(others))
        drawn["the planner"].append(100 * mean(shares))
        what = f"{nodes} nodes, {plural(len(shares), 'cluster')}: throughput by the best of all plans, mean and lowest"
        rows.append(Figure(what, published, f"{mean(shares):.2%}, {min(shares):.1%}", None, How.SIMULATED))
        what = f"{nodes} nodes: round-robin placement by the best of {tried:,} plans"
        rows.append(Figure(what, "", f"{mean(others):.1%}", None, How.SIMULATED))
    rows += [*_instances(effort), *_inputs()]
    rows += _with_hosts(effort)
    remark = (
        "The paper measured trainings on clouds; here throughput is that of the planner's model of a step. All plans: "
        "any set of servers and, on each node, any workers with any numbers of CPUs and GPUs "
        "(benchmarks/dike_plans.py). Those of 10 and 20 nodes are too many to enumerate, so figure 4A is compared with "
        "a bound that no plan exceeds, and that the best need not reach: nodes of 8 cores and 4 GPUs of 4 Tflop/s, 10 "
        "Gbit/s, as in the paper. Figure 4B changes the size of the data set, which here is disk that workers need and "
        "no part of a step. Figure 4C: in the model, the best plans have no server on a node without GPUs. "
        "SAR, which places by memory, is not at hand; round robin stands for it."
    )
    names = [f"{nodes} nodes" for nodes in range(3, 6)]
    charts.bars(effort.folder / "dike-4.png", names, drawn, "throughput, percent of the best of all plans", ".1f")
    picture = ("dike-4.png", "Throughput of the planner and of round robin, by the best of all plans")
    return Section(PAPER, "Figure 4: plans by the best of all", rows, remark, [picture])


def _instances(effort: Effort) -> Iterator[Figure]:
    """Yield figure 4A: models on the paper's nodes, by a bound that no plan exceeds."""
    for name, (parameters, flops) in MODELS.items():
        for nodes in (5, 10, 20)[: effort.pick(2, 3, 3)]:
            cluster = Cluster(tuple(Node(f"n{at}", 8, 4, 32e9) for at in range(nodes)), _links(nodes), 4e12)
            model, costs = Model(4 * parameters, flops, 32, prepare_seconds=0.005), np.array(_links(nodes))
            searches = [
                PlacementSearch(cluster, costs, model, servers, pace)
                for pace in paces(cluster, model)
                for servers in range(1, nodes + 1)
            ]
            share = compare(cluster, model)[0].rows_per_second / max(search.bound() for search in searches)
            published = "100%" if nodes < 20 else "95%" if name == "Inception-v3" else ""
            worse = "no more than this is proven" if share < 0.95 else ""
            what = f"figure 4A, {name}, {nodes} instances: throughput by a bound of all plans"
            yield Figure(what, published, f"at least {share:.1%}", None, How.SIMULATED, worse)


def _inputs() -> Iterator[Figure]:
    """Yield figure 4B: data sets that fit a node's disk once for each worker, by the best of all plans."""
    nodes = tuple(Node(f"n{at}", 4, 2, 32e9, 120e9) for at in range(3))
    for name, size in (("Cifar10", 170e6), ("ImageNet", 55e9)):
        cluster = Cluster(nodes, _links(3), 4e12)
        model = Model(85.2e6, 12e9, 32, prepare_seconds=0.005, data=size)
        share = compare(cluster, model)[0].rows_per_second / best_of_all(cluster, model)[0]
        what = f"figure 4B, {name} ({size / 1e9:g} GB): throughput by the best of all plans"
        yield Figure(what, "100%", f"{share:.1%}", None, How.SIMULATED)


def _with_hosts(effort: Effort) -> Iterator[Figure]:
    """Yield figure 4C: nodes without GPUs beside two with two GPUs each, by the best of all plans."""
    for hosts in range(1, effort.pick(2, 4, 4) + 1):
        gpus = tuple(Node(f"n{at}", 4, 2, 16e9) for at in range(2))
        nodes = gpus + tuple(Node(f"host {at}", 4, 0, 16e9) for at in range(hosts))
        cluster = Cluster(nodes, _links(len(nodes)), 4e12)
        model = Model(85.2e6, 12e9, 32, prepare_seconds=0.005)
        plan = compare(cluster, model)[0]
        share = plan.rows_per_second / best_of_all(cluster, model)[0]
        used = sum(at >= len(gpus) for at in plan.placement.servers)
        what = f"figure 4C, 2 nodes with GPUs and {hosts} without: throughput by the best of all plans"
        said = f"{share:.1%}, {plural(used, 'server')} on nodes without GPUs"
        yield Figure(what, "servers on nodes without GPUs", said, None, How.SIMULATED)


def candidates(effort: Effort) -> Section:
    cluster = Cluster(tuple(Node(f"n{at}", 4, 4, 16e9) for at in range(5)), _links(5), 4e12)
    model = Model(85.2e6, 12e9, 32, prepare_seconds=0.005)
    size = effort.pick(20, 300, 300)
    began = time.process_time()
    found = compare(*dike.draw(1, size))
    seconds = time.process_time() - began
    published = "23 minutes" if size == 300 else "23 minutes (300 nodes)"
    count = len(cluster.nodes) * len(paces(cluster, model))
    rows = [
        Figure(
            "five nodes with 4 cores and 4 GPUs each: numbers of servers × paces of preparation",
            "fewer than 20 assignments",
            str(count),
            None,
            How.MEASURED,
            "more candidates than published" if count >= 20 else "",
        ),
        Figure(f"{size} nodes planned, {len(found)} plans compared", published, f"{seconds:.1f} s", None, How.MEASURED),
    ]
    rows.append(_share_of_time(effort))
    remark = (
        "Without prunings, the paper counts 41 million combinations on such nodes. The paper has workers that are all "
        "alike; here they may differ, so a candidate is a number of servers and the time in which each worker must "
        "have prepared its rows. The paper's 19% are of the time of an exhaustive search by hand, which runs each "
        "plan; here every plan has one step, as long as that of the chosen plan."
    )
    return Section(PAPER, "Candidates", rows, remark)


def _share_of_time(effort: Effort) -> Figure:
    """Return the time of planning by that of a single step of every plan, if each took as long as the chosen plan's."""
    planning = running = 0.0
    some = list(dike.small(effort.pick(1, 10, 20), range(5, 6)))
    for cluster, model in some:
        began = time.process_time()
        chosen = compare(cluster, model)[0]
        planning += time.process_time() - began
        step = model.step_rows(sum(worker.gpus for worker in chosen.placement.all_workers)) / chosen.rows_per_second
        running += best_of_all(cluster, model)[1] * step
    what = f"5 nodes, {plural(len(some), 'cluster')}: time of planning by that of one step of every plan"
    return Figure(what, "at most 19%", f"{planning / running:.6%}", None, How.MEASURED)


def _links(nodes: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(1 / 8e9 if one == other else 1 / 1.25e9 for other in range(nodes)) for one in range(nodes))


def real_plans(effort: Effort) -> Section:
    what = "4 hosts with unequal links: throughput of the chosen plan by the best of all"
    if effort.level < 2 or missing():
        rows = [Figure(what, "95% to 100%", "100%, of 225 plans", None, How.RECORDED)]
    else:
        found = plans.measure()
        rows = [Figure(row.what, "95% to 100%" if row.bar else "", row.ours, row.ratio, How.MEASURED) for row in found]
    remark = (
        "Hosts are network namespaces with links of 80, 40, 20 and 10 Mbit/s; processes exchange weights, and sleep "
        "instead of computing. docs/scheduling.md has the run; `make papers FULL=1` measures again, as root."
    )
    return Section(PAPER, "Plans that were run", rows, remark)


SECTIONS = (figure_4, candidates, real_plans)
