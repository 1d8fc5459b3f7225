"""FLEET (MLSys 2020): speed-ups, lengths of flotillas, overheads."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import correlation, mean, median, pstdev

from benchmarks import fleet, fleet_live
from benchmarks.papers import charts
from benchmarks.papers.section import Effort, Figure, How, Section
from hopfleet.planner.fleet.ensemble import DryRun, Ensemble, as_freed, as_published, homogeneous, hopping, one_per_gpu

PAPER = "FLEET"
FLOTILLAS = {20: 44, 120: 20, 160: 22}
"""Flotillas of FLEET-G by the number of GPUs: section 6.2, and the checkpoints of table 4."""

RECORD = Path(__file__).parents[2] / "docs" / "scheduling.md"
"""The page that holds real runs of the policy fleet."""

OVERHEADS = {
    20: (20.1, 1496.0),
    40: (15.8, 1156.0),
    60: (14.0, 986.0),
    80: (12.0, 816.0),
    100: (10.1, 782.0),
    120: (9.9, 680.0),
    140: (9.3, 680.0),
    160: (10.2, 748.0),
}
"""Seconds of scheduling and of checkpoints, by the number of GPUs: table 4."""

FLOTILLA_LENGTHS = (
    *((2067.9, 54.7), (335.6, 48.4), (2291.9, 26.0)),
    *((415.5, 51.9), (1072.2, 364.0), (2322.3, 216.0)),
)
"""Mean and deviation of the networks' lengths in the first flotillas on 80 GPUs: table 3."""

BAR = 0.1
"""How far a total time may be from the paper's to count as the same."""


def ensemble(seed: int, gpus: int) -> Ensemble:
    return Ensemble(fleet.draw(seed), fleet.ROWS, gpus, fleet.PER_NODE, fleet.MOVE_SECONDS)


def figure_5(effort: Effort) -> Section:
    speedups: dict[str, list[float]] = {"FLEET-G": [], "FLEET-L": [], "homogeneous": [], "hopping": []}
    found_totals: dict[int, float] = {}
    rows = []
    for gpus, published in fleet.PUBLISHED.items():
        totals: dict[str, list[float]] = {"base": [], **{name: [] for name in speedups}}
        for seed in range(effort.pick(1, 5, 10)):
            each = ensemble(seed, gpus)
            totals["base"].append(mean(one_per_gpu(each, random.Random(at)).seconds for at in range(5)))
            totals["FLEET-G"].append(as_published(each, delta=fleet.DELTA).seconds)
            totals["FLEET-L"].append(as_freed(each, delta=fleet.DELTA).seconds)
            totals["homogeneous"].append(homogeneous(each, random.Random(seed)).seconds)
            totals["hopping"].append(hopping(each).seconds)
        for name, line in speedups.items():
            line.append(mean(totals["base"]) / mean(totals[name]))
        total = found_totals[gpus] = mean(totals["FLEET-G"])
        rows.append(
            Figure(
                f"table 4, {gpus} GPUs: seconds of FLEET-G",
                f"{published:,.0f}",
                f"{total:,.0f}",
                total / published,
                How.SIMULATED,
                f"{total / published - 1:.0%} longer" if total > (1 + BAR) * published else "",
            )
        )
    far = [gpus for gpus, row in zip(fleet.PUBLISHED, rows, strict=True) if abs((row.ratio or 1) - 1) > BAR]
    low, high = min(speedups["FLEET-G"]), max(speedups["FLEET-G"])
    rows.append(
        Figure(
            "the lowest speed-up of FLEET-G over one network per GPU",
            "1.12",
            f"{low:.2f}",
            low / 1.12,
            How.SIMULATED,
            f"{1 - low / 1.12:.0%} less than published" if low < 0.95 * 1.12 else "",
        )
    )
    worse = f"{1 - high / 1.92:.0%} less than published" if high < 0.95 * 1.92 else ""
    rows.append(Figure("the highest speed-up of FLEET-G", "1.92", f"{high:.2f}", high / 1.92, How.SIMULATED, worse))
    for gpus, found in zip(fleet.PUBLISHED, speedups["FLEET-G"], strict=True):
        # With a GPU for each network, the baseline takes as long as the longest one.
        derived = fleet.LONGEST / fleet.PUBLISHED[gpus] if gpus >= fleet.NETWORKS else None
        said = "1.13 to 1.20 on three of 20, 40, 60 and 80" if derived is None else f"{derived:.2f} (by table 4)"
        ratio = None if derived is None else found / derived
        rows.append(Figure(f"speed-up of FLEET-G on {gpus} GPUs", said, f"{found:.2f}", ratio, How.SIMULATED))
    for name in ("FLEET-L", "homogeneous", "hopping"):
        line = speedups[name]
        said = {"FLEET-L": "below FLEET-G", "homogeneous": "below 1, then 1"}.get(name, "")
        worse = "slower than one network per GPU somewhere" if name == "FLEET-L" and min(line) < 1 else ""
        rows.append(
            Figure(f"speed-up of {name}", said, f"{min(line):.2f} to {max(line):.2f}", None, How.SIMULATED, worse)
        )
    gain = mean(one / other for one, other in zip(speedups["hopping"], speedups["FLEET-G"], strict=True))
    rows.append(Figure("hopping by FLEET-G, mean", "", f"{gain:.2f}", None, How.SIMULATED))
    floor = mean(fleet.without_loss(seed, 20) for seed in range(effort.pick(1, 5, 10)))
    what = "table 4, 20 GPUs: the same rounds if GPUs added up"
    rows.append(Figure(what, "55,200", f"{floor:,.0f}", floor / fleet.PUBLISHED[20], How.SIMULATED))
    labels = {"FLEET-G": "FLEET-G, simulated", "FLEET-L": "FLEET-L, simulated", "hopping": "hopping (ours)"}
    points = {gpus: fleet.LONGEST / seconds for gpus, seconds in fleet.PUBLISHED.items() if gpus >= fleet.NETWORKS}
    charts.lines(
        effort.folder / "fleet-5.png",
        {labels.get(name, name): line for name, line in speedups.items()},
        list(fleet.PUBLISHED),
        points,
        "speed-up over one network per GPU",
    )
    ends = [f"{ours:.2f} against {theirs:.2f}" for ours, theirs in ((low, 1.12), (high, 1.92))]
    apart = f"not those on {', '.join(map(str, far))} GPUs" if far else "all of them"
    remark = (
        f"The range of the published algorithm's speed-ups: {ends[0]} at its lower end, {ends[1]} at its upper end. Of "
        f"its total times on {len(fleet.PUBLISHED)} sizes of cluster, {len(fleet.PUBLISHED) - len(far)} are within "
        f"{BAR:.0%} of table 4, {apart}. "
        "100 networks, 4 GPUs on each node. The paper gives neither the distribution of rates nor how they grow with "
        "GPUs; `benchmarks/fleet.py` says what is assumed. Its four free numbers were chosen so that the "
        "published algorithm comes close to table 4, the efficiency of several GPUs again since those without gain "
        "stay free. "
        f"Training all networks on one GPU each takes {fleet.NETWORKS * fleet.MEAN_SECONDS / 20:,.0f} s of 20 GPUs "
        f"(table 3); if GPUs added up, the same rounds would take {floor:,.0f} s, "
        f"{floor / fleet.PUBLISHED[20]:.2f} times the total of table 4. "
        f"The paper's times fall by {_fall(fleet.PUBLISHED, 60, 80)} from 60 to 80 GPUs and by "
        f"{_fall(fleet.PUBLISHED, 140, 160)} from 140 to 160; ours by {_fall(found_totals, 60, 80)} and "
        f"{_fall(found_totals, 140, 160)}."
    )
    return Section(PAPER, "Figure 5: speed-ups", rows, remark, [("fleet-5.png", "Speed-ups over one network per GPU")])


def _fall(totals: Mapping[int, float], fewer: int, more: int) -> str:
    return f"{1 - totals[more] / totals[fewer]:.0%}"


def figures_6_to_9(effort: Effort) -> Section:
    rows = []
    ways: dict[str, Callable[[Ensemble], DryRun]] = {
        "FLEET-G": lambda each: as_published(each, delta=fleet.DELTA),
        "FLEET-L": lambda each: as_freed(each, delta=fleet.DELTA),
        "homogeneous": lambda each: homogeneous(each, random.Random(0)),
        "one network per GPU": lambda each: one_per_gpu(each, random.Random(0)),
        "hopping (ours)": hopping,
    }
    seeds = range(effort.pick(1, 5, 10))
    for gpus in (20, 80, 160):
        some = [ensemble(seed, gpus) for seed in seeds]
        waits = {name: mean(_waiting(run(each), gpus) for each in some) for name, run in ways.items()}
        least = min((name for name in waits if name != "hopping (ours)"), key=waits.__getitem__)
        for name, wait in waits.items():
            published = (
                "less than all others" if name == "FLEET-G" else "more than FLEET-G" if "ours" not in name else ""
            )
            worse = f"{least} waits less, {waits[least]:,.0f} s" if name == "FLEET-G" and least != name else ""
            what = f"{gpus} GPUs: waiting per GPU, {name}"
            rows.append(Figure(what, published, f"{wait:,.0f} s", None, How.SIMULATED, worse))
    networks = fleet.draw(0)
    rates, epochs = [each.rates.profiled[0] for each in networks], [float(each.epochs) for each in networks]
    said = f"{min(rates):.0f} to {max(rates):.0f}, median {median(rates):.0f}"
    rows.append(Figure("rates on one GPU, images per second", "21 to 176", said, None, How.SIMULATED))
    said = f"{correlation(rates, epochs):.2f}"
    rows.append(Figure("correlation of rates and epochs", "not clear", said, None, How.SIMULATED))
    rows.append(Figure("rates by the size of the model", "fall", "", None, How.NOT))
    for gpus in (4, 8):
        grown = mean(each.rates.up_to(gpus)[-1] / each.rates.profiled[0] for each in networks)
        rows.append(
            Figure(f"rate on {gpus} GPUs by that on one", "less than linear", f"{grown:.2f}", None, How.FORMULA)
        )
    remark = (
        "A GPU waits while no network trains on it, until the last one ends. Figures 6 to 9 are plots without numbers; "
        "rates, epochs and their growth are not measured here but assumed (`benchmarks/fleet.py`): networks have no "
        "sizes, and figure 9's profiles need P100 GPUs."
    )
    return Section(PAPER, "Figures 6 to 9: waiting and rates", rows, remark)


def _waiting(run: DryRun, gpus: int) -> float:
    return run.seconds - run.busy / gpus


def tables_3_and_4(effort: Effort) -> Section:
    each = ensemble(0, 80)
    alone, local, rounds = (
        one_per_gpu(each, random.Random(0)),
        as_freed(each, delta=fleet.DELTA),
        as_published(each, delta=fleet.DELTA),
    )
    rows = [
        *_length("table 3, one network per GPU", 10372.2, 4178.9, alone.spans),
        *_length("table 3, FLEET-L", 6213.0, 3580.0, local.spans),
    ]
    for number, (average, deviation) in enumerate(FLOTILLA_LENGTHS):
        rows += _length(f"table 3, FLEET-G, flotilla {number}", average, deviation, rounds.trained[number])
    for gpus, (scheduling, checkpoints) in OVERHEADS.items():
        some = ensemble(0, gpus)
        began = time.process_time()
        found = as_published(some, delta=fleet.DELTA)
        seconds = time.process_time() - began
        ours, total = found.plans * fleet.MOVE_SECONDS, fleet.PUBLISHED[gpus]
        what = f"table 4, {gpus} GPUs: seconds of scheduling, and percent of the time"
        said = f"{seconds:.2f} ({100 * seconds / found.seconds:.4f}%)"
        theirs = f"{scheduling} ({100 * scheduling / total:.3f}%)"
        rows.append(Figure(what, theirs, said, seconds / scheduling, How.MEASURED))
        what = f"table 4, {gpus} GPUs: seconds of checkpoints, and percent of the time"
        said, theirs = (
            f"{ours:,.0f} ({100 * ours / found.seconds:.1f}%)",
            f"{checkpoints:,.0f} ({100 * checkpoints / total:.1f}%)",
        )
        worse = f"{ours / checkpoints - 1:.0%} more checkpoints" if ours > 1.1 * checkpoints else ""
        rows.append(Figure(what, theirs, said, ours / checkpoints, How.SIMULATED, worse))
    for gpus, count in FLOTILLAS.items():
        plans = as_published(ensemble(0, gpus), delta=fleet.DELTA).plans
        rows.append(Figure(f"flotillas on {gpus} GPUs", str(count), str(plans), plans / count, How.SIMULATED))
    remark = (
        "A checkpoint takes 34 s, as in the paper. Flotillas are the first six of one draw of networks; which networks "
        "they have depends on rates that the paper does not print, so single flotillas need not agree. Scheduling is "
        "the processor time of all decisions and of the dry run itself; the profiling of rates is not repeated."
    )
    return Section(PAPER, "Tables 3 and 4: lengths and overheads", rows, remark)


def _length(what: str, average: float, deviation: float, lengths: Sequence[float]) -> list[Figure]:
    pairs = (("mean length", average, mean(lengths)), ("deviation", deviation, pstdev(lengths)))
    return [
        Figure(f"{what}: {name}", f"{theirs:,.0f} s", f"{ours:,.0f} s", ours / theirs, How.SIMULATED)
        for name, theirs, ours in pairs
    ]


def recorded() -> tuple[str, str]:
    """Return how many times as fast real runs were, on 2 cores and on one H200."""
    found = re.search(r'^\| `policy="fleet"` \|[^|]*\| ([\d.]+) \| ([\d.]+) \|$', RECORD.read_text(), re.MULTILINE)
    assert found, f"{RECORD.name} has the runs of the policy fleet"
    return found[1], found[2]


def real_runs(effort: Effort) -> Section:
    on_cores, on_gpu = recorded()
    what = "8 networks of unequal cost, preparation shared, by one network per worker"
    if effort.level < 2:
        rows = [Figure(f"{what}: 2 cores", "", f"{on_cores} times as fast", None, How.RECORDED)]
    else:
        rows = [
            Figure(
                f"{row.what} ({row.ours}), by one network per worker ({row.other})",
                "",
                f"{row.ratio:.2f} times as fast",
                None,
                How.MEASURED,
            )
            for row in fleet_live.measure()
        ]
    rows.append(Figure(f"{what}: one H200", "", f"{on_gpu} times as fast", None, How.RECORDED))
    return Section(
        PAPER,
        "Shared preparation in real runs",
        rows,
        "docs/scheduling.md has the run; `make papers FULL=1` measures again.",
    )


SECTIONS = (figure_5, figures_6_to_9, tables_3_and_4, real_runs)
