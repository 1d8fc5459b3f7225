"""Cerebro (VLDB 2020): bytes, schedules, paradigms, scaling and faults. ``cerebro_runs`` has the rest."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import hopfleet as hop
from benchmarks.papers import charts
from benchmarks.papers.section import Effort, Figure, How, Section
from hopfleet.monitor.wording import plural
from hopfleet.planner import costs, exact
from hopfleet.planner.portfolio import plan
from hopfleet.planner.rearrangement import rearrange
from hopfleet.planner.rules import random_unit, schedule
from hopfleet.planner.shop import Shop
from hopfleet.planner.timetable import Timetable
from hopfleet.simulation.backend import Failure
from hopfleet.simulation.layouts import simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode
from hopfleet.simulation.simulator import Workload

PAPER = "Cerebro"
CORES = 2
"""Cores of the machine of the recorded run."""

RECORD = Path(__file__).parents[2] / "docs" / "cluster.md"
"""The page that holds the last run of ``make cluster``."""

PRINTED = {
    "hopping": 4e12,
    "task-parallel, full copies": 10e12,
    "task-parallel, remote reads": 400e12,
    "model averaging": 8e12,
    "parameter server": 80e15,
    "all-reduce": 72e15,
}
"""Bytes of the example, as table 2 prints them."""

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


def value(cells: dict[str, str], column: str) -> float:
    return float(cells[column].replace(",", ""))


def _large(count: float) -> str:
    return f"{count / 1e15:,.4g} PB" if count >= 1e15 else f"{count / 1e12:,.5g} TB"


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
            Figure(
                f"{name}, the paper's example", _large(PRINTED[name]), _large(count), count / PRINTED[name], How.FORMULA
            )
            for name, count in found.items()
        ),
    ]
    for name, cells in recorded().items():
        counted, formula = value(cells, "training, MB"), value(cells, "by formula, MB")
        if "copies" in name:
            counted += value(cells, "loading, MB")
        rows.append(
            Figure(
                f"{name}: {cells['formula']}",
                f"{formula:,.1f} MB (formula)",
                f"{counted:,.1f} MB",
                counted / formula,
                How.RECORDED,
                f"{counted / formula - 1:.0%} more bytes than the formula says" if "Hopfleet" in name else "",
            )
        )
    remark = (
        "The lower rows compare formulas with the bytes that interfaces counted on 4 hosts, headers included "
        "(docs/cluster.md; `make cluster` counts again). Our servers are sharded over the hosts, and averaging uses a "
        "ring, so both move less."
    )
    return Section(PAPER, "Table 2: bytes that paradigms move", rows, remark)


def figure_5(effort: Effort) -> Section:
    times = [[cost] * 3 for cost in (2.0, 2.0, 1.0, 1.0, 1.0)]
    run = hop.simulate(times)
    run.gantt(effort.folder / "cerebro-5.png")
    # Whole trials on free workers, the longest first: the best that tasks can do here.
    free = [0.0] * 3
    for row in times:
        free[free.index(min(free))] += sum(row)
    shop = Shop.of_times(times)
    poor = max(schedule(shop, random_unit, random.Random(seed)).makespan for seed in range(200))
    rows = [
        Figure("makespan of hopping", "7", f"{run.makespan:g}", run.makespan / 7, How.SIMULATED),
        Figure("makespan of whole tasks, the best order", "9", f"{max(free):g}", max(free) / 9, How.SIMULATED),
        Figure("makespan of a poor order of hops: the worst of 200 random ones", "9", f"{poor:g}", None, How.SIMULATED),
        Figure("makespan of hopping by its lower bound", "", f"{run.ratio:.3f}", None, How.SIMULATED),
    ]
    remark = (
        "The paper does not print the times of its workload. Here: five networks on 3 workers with units of 2, 2, 1, 1 "
        "and 1, which have the makespans of the paper."
    )
    picture = ("cerebro-5.png", "Five networks hop between three workers")
    return Section(PAPER, "Figure 5: schedules", rows, remark, [picture])


def figure_6(effort: Effort) -> Section:
    rows: list[Figure] = []
    for configs in (16, 256):
        for workers in (8, 16):
            for alike in (True, False):
                seeds = range(effort.pick(1, 20, 100) if configs == 16 else effort.pick(0, 3, 10))
                rows += _schedulers(configs, workers, alike, seeds)
    rows += _milp(effort.pick(1, 10, 30))
    remark = (
        "Makespans divided by those of random scheduling, which the paper found best, and the seconds of a processor "
        "for one schedule. The paper's plots have no numbers for the other schedulers; its MILP had 5 minutes. The "
        "approximate algorithm is vector rearrangement (planner.rearrangement)."
    )
    return Section(PAPER, "Figure 6: schedulers", rows, remark)


def _schedulers(configs: int, workers: int, alike: bool, seeds: Sequence[int]) -> Iterator[Figure]:
    """Yield makespans of the portfolio and of the approximate algorithm, by those of random scheduling, and times."""
    found: dict[str, list[float]] = {"ours": [], "random": [], "approximate": []}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for seed in seeds:
        rng = random.Random(seed)
        times = costs.homogeneous(configs, workers) if alike else costs.cnns(configs, workers, rng)
        shop = Shop.of_times(times)
        ways: dict[str, Callable[[], Timetable]] = {
            "ours": lambda shop=shop, rng=rng: plan(shop, rng),  # type: ignore[misc]
            "random": lambda shop=shop, rng=rng: schedule(shop, random_unit, rng),  # type: ignore[misc]
        }
        if seed < 3 and configs == 16:
            ways["approximate"] = lambda shop=shop: rearrange(shop)  # type: ignore[misc]
        for name, make in ways.items():
            began = time.process_time()
            found[name].append(make().ratio)
            seconds[name].append(time.process_time() - began)
    if not seeds:
        return
    kind = "homogeneous" if alike else "heterogeneous"
    what = f"{kind}, {configs} configurations on {workers} workers, {plural(len(seeds), 'seed')}"
    base = mean(found["random"])
    ratio = mean(found["ours"]) / base
    yield Figure(what, "1.000 (random)", f"{ratio:.3f}", ratio, How.SIMULATED)
    said = f"{mean(seconds['ours']):.3f} s (random {mean(seconds['random']):.3f} s)"
    slower = mean(seconds["ours"]) / mean(seconds["random"])
    worse = f"{slower:.0f} times as long as random scheduling, the paper's choice" if slower >= 2 else ""
    yield Figure(f"{what}: time of a schedule", "random is fastest", said, None, How.MEASURED, worse)
    if found["approximate"]:
        by_random = mean(found["approximate"]) / mean(found["random"][: len(found["approximate"])])
        said = f"{by_random:.3f}, {mean(seconds['approximate']):.2f} s"
        published = "not optimal" if alike else "poor, and slower than random"
        yield Figure("the same, 3 seeds: the approximate algorithm", published, said, None, How.SIMULATED)


def _milp(seconds: float) -> Iterator[Figure]:
    """Yield what a solver finds for 16 heterogeneous configurations, by random scheduling."""
    for workers in (8, 16):
        rng = random.Random(0)
        shop = Shop.of_times(costs.cnns(16, workers, rng))
        what = f"16 heterogeneous configurations on {workers} workers: a solver (CP-SAT) with {seconds:g} s"
        if not exact.installed():
            yield Figure(what, "1 or more (MILP)", "", None, How.NOT)
            continue
        found, proven = exact.solve(shop, seconds=seconds)
        ratio = found.ratio / schedule(shop, random_unit, rng).ratio
        said = f"{ratio:.3f}, {'proven optimal' if proven else 'not proven optimal'}"
        yield Figure(what, "1 or more (MILP)", said, None, How.MEASURED)


class Published(NamedTuple):
    """What figure 7 prints of a system: hours of an epoch, and percent of GPUs (ImageNet) or CPUs (Criteo) in use."""

    system: str
    imagenet: float
    criteo: float
    gpus: float
    cpus: float


FIGURE_7 = {
    "hopping (Hopfleet on Ray)": Published("Cerebro", 1.77, 3.40, 79.8, 51.9),
    "DDP, all-reduce (gloo)": Published("Horovod", 5.42, 14.06, 92.1, 16.0),
    "model averaging": Published("model averaging", 1.97, 3.84, 72.1, 52.2),
    "task-parallel, full copies": Published("Celery", 1.72, 3.95, 82.4, 53.6),
    "parameter server, asynchronous": Published("asynchronous parameter server", 19.0, 28.8, 8.6, 6.9),
}


def figure_7(effort: Effort) -> Section:
    found = recorded()
    own, *others = FIGURE_7
    seconds = {name: value(cells, "training, s") for name, cells in found.items()}
    rows = []
    for name in others:
        ours, theirs = seconds[name] / seconds[own], FIGURE_7[name].imagenet / FIGURE_7[own].imagenet
        said = f"{theirs:.2f} (ImageNet), {FIGURE_7[name].criteo / FIGURE_7[own].criteo:.2f} (Criteo)"
        worse = f"hopping takes {1 / ours:.2f} times as long" if ours < 1 else ""
        what = f"time of {FIGURE_7[name].system} by hopping's"
        rows.append(Figure(what, said, f"{ours:.2f}", ours / theirs, How.RECORDED, worse))
    ours = seconds["parameter server, synchronous"] / seconds[own]
    what = "time of synchronous parameter server by hopping's"
    rows.append(Figure(what, "above 10.73 (ImageNet), 14 (Criteo)", f"{ours:.2f}", None, How.RECORDED))
    for name, system in FIGURE_7.items():
        used = value(found[name], "CPU, s") / (CORES * seconds[name])
        said = f"{system.gpus}% of GPUs, {system.cpus}% of CPUs"
        rows.append(Figure(f"utilization, {system.system}", said, f"{used:.0%} of CPUs", None, How.RECORDED))
    disk = {name: value(cells, "disk per host, MB") for name, cells in found.items()}
    ours = disk["task-parallel, full copies"] / disk[own]
    what = "storage of full copies by hopping's (paper: 8 workers, 2,000 / 250 GB; ours: 4)"
    rows.append(Figure(what, "8.00", f"{ours:.2f}", None, How.RECORDED))
    best = {FIGURE_7[name].system: value(found[name], "best accuracy") for name in FIGURE_7}
    said = ", ".join(f"{system} {accuracy:.3f}" for system, accuracy in best.items())
    behind = [system for system, accuracy in best.items() if accuracy > best["Cerebro"]]
    worse = f"hopping ends below {' and '.join(behind)}" if behind else ""
    rows.append(Figure("best accuracy", "Cerebro and Celery lead, Horovod follows", said, None, How.RECORDED, worse))
    rows.append(Figure("hours of an epoch on ImageNet and Criteo", "1.77 and 3.40", "", None, How.NOT))
    picture = effort.folder / "cerebro-7.png"
    pairs = {"the paper": [FIGURE_7[name].imagenet / FIGURE_7[own].imagenet for name in others]}
    pairs["here"] = [seconds[name] / seconds[own] for name in others]
    charts.bars(picture, [FIGURE_7[name].system for name in others], pairs, "time by that of hopping", ".2f")
    remark = (
        "Ours: a small network on 4 hosts with links of 200 Mbit/s that share 2 cores (docs/cluster.md). ImageNet, "
        "Criteo and 8 GPUs are not at hand, so magnitudes can be compared, and no more. CPU time includes what "
        "links and processes take, so utilization is not that of training alone."
    )
    shown = [(picture.name, "Times of other paradigms by that of hopping")]
    return Section(PAPER, "Figure 7: paradigms", rows, remark, shown)


def figure_8(effort: Effort) -> Section:
    rows = []
    base = Scenario((SimulatedNode("one"),), (100.0,) * 8, rows=8_000, partitions=8, epochs=5, fuse=False)
    alone = simulate_scenario(base).simulation.makespan
    for workers in (2, 4, 8):
        nodes = tuple(SimulatedNode(f"n{at}") for at in range(workers))
        # An epoch of ResNet-50 takes its worker some minutes, and its 293 MB travel in a quarter of a second.
        found = simulate_scenario(dataclasses.replace(base, nodes=nodes, model_bytes=293e6, bandwidth=1.25e9))
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
    rows += _all_reduce_speedups()
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
    remark = (
        'The paper\'s plots say "linear", and "substantially sub-linear" for Horovod, and give no numbers. Horovod\'s '
        "speed-ups follow from figure 7: on 8 workers it takes 3.06 times as long as hopping, so a ring moves "
        "gradients for 2.06 times as long as workers compute, in proportion to (p − 1) / p on p workers. Real faults: "
        "the tests and `make chaos`."
    )
    return Section(
        PAPER, "Figure 8: scaling and faults", rows, remark, [("cerebro-8.png", "Two workers are lost, and come back")]
    )


def _all_reduce_speedups() -> Iterator[Figure]:
    """Yield speed-ups of Horovod, whose transfers take as long on 8 workers as figure 7 says."""
    slower = FIGURE_7["DDP, all-reduce (gloo)"].imagenet / FIGURE_7["hopping (Hopfleet on Ray)"].imagenet
    for workers in (2, 4, 8):
        speedup = workers / (1 + (slower - 1) * (workers - 1) / workers / (7 / 8))
        yield Figure(f"speed-up of Horovod on {workers} workers", "below linear", f"{speedup:.2f}", None, How.FORMULA)


SECTIONS = (table_2, figure_5, figure_6, figure_7, figure_8)
