"""Partitions with replicas on workers of different speeds: balanced by a linear program, dispatched with stealing.

The setting is that of the Cerebro paper's Figure 6: unit time is a config's cost (of 35 CNNs) divided by a worker's
speed (of four GPUs); partition j lives on workers j, j + 1, ... A dispatcher sees the running units, and nothing else
of the future. Ratios are makespan divided by the linear program's bound, below which no schedule can end. Where a
worker is lost at half of the bound, its running unit is lost as well, and the bound accounts for the loss from the
start.

Everything is measured twice: the rule alone, and whole experiments with the controller and the policy ``auto``. In the
experiments workers join one after another, and a model that stayed on a lost worker for several units loses all of
them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import mean, median, stdev

from benchmarks.row import Row, milliseconds
from hopfleet.planner.balance import Balance, Cell, Cells, Outlook, balance, choose, relax
from hopfleet.planner.costs import cnns
from hopfleet.simulation.backend import Failure
from hopfleet.simulation.run import Simulation
from hopfleet.simulation.simulator import Workload, simulate

WORKERS = 8
#: Limit of the mean ratio, by number of replicas, and with a worker lost.
BARS = {1: 1.03, 2: 1.03, 3: 1.06}
LOST_BAR = 1.13
#: Limit of the mean seconds of a decision.
DECISION = 0.002

Rule = Callable[[str, Sequence[Cell], Sequence[Cell], Cells, Balance, Outlook], Cell | None]


def measure(quick: bool) -> list[Row]:
    rows = []
    for configs, seeds in ((8, 2),) if quick else ((16, 100), (256, 5)):
        for replicas in (1, 3) if quick else (1, 2, 3, WORKERS):
            rows += _undisturbed(configs, replicas, seeds)
        for replicas in (2,) if quick else (2, 3):
            rows += _worker_lost(configs, replicas, seeds)
            rows += _controlled(configs, replicas, seeds, lost=False)
            rows += _controlled(configs, replicas, seeds, lost=True)
    return rows


def _undisturbed(configs: int, replicas: int, seeds: int) -> list[Row]:
    ratios, others, times = [], [], []
    for seed in range(seeds):
        cells = setting(configs, replicas, seed)
        start = time.perf_counter()
        bound = balance(cells).bound
        times.append(time.perf_counter() - start)
        ratios.append(makespan(Epoch(cells), choose) / bound)
        others.append(makespan(Epoch(cells), randomly(seed)) / bound)
    what = f"{configs} configs, {WORKERS} workers, copies of a partition: {replicas}"
    return [
        _row(f"{what}; {seeds} seeds", ratios, others, BARS.get(replicas)),
        Row("replicas", f"{what}; time to balance", milliseconds(median(times))),
    ]


def _worker_lost(configs: int, replicas: int, seeds: int) -> list[Row]:
    ratios, others, since = [], [], []
    for seed in range(seeds):
        cells = setting(configs, replicas, seed)
        lost, when = f"w{seed % WORKERS}", balance(cells).bound / 2
        bound, _ = relax(cells, worker_until={lost: when})
        epoch = Epoch(cells)
        ratios.append(makespan(epoch, choose, lost, when) / bound)
        since.append(epoch.now / epoch.balance.bound)
        others.append(makespan(Epoch(cells), randomly(seed), lost, when) / bound)
    what = f"{configs} configs, {WORKERS} workers, copies of a partition: {replicas}, a worker lost"
    told = f"mean {mean(since):.3f}, max {max(since):.3f}"
    return [
        _row(f"{what}; {seeds} seeds", ratios, others, LOST_BAR),
        Row("replicas", f"{what}; makespan / bound of what was left at the loss", told),
    ]


def _controlled(configs: int, replicas: int, seeds: int, lost: bool) -> list[Row]:
    """Measure whole experiments of one epoch."""
    ratios, others, seconds, decisions = [], [], 0.0, 0
    for seed in range(seeds):
        work = Workload.made("cnn", trials=configs, partitions=WORKERS, replicas=replicas, epochs=1, sigma=0, seed=seed)
        run, bound = _simulated(work, seed, "auto", lost)
        ratios.append(run.makespan / bound)
        seconds += run.schedule_seconds
        decisions += run.decisions
        other, _ = _simulated(work, seed, "random", lost)
        others.append(other.makespan / bound)
    what = f"{configs} configs, {WORKERS} workers, copies of a partition: {replicas}{', a worker lost' * lost}"
    each = seconds / decisions
    return [
        _row(f"{what}; with the controller, {seeds} seeds", ratios, others, LOST_BAR if lost else BARS[replicas]),
        Row(
            "replicas",
            f"{what}; with the controller, time of a decision",
            milliseconds(each),
            bar=f"mean < {milliseconds(DECISION)}",
            ok=each < DECISION,
        ),
    ]


def _simulated(work: Workload, seed: int, policy: str, lost: bool) -> tuple[Simulation, float]:
    """Return a run, and the bound on its makespan."""
    cells = {
        (f"c{config}", partition): {f"w{worker + 1}": row[worker] for worker in holders}
        for config, row in enumerate(work.times)
        for partition, holders in work.replicas.items()
    }
    bound, _ = relax(cells)
    if not lost:
        return simulate(work, policy=policy, seed=seed), bound
    failure = Failure(bound / 2, f"w{seed % WORKERS + 1}")
    bound, _ = relax(cells, worker_until={failure.worker: failure.time})
    return simulate(work, policy=policy, seed=seed, failures=[failure]), bound


def _row(what: str, ratios: list[float], others: list[float], bar: float | None) -> Row:
    return Row(
        "replicas",
        f"{what}; makespan / bound",
        f"mean {mean(ratios):.3f} ± {stdev(ratios) / len(ratios) ** 0.5:.3f}, max {max(ratios):.3f}",
        f"mean {mean(others):.3f}, max {max(others):.3f}: random choice",
        mean(ratios) / mean(others),
        f"mean ≤ {bar}" if bar else "",
        mean(ratios) <= bar if bar else None,
    )


def setting(configs: int, replicas: int, seed: int) -> dict[Cell, dict[str, float]]:
    times = cnns(configs, WORKERS, random.Random(seed))
    return {
        (f"c{config}", partition): {
            f"w{worker % WORKERS}": times[config][worker % WORKERS] for worker in range(partition, partition + replicas)
        }
        for config in range(configs)
        for partition in range(WORKERS)
    }


def randomly(seed: int) -> Rule:
    """Pick any unit that can start, as the paper's scheduler does."""
    rng = random.Random(seed)

    def rule(
        worker: str, own: Sequence[Cell], others: Sequence[Cell], cells: Cells, balance: Balance, outlook: Outlook
    ) -> Cell | None:
        able = [cell for cell in (*own, *others) if cell[0] not in outlook.config_free]
        return rng.choice(able) if able else None

    return rule


def makespan(epoch: Epoch, rule: Rule, lost: str = "", when: float = 0.0) -> float:
    """Return the end of the last unit if ``rule`` picks every unit, and the worker ``lost`` vanishes at ``when``."""
    losses = [when] if lost else []
    epoch.dispatch(rule)
    while epoch.running or losses:
        if losses and losses[0] <= min(epoch.worker_free.values(), default=losses[0]):
            epoch.lose(lost, losses.pop())
        else:
            epoch.finish()
        epoch.dispatch(rule)
    assert not any(epoch.held.values()), "a rule must not leave work undone"
    return epoch.now


class Epoch:
    """One epoch in virtual time."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.now = 0.0
        self.running: dict[str, Cell] = {}
        self.worker_free: dict[str, float] = {}
        self.config_free: dict[str, float] = {}
        self.rebalance(cells)

    def rebalance(self, cells: Cells) -> None:
        """Rebalance the units that were not started."""
        self.cells = cells
        workers = {worker: max(self.now, self.worker_free.get(worker, 0.0)) for row in cells.values() for worker in row}
        configs = {config: max(self.now, self.config_free.get(config, 0.0)) for config, _ in cells}
        self.balance = balance(cells, worker_ready=workers, config_ready=configs)
        self.worker_left = dict.fromkeys(workers, 0.0)
        self.config_left = dict.fromkeys(configs, 0.0)
        #: The cells not started yet, for each worker that holds them.
        self.held: dict[str, dict[Cell, None]] = {worker: {} for worker in workers}
        for cell, row in cells.items():
            for worker in row:
                self.held[worker][cell] = None
            self._count(cell, 1)

    def _count(self, cell: Cell, sign: int) -> None:
        worker = self.balance.worker[cell]
        self.worker_left[worker] += sign * self.cells[cell][worker]
        self.config_left[cell[0]] += sign * self.cells[cell][worker]

    def dispatch(self, rule: Rule) -> None:
        """Let idle workers start what they choose, the worker with most left first, until none chooses anything."""
        outlook = Outlook(self.now, self.worker_free, self.config_free, self.worker_left, self.config_left)
        started = True
        while started:
            started = False
            for worker in sorted(self.held, key=self.worker_left.__getitem__, reverse=True):
                if worker not in self.running and not started:
                    own = [cell for cell in self.held[worker] if self.balance.worker[cell] == worker]
                    others = [cell for cell in self.held[worker] if self.balance.worker[cell] != worker]
                    cell = rule(worker, own, others, self.cells, self.balance, outlook)
                    if cell is not None:
                        self.start(cell, worker)
                        started = True

    def start(self, cell: Cell, worker: str) -> None:
        self._count(cell, -1)
        for holder in self.cells[cell]:
            del self.held[holder][cell]
        self.running[worker] = cell
        self.worker_free[worker] = self.config_free[cell[0]] = self.now + self.cells[cell][worker]

    def finish(self) -> None:
        """Advance to the end of the next unit."""
        worker = min(self.worker_free, key=self.worker_free.__getitem__)
        self.now = self.worker_free.pop(worker)
        del self.config_free[self.running.pop(worker)[0]]

    def lose(self, worker: str, when: float) -> None:
        self.now = when
        left = {cell for held in self.held.values() for cell in held}
        if worker in self.running:
            cell = self.running.pop(worker)
            left.add(cell)
            del self.worker_free[worker], self.config_free[cell[0]]
        # In the order of self.cells, so that a seed gives the same run every time.
        self.rebalance(
            {
                cell: {holder: seconds for holder, seconds in row.items() if holder != worker}
                for cell, row in self.cells.items()
                if cell in left
            }
        )
