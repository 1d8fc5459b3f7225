"""Cerebro (VLDB 2020), continued: batch sizes, remote reads, HyperOpt and ASHA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

import hopfleet as hop
from benchmarks import searching
from benchmarks.landscape import SPACE, Landscape, epoch_seconds
from benchmarks.papers.cerebro import PAPER, formulas, recorded, value
from benchmarks.papers.section import Effort, Figure, How, Section
from benchmarks.runs import scratch
from benchmarks.virtual import Log, Patient, Restarting, hopping, task_parallel
from hopfleet import demo
from hopfleet.domain.space import configure
from hopfleet.domain.trial import Config
from hopfleet.monitor.wording import plural
from hopfleet.simulation.simulator import Workload

BATCHES = (32, 64, 128, 256, 512)
"""Batch sizes of figure 9."""

SLOWER = 2.0
"""Horovod's time by Cerebro's with batches of 32."""


def figure_9(effort: Effort) -> Section:
    rows = []
    for batch in BATCHES:
        found = formulas(k=1, S=8, p=8, m=293e6, D=250e9, batches=1.2e6 / batch)
        what = f"batches of {batch}: bytes of all-reduce by hopping's"
        rows.append(Figure(what, "", f"{found['all-reduce'] / found['hopping']:,.0f}", None, How.FORMULA))
    for batch in BATCHES:
        # A step computes for longer with more rows, and its gradients are as large.
        slower = 1 + (SLOWER - 1) * BATCHES[0] / batch
        published = f"{SLOWER:g}" if batch == BATCHES[0] else "less, the larger the batch"
        what = f"batches of {batch}: time of all-reduce by hopping's"
        rows.append(Figure(what, published, f"{slower:.2f}", None, How.FORMULA))
    rows += _errors(BATCHES[:: effort.pick(4, 1, 1)], effort.pick(1, 10, 10))
    remark = (
        "Bytes are by formula, for ResNet-50 on ImageNet and 8 workers; times of all-reduce follow from the paper's "
        "factor at 32. Errors are those of a small network on scikit-learn's digits (1,437 rows for training) after 10 "
        "epochs; Horovod with batches of 32 on 8 workers takes steps of 256 rows."
    )
    return Section(PAPER, "Figure 9: batch size and data parallelism", rows, remark)


def _errors(sizes: Sequence[int], epochs: int) -> list[Figure]:
    """Train a network with each batch size, and return the lowest validation errors."""
    train, valid = demo.data()
    with scratch() as folder:
        experiment = hop.Experiment(
            demo.Digits(),
            train=train,
            valid=valid,
            space={"network": "mlp", "lr": 0.003, "batch_size": hop.grid_search(list(sizes))},
            search=hop.Grid(max_epochs=epochs),
            metric="accuracy",
            mode="max",
            partitions=2,
            backend="inline",
            run_options=hop.RunOptions(folder=folder / "run"),
            worker_options=hop.WorkerOptions(device="cpu"),
        )
        trials = experiment.fit(quiet=True).trials
    errors = {trial.config["batch_size"]: 1 - max(epoch["accuracy"] for epoch in trial.history) for trial in trials}
    best = min(errors, key=lambda size: (errors[size], size))
    rows = [Figure("the batch size with the lowest validation error", "32", str(best), None, How.MEASURED)]
    said = ", ".join(f"{size}: {error:.1%}" for size, error in sorted(errors.items()))
    return [*rows, Figure("lowest validation errors by batch size", "grow with the batch", said, None, How.MEASURED)]


def figures_10_and_11(effort: Effort) -> Section:
    found = formulas(k=5, S=8, p=8, m=293e6, D=250e9, batches=37_500)
    # What hopping reads once counts for it, too.
    ratio = found["task-parallel, remote reads"] / (found["hopping"] + 250e9)
    cells = recorded()
    counted = value(cells["task-parallel, remote reads"], "training, MB") / value(
        cells["hopping (Hopfleet on Ray)"], "training, MB"
    )
    what = "remote storage: bytes read by tasks by hopping's, all data once included"
    by_formula = found["task-parallel, remote reads"] / found["hopping"]
    rows = [
        Figure(what, "over 10", f"{ratio:.1f}", None, How.FORMULA),
        Figure("the same, counted on 4 hosts, without the first read", "over 10", f"{counted:.1f}", None, How.RECORDED),
        Figure(
            "distributed storage, replication 1: bytes of tasks by hopping's",
            "100",
            f"{by_formula:.0f}",
            None,
            How.FORMULA,
        ),
    ]
    for replicas in (2, 4, 8):
        work = Workload.made("homogeneous", trials=8, partitions=8, replicas=replicas, epochs=5, sigma=0.0, seed=0)
        spans = hop.simulate(work).history.spans
        moved = sum(span.hopped for span in spans) * 293e6
        # A worker of tasks reads the partitions that it does not have, in each epoch.
        read = 5 * 8 * 250e9 * (8 - replicas) / 8
        said = (
            f"{read / moved:,.0f}" if moved and read else f"tasks {read / 1e9:,.0f} GB, hopping {moved / 1e9:,.0f} GB"
        )
        published = "100" if replicas < 8 else "almost none against little"
        worse = f"hopping moves {moved / 1e9:,.0f} GB, and tasks nothing" if moved and not read else ""
        what = f"replication {replicas}: bytes of tasks by those of hops"
        rows.append(Figure(what, published, said, None, How.SIMULATED, worse))
    remark = (
        "ResNet-50 (293 MB), 250 GB, 8 configurations, 5 epochs and 8 workers, as in the paper. With replicas, hops "
        "are those of a simulated run, in which a trial need not visit every worker. Makespans of figures 10 and 11 "
        "are plots without numbers, of reads from storage that is not at hand."
    )
    return Section(PAPER, "Figures 10 and 11: remote reads", rows, remark)


def figures_12_and_13(effort: Effort) -> Section:
    seeds = range(effort.pick(1, 4, 8))
    hours = effort.pick(2, searching.HOURS, searching.HOURS)
    (row,) = searching.exploring(seeds, hours)
    assert row.ratio is not None
    what, found = f"{row.what}: hopping by tasks", f"{row.ratio:.2f} ({row.ours} / {row.other.split()[-1]})"
    rows = [Figure(what, "1.24 (83 / 67)", found, row.ratio / (83 / 67), How.SIMULATED)]
    hops, tasks = zip(*(_exhausted(seed) for seed in seeds), strict=True)
    ratio = mean(map(_length, hops)) / mean(map(_length, tasks))
    what = f"32 configurations, 10 epochs each, 8 at a time, {plural(len(seeds), 'seed')}: time of hopping by tasks'"
    worse = "with 8 trials at a time on 8 workers, hopping takes longer" if ratio > 1 else ""
    rows.append(Figure(what, "1.23 (31.8 / 25.9 h)", f"{ratio:.2f}", ratio / 1.23, How.SIMULATED, worse))
    rows.append(_compared("the same: lowest error, hopping and tasks", "34.1%, 33.2%", hops, tasks))
    hops, tasks = zip(*(_halved(seed) for seed in seeds), strict=True)
    rows.append(_compared("ASHA, 2 simulated hours: lowest error, hopping and tasks", "31.9%, 33.2%", hops, tasks))
    remark = (
        "The paper ran for 24 hours on ImageNet. ASHA's configurations have the costs of 35 CNNs; errors are those of "
        "made-up learning curves (benchmarks/landscape.py), with the same configurations for both. The paper's "
        "HyperOpt draws configurations by Bayesian sampling, which depends on the order of results; here they are "
        "random."
    )
    return Section(PAPER, "Figures 12 and 13: HyperOpt and ASHA", rows, remark)


def _configs(seed: int) -> Callable[[int], Config]:
    return lambda number: configure(SPACE, seed=seed, number=number)


class _Counted(Patient):
    """Random search that ends after 32 configurations."""

    def next(self) -> tuple[str, Config] | None:
        return super().next() if self._number < 32 else None


def _exhausted(seed: int) -> tuple[Log, Log]:
    """Train 32 configurations to their end, by hops and as tasks."""
    search, until = hop.Random(trials=32, max_epochs=10), 1e9
    ours = hopping(search, SPACE, Landscape(seed), epoch_seconds, workers=8, until=until, seed=seed, max_live=8)
    theirs = task_parallel(_Counted(_configs(seed), 10), Landscape(seed), epoch_seconds, workers=8, until=until)
    return ours, theirs


def _halved(seed: int) -> tuple[Log, Log]:
    """Run ASHA for two hours, by hops and as tasks that start anew when they are promoted."""
    search, until = hop.ASHA(trials=4000, max_epochs=9, eta=3), 7200.0
    ours = hopping(search, SPACE, Landscape(seed), epoch_seconds, workers=8, until=until, seed=seed)
    tuner = Restarting(_configs(seed), (1, 3, 9))
    return ours, task_parallel(tuner, Landscape(seed), epoch_seconds, workers=8, until=until)


def _length(log: Log) -> float:
    return max(time for time, *_ in log.epochs)


def _compared(what: str, published: str, hops: Sequence[Log], tasks: Sequence[Log]) -> Figure:
    ours, theirs = (mean(1 - log.best()[-1][1] for log in logs) for logs in (hops, tasks))
    worse = f"the error is {ours / theirs - 1:.0%} higher" if ours > 1.005 * theirs else ""
    return Figure(what, published, f"{ours:.1%}, {theirs:.1%}", None, How.SIMULATED, worse)


SECTIONS = (figure_9, figures_10_and_11, figures_12_and_13)
