"""Dike (2019): plans against all plans, and the number of candidates."""

from __future__ import annotations

import time
from statistics import mean

from benchmarks import dike
from benchmarks.papers import charts
from benchmarks.papers.section import Effort, Figure, How, Section
from benchmarks.paradigms import plans
from benchmarks.paradigms.network import missing
from hopfleet.monitor.wording import plural
from hopfleet.planner.dike.generate import assignments
from hopfleet.planner.dike.place import compare
from hopfleet.planner.dike.problem import Cluster, Model, Node

PAPER = "Dike"


def figure_4(effort: Effort) -> Section:
    rows, drawn = [], dict[str, list[float]]({"round robin": [], "the planner": []})
    for nodes, published in ((3, ""), (4, ""), (5, "100%"), (6, ""), (7, "")):
        shares, others = [], []
        for seed in range(effort.pick(1, 50, 150)):
            cluster, model = dike.draw(seed, nodes)
            best, _ = dike.exhaustive(cluster, model)
            found = compare(cluster, model)[0].rows_per_second
            shares.append(found / best)
            others.append(dike.round_robin(cluster, model) / best)
        drawn["round robin"].append(100 * mean(others))
        drawn["the planner"].append(100 * mean(shares))
        what = f"{nodes} nodes, {plural(len(shares), 'cluster')}: throughput by the best of all plans, mean and lowest"
        rows.append(Figure(what, published, f"{mean(shares):.2%}, {min(shares):.1%}", None, How.SIMULATED))
        rows.append(
            Figure(f"{nodes} nodes: round-robin placement by the best", "", f"{mean(others):.1%}", None, How.SIMULATED)
        )
    rows.append(Figure("20 instances, Inception-v3", "95%", "", None, How.NOT))
    remark = (
        "The paper measured trainings on clouds; here throughput is that of the planner's model of a step. All plans "
        "of 10 and 20 nodes are too many to enumerate."
    )
    names = [f"{nodes} nodes" for nodes in range(3, 8)]
    charts.bars(effort.folder / "dike-4.png", names, drawn, "throughput, percent of the best of all plans", ".1f")
    picture = ("dike-4.png", "Throughput of the planner and of round robin, by the best of all plans")
    return Section(PAPER, "Figure 4: plans by the best of all", rows, remark, [picture])


def candidates(effort: Effort) -> Section:
    nodes = tuple(Node(f"n{at}", 4, 4, 16e9) for at in range(5))
    links = tuple(tuple(1 / 8e9 if one == other else 1 / 1.25e9 for other in range(5)) for one in range(5))
    count = len(assignments(Cluster(nodes, links, 4e12), Model(85.2e6, 12e9, 32, prepare_seconds=0.005)))
    size = effort.pick(20, 300, 300)
    began = time.process_time()
    found = compare(*dike.draw(1, size))
    seconds = time.process_time() - began
    published = "23 minutes" if size == 300 else "23 minutes (300 nodes)"
    rows = [
        Figure(
            "assignments of five nodes with 4 cores and 4 GPUs each", "fewer than 20", str(count), None, How.MEASURED
        ),
        Figure(f"{size} nodes planned, {len(found)} plans compared", published, f"{seconds:.1f} s", None, How.MEASURED),
    ]
    return Section(
        PAPER, "Candidates", rows, "Without prunings, the paper counts 41 million combinations on such nodes."
    )


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
