"""The thesis on the Cerebro platform (2023): nodes with several GPUs."""

from __future__ import annotations

import random
from statistics import mean

from benchmarks.nodes import NODE_BAR, SCENARIOS, draw
from benchmarks.papers.section import Effort, Figure, How, Section
from hopfleet.planner.nodes import per_gpu, sharded
from hopfleet.planner.nodes_exact import solve_exact
from hopfleet.planner.nodes_fast import solve_fast, solve_randomly

PUBLISHED = {"4.1": (8603, 15926, 7967), "4.2": (5252, 7780, 5255), "4.3": (8956, 10172, 8995)}
"""Seconds of random scheduling of nodes, of one model per GPU, and of the MILP after 300 s."""


def figures_4(effort: Effort) -> Section:
    rows, pictures = [], []
    for scenario in SCENARIOS:
        randomly, single, milp = PUBLISHED[scenario.figure]
        ours, theirs = [], []
        for seed in range(effort.pick(1, 10, 20)):
            rng = random.Random(seed)
            seconds = scenario.times(rng)
            shop = sharded(seconds, scenario.gpus)
            found = solve_fast(shop, rng)
            if found.makespan > NODE_BAR * found.bound:
                found = solve_exact(shop, seconds=10, hint=found)
            alone = solve_randomly(per_gpu(seconds, scenario.gpus), rng).makespan
            ours.append(found.makespan / alone)
            theirs.append(solve_randomly(shop, rng).makespan / alone)
        what = f"figure {scenario.figure}, {scenario}"
        best = mean(ours)
        rows.append(
            Figure(
                f"{what}: plan by one model per GPU",
                f"{milp / single:.3f} (MILP)",
                f"{best:.3f}",
                best / (milp / single),
                How.SIMULATED,
            )
        )
        drawn = mean(theirs)
        rows.append(
            Figure(
                f"{what}: random by one model per GPU",
                f"{randomly / single:.3f}",
                f"{drawn:.3f}",
                drawn / (randomly / single),
                How.SIMULATED,
            )
        )
        name = f"thesis-{scenario.figure}.png"
        draw(scenario, effort.folder / name)
        pictures.append((name, f"Plans of {scenario.tasks} models, as in figure {scenario.figure}"))
    remark = (
        "Times of models are drawn so that the longest and the sum fit the thesis' makespans; it does not give them."
    )
    return Section("The Cerebro platform", "Figures 4.1 to 4.3: nodes with several GPUs", rows, remark, pictures)


SECTIONS = (figures_4,)
