"""Cerebro (VLDB 2020): bytes, schedules, paradigms, faults, scaling, remote reads, ASHA."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from statistics import mean

import hopfleet as hop
from benchmarks import searching
from benchmarks.papers import charts
from benchmarks.papers.section import Effort, Figure, How, Section
from hopfleet.backends.simulated import Failure
from hopfleet.forecast.scenario import Scenario, SimulatedNode
from hopfleet.forecast.simulator import Workload
from hopfleet.monitor.wording import plural
from hopfleet.planner import costs
from hopfleet.planner.portfolio import plan
from hopfleet.planner.rules import random_unit, schedule
from hopfleet.planner.shop import Shop

PAPER = "Cerebro"
RECORD = Path(__file__).parents[2] / "docs" / "cluster.md"
"""The page that holds the last run of ``make cluster``."""

Example = dict[str, float]
EXAMPLE: Example = {"k": 20, "S": 20, "p": 10, "m": 1e9, "D": 1e12, "batches": 100_000}
"""The example of the paper's table 2."""


def formulas(k: float, S: float, p: float, m: float, D: float, batches: float) -> dict[str, float]:  # noqa: N803
    """Return the bytes of a run by paradigm; ``batches`` are those of an epoch."""
    steps = math.ceil(batches / p)
    return {
        "hopping": k * m * p * S + m * S,
        "task-parallel, full copies": p * D + m * S,
        "task-parallel, remote reads": k * S * D + m * S,
        "model averaging": 2 * k * m * p * S,
        "parameter server": 2 * k * m * p * S * steps,
        "all-reduce": 2 * k * m * (p - 1) * S * steps,
    }


def recorded() -> dict[str, dict[str, str]]:
    """Return the table of paradigms on its page: the cells of each row by the names of their columns."""
    found: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in RECORD.read_text().splitlines():
        cells = [cell.strip(" *") for cell in line.strip().strip("|").split("|")]
        if line.startswith("| paradigm") and "formula" in cells:
            header = cells
        elif header and not line.startswith("|"):
            break
        elif header and not line.startswith("|--"):
            found[cells[0]] = dict(zip(header, cells, strict=True))
    return found


def _value(cells: dict[str, str], column: str) -> float:
    return float(cells[column].replace(",", ""))


def table_2(effort: Effort) -> Section:
    found = formulas(**EXAMPLE)
    averaging = found["model averaging"]
    rows = [
        Figure(
            "parameter server by model averaging",
            "10,000",
            f"{found['parameter server'] / averaging:,.0f}",
            None,
            How.FORMULA,
        ),
        Figure("all-reduce by model averaging", "9,000", f"{found['all-reduce'] / averaging:,.0f}", None, How.FORMULA),
        *(
            Figure(f"{name}, the paper's example", "", f"{count / 1e12:,.2f} TB", None, How.FORMULA)
            for name, count in found.items()
        ),
    ]
    for name, cells in recorded().items():
        counted, formula = _value(cells, "training, MB"), _value(cells, "by formula, MB")
        if "copies" in name:
            counted += _value(cells, "loading, MB")
        rows.append(
            Figure(
                f"{name}: {cells['formula']}",
                f"{formula:,.1f} MB (formula)",
                f"{counted:,.1f} MB",
                counted / formula,
                How.RECORDED,
            )
        )
    remark = (
        "The lower rows compare formulas with the bytes that interfaces counted on 4 hosts, headers included "
        "(docs/cluster.md; `make cluster` counts again). Our servers are sharded over the hosts, and averaging uses a "
        "ring, so both move less."
    )
    return Section(PAPER, "Table 2: bytes that paradigms move", rows, remark)


def figure_5(effort: Effort) -> Section:
    times = [[cost] * 3 for cost in (4.0, 3.0, 3.0, 2.0)]
    run = hop.simulate(times)
    run.gantt(effort.folder / "cerebro-5.png")
    # Whole trials on free workers, the longest first: the best that tasks can do here.
    free = [0.0] * 3
    for row in times:
        free[free.index(min(free))] += sum(row)
    rows = [
        Figure(
            "makespan of hopping by that of whole tasks",
            "below 1",
            f"{run.makespan / max(free):.2f}",
            None,
            How.SIMULATED,
        ),
        Figure("makespan of hopping by its lower bound", "", f"{run.ratio:.3f}", None, How.SIMULATED),
    ]
    remark = (
        "The paper shows a picture without numbers. Here: four networks with epochs of 12, 9, 9 and 6 s on 3 workers; "
        f"whole tasks take {max(free):g} s."
    )
    picture = ("cerebro-5.png", "Four networks hop between three workers")
    return Section(PAPER, "Figure 5: schedules", rows, remark, [picture])


def figure_6(effort: Effort) -> Section:
    rows = []
    for configs in (16, 256):
        for workers in (8, 16):
            for alike in (True, False):
                ours, theirs = [], []
                for seed in range(effort.pick(1, 20, 100) if configs == 16 else effort.pick(0, 3, 10)):
                    rng = random.Random(seed)
                    times = costs.homogeneous(configs, workers) if alike else costs.cnns(configs, workers, rng)
                    shop = Shop.of_times(times)
                    ours.append(plan(shop, rng).ratio)
                    theirs.append(schedule(shop, random_unit, rng).ratio)
                if ours:
                    kind = "homogeneous" if alike else "heterogeneous"
                    ratio = mean(ours) / mean(theirs)
                    what = f"{kind}, {configs} configurations on {workers} workers, {plural(len(ours), 'seed')}"
                    rows.append(Figure(what, "1.000 (random)", f"{ratio:.3f}", ratio, How.SIMULATED))
    remark = (
        "Makespans divided by those of random scheduling, which the paper found best. Its plots have no numbers for "
        "the other schedulers."
    )
    return Section(PAPER, "Figure 6: schedulers", rows, remark)


FIGURE_7 = {
    "DDP, all-reduce (gloo)": ("Horovod", 5.42),
    "model averaging": ("model averaging", 1.97),
    "task-parallel, full copies": ("Celery", 1.72),
    "parameter server, asynchronous": ("asynchronous parameter server", 19.0),
}
"""Hours of an epoch on ImageNet, where Cerebro takes 1.77."""


def figure_7(effort: Effort) -> Section:
    found = recorded()
    own = _value(found["hopping (Hopfleet on Ray)"], "training, s")
    disk = _value(found["hopping (Hopfleet on Ray)"], "disk per host, MB")
    rows = []
    for name, (theirs, hours) in FIGURE_7.items():
        ours = _value(found[name], "training, s") / own
        rows.append(
            Figure(
                f"time of {theirs} by hopping's",
                f"{hours / 1.77:.2f}",
                f"{ours:.2f}",
                ours / (hours / 1.77),
                How.RECORDED,
            )
        )
    ours = _value(found["task-parallel, full copies"], "disk per host, MB") / disk
    rows.append(
        Figure(
            "storage of full copies by hopping's (paper: 8 workers; ours: 4)", "8.00", f"{ours:.2f}", None, How.RECORDED
        )
    )
    picture = effort.folder / "cerebro-7.png"
    pairs = {"the paper": [hours / 1.77 for _, hours in FIGURE_7.values()]}
    pairs["here"] = [_value(found[name], "training, s") / own for name in FIGURE_7]
    charts.bars(picture, [theirs for theirs, _ in FIGURE_7.values()], pairs, "time by that of hopping", ".2f")
    rows.append(Figure("the same on Criteo", "4.1 and 8.5 for Horovod and servers", "", None, How.NOT))
    remark = (
        "Ours: a small network on 4 hosts with links of 200 Mbit/s that share 2 cores (docs/cluster.md). ImageNet, "
        "Criteo and 8 GPUs are not at hand, so magnitudes can be compared, and no more."
    )
    shown = [(picture.name, "Times of other paradigms by that of hopping")]
    return Section(PAPER, "Figure 7: paradigms", rows, remark, shown)


def figure_8(effort: Effort) -> Section:
    rows = []
    base = Scenario((SimulatedNode("one"),), (100.0,) * 8, rows=8_000, partitions=8, epochs=5, fuse=False)
    alone = base.simulate().simulation.makespan
    for workers in (2, 4, 8):
        nodes = tuple(SimulatedNode(f"n{at}") for at in range(workers))
        # An epoch of ResNet-50 takes its worker some minutes, and its 293 MB travel in a quarter of a second.
        found = dataclasses.replace(base, nodes=nodes, model_bytes=293e6, bandwidth=1.25e9).simulate()
        speedup = alone / found.simulation.makespan
        rows.append(
            Figure(
                f"speed-up on {workers} workers",
                f"{workers} (linear)",
                f"{speedup:.2f}",
                speedup / workers,
                How.SIMULATED,
            )
        )
    work = Workload.made("homogeneous", trials=8, partitions=8, replicas=3, epochs=5, sigma=0.0, seed=0)
    calm = hop.simulate(work)
    failures = [Failure(8.5, "w1", 20.5), Failure(12.5, "w2", 26.5)]
    hurt = hop.simulate(work, failures=failures)
    hurt.gantt(effort.folder / "cerebro-8.png")
    idle = sum(failure.back - failure.time for failure in failures if failure.back) / 8
    ratio = hurt.makespan / (calm.makespan + idle)
    rows.append(
        Figure(
            "two of 8 workers lost and back, 3 replicas: time by the undisturbed time and the lost share",
            "goes on",
            f"{ratio:.2f}",
            None,
            How.SIMULATED,
        )
    )
    remark = 'The paper\'s plots say "linear" and give no numbers. Real faults: the tests and `make chaos`.'
    return Section(
        PAPER, "Figure 8: scaling and faults", rows, remark, [("cerebro-8.png", "Two workers are lost, and come back")]
    )


def figure_9(effort: Effort) -> Section:
    rows = []
    for batch in (32, 64, 128, 256, 512):
        found = formulas(k=1, S=8, p=8, m=293e6, D=250e9, batches=1.2e6 / batch)
        rows.append(
            Figure(
                f"batches of {batch}: bytes of all-reduce by hopping's",
                "",
                f"{found['all-reduce'] / found['hopping']:,.0f}",
                None,
                How.FORMULA,
            )
        )
    rows.append(Figure("batches of 32: time of Horovod by hopping's", "2", "", None, How.NOT))
    rows.append(Figure("lowest validation error by batch size", "best at 32", "", None, How.NOT))
    remark = "The cause by formula, for ResNet-50 on ImageNet and 8 workers. Times and errors need ImageNet on 8 GPUs."
    return Section(PAPER, "Figure 9: batch size and data parallelism", rows, remark)


def figures_10_and_11(effort: Effort) -> Section:
    found = formulas(k=5, S=8, p=8, m=293e6, D=250e9, batches=37_500)
    # What hopping reads once counts for it, too.
    ratio = found["task-parallel, remote reads"] / (found["hopping"] + 250e9)
    cells = recorded()
    counted = _value(cells["task-parallel, remote reads"], "training, MB") / _value(
        cells["hopping (Hopfleet on Ray)"], "training, MB"
    )
    rows = [
        Figure(
            "remote storage: bytes read by tasks by hopping's, all data once included",
            "over 10",
            f"{ratio:.1f}",
            None,
            How.FORMULA,
        ),
        Figure("the same, counted on 4 hosts, without the first read", "over 10", f"{counted:.1f}", None, How.RECORDED),
        Figure(
            "distributed storage, replication 1 to 4: bytes of tasks by hopping's",
            "100",
            f"{found['task-parallel, remote reads'] / found['hopping']:.0f}",
            None,
            How.FORMULA,
        ),
    ]
    return Section(
        PAPER,
        "Figures 10 and 11: remote reads",
        rows,
        "The formula has ResNet-50, 8 configurations, 5 epochs and 8 workers, as in the paper.",
    )


def section_6_3(effort: Effort) -> Section:
    (row,) = searching.exploring(range(effort.pick(1, 4, 8)))
    assert row.ratio is not None
    what, found = f"{row.what}: hopping by tasks", f"{row.ratio:.2f} ({row.ours} / {row.other.split()[-1]})"
    rows = [
        Figure(
            what,
            "1.24 (83 / 67)",
            found,
            row.ratio / (83 / 67),
            How.SIMULATED,
        )
    ]
    return Section(
        PAPER,
        "Section 6.3: ASHA",
        rows,
        "The paper ran for 24 hours on ImageNet; here costs are those of 35 CNNs, and time is virtual.",
    )


SECTIONS = (table_2, figure_5, figure_6, figure_7, figure_8, figure_9, figures_10_and_11, section_6_3)
