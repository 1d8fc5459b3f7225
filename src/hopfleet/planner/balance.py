"""Assignment of work to workers when partitions have replicas: a small linear program, rounded.

With one copy of each partition only the order is left to decide. With replicas, every greedy rule sends too much work
to slow workers and ends at 1.2 to 1.5 times the optimum. Therefore the work is divided up first:

    minimise C    over the shares x[config, partition, worker] ≥ 0, for workers that hold the partition
    subject to    the shares of each (config, partition) add up to 1
                  worker_ready + Σ x · seconds ≤ C    for each worker, which runs one unit at a time
                  config_ready + Σ x · seconds ≤ C    for each config, which trains on one worker at a time

No schedule ends before C. A basic solution splits at most one cell per tight load, hence only a few cells, and each of
these is then given to a single worker. ``choose`` dispatches by such a balance and lets idle workers steal.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hopfleet.errors import MissingExtra, UsageError

Cell = tuple[str, int]
"""A config and a partition that the config has yet to visit in this epoch."""

Cells = Mapping[Cell, Mapping[str, float]]
"""The seconds of each cell on each worker that holds its partition."""

Times = Mapping[str, float]
"""Seconds by worker or by config."""

Shares = Mapping[Cell, Times]
"""The part of each cell that goes to each worker."""

ZERO = 1e-7
"""The solver's precision: smaller shares count as none, times closer together as equal (relative to the bound)."""

NEAR = 1.001
"""Ratio of peak to bound from which on rounded shares are improved no further."""

SPARE = 0.3
"""A config is urgent if its slack is less than this part of the remaining time."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A worker for each cell, such that no worker and no config is busy much beyond ``bound``.

    A balance is valid for the cells and workers that it was made for; make another when these change.
    """

    #: A lower bound on the end of every schedule, up to the solver's precision, on the clock of the ready times.
    bound: float
    #: The optimal shares, which add up to 1 for each cell; zero shares are left out.
    share: Shares
    #: The rounded shares: one worker for each cell.
    worker: Mapping[Cell, str]
    #: The end of the last worker or config under the rounded shares, if none ever had to wait.
    peak: float


def installed() -> bool:
    """Whether SciPy, which solves the linear program, is installed."""
    return importlib.util.find_spec("scipy") is not None


def balance(cells: Cells, *, worker_ready: Times | None = None, config_ready: Times | None = None) -> Balance:
    """Divide the cells among the workers that hold them.

    Workers and configs count as busy until they are ready, by default at 0, and the bound includes that time.
    """
    bound, share = relax(cells, worker_ready=worker_ready, config_ready=config_ready)
    loads = _Loads(cells, worker_ready or {}, config_ready or {})
    for cell, parts in share.items():
        if len(parts) == 1:
            loads.assign(cell, *parts)
    split = [cell for cell, parts in share.items() if len(parts) > 1]
    for cell in sorted(split, key=lambda cell: -min(cells[cell].values())):
        loads.assign(cell, min(cells[cell], key=lambda worker: loads.ends(cell, worker)))
    loads.improve(NEAR * bound)
    return Balance(bound, share, loads.worker, loads.peak)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The progress of a balance's cells. Times are on the clock of the balance."""

    now: float
    #: The expected end of the unit that each busy worker runs and each busy config is in; idle ones are left out.
    worker_free: Times
    config_free: Times
    #: The seconds of cells not started yet, by the worker that the balance gives them to and by config.
    worker_left: Times
    config_left: Times

    def worker_ends(self, worker: str) -> float:
        """Return when a worker would be done with its own cells if it never had to wait."""
        return max(self.now, self.worker_free.get(worker, self.now)) + self.worker_left.get(worker, 0.0)

    def config_ends(self, config: str) -> float:
        """Return when a config would be done if it never had to wait."""
        return max(self.now, self.config_free.get(config, self.now)) + self.config_left.get(config, 0.0)


def choose(
    worker: str, own: Iterable[Cell], others: Iterable[Cell], cells: Cells, balance: Balance, outlook: Outlook
) -> Cell | None:
    """Return the cell that an idle worker should start now, or None if waiting for the next event is better.

    ``own`` holds the cells not started yet that the balance gives to the worker, ``others`` the cells that the worker
    could steal because it holds their partition; both include cells of running configs.

    - *Own*: among configs with little slack, the worker takes the cell of the config with the most work left. Without
      such a config, it takes the cell for which it has the largest advantage over all other workers, in case this
      worker is lost.
    - *Steal*: if none of its own cells can start, the worker takes another worker's cell, provided that both the thief
      and the config would still end by the time that the balance promises, or by the time that the robbed worker
      would. It steals where it gains the most time.
    - *Wait*: the worker starts nothing if starting a cell would delay a running config that it is to train next beyond
      the limit, unless the wait would delay the worker itself, or a config with more work left.

    A worker only waits for a running unit that is not overdue, so some unit always runs. Call ``choose`` for the idle
    worker with the most work left first.
    """
    limit = max(balance.bound, balance.peak) * (1 + ZERO)
    able: list[Cell] = []
    awaited: list[Cell] = []
    for cell in own:
        (awaited if cell[0] in outlook.config_free else able).append(cell)
    if able:
        chosen = _most_urgent(able, worker, cells, outlook, limit)
    else:
        idle = (cell for cell in others if cell[0] not in outlook.config_free)
        gains = [(_gain(cell, worker, cells, balance, outlook, limit), cell) for cell in idle]
        best, chosen = max(gains, default=(-math.inf, ("", 0)))
        if best == -math.inf:
            return None
    for cell in awaited:
        if _worth_waiting(cell, chosen, worker, cells, outlook, limit):
            return None
    return chosen


def _most_urgent(own: Iterable[Cell], worker: str, cells: Cells, outlook: Outlook, limit: float) -> Cell:
    must_start = outlook.now + (1 - SPARE) * (limit - outlook.now)

    def urgency(cell: Cell) -> tuple[float, float, float]:
        left = outlook.config_left[cell[0]]
        return left if outlook.now + left > must_start else -math.inf, _saved(cell, worker, cells), left

    return max(own, key=urgency)


def _saved(cell: Cell, worker: str, cells: Cells) -> float:
    """Return how many seconds longer a cell takes on the fastest other worker; 0 if there is no other."""
    others = [seconds for other, seconds in cells[cell].items() if other != worker]
    return min(others) - cells[cell][worker] if others else 0.0


def _gain(cell: Cell, worker: str, cells: Cells, balance: Balance, outlook: Outlook, limit: float) -> float:
    """Return how much earlier the thief would end than the robbed worker; -inf if it must not steal the cell."""
    robbed = balance.worker[cell]
    before = outlook.worker_ends(robbed)
    after = outlook.worker_ends(worker) + cells[cell][worker]
    config_after = outlook.config_ends(cell[0]) + cells[cell][worker] - cells[cell][robbed]
    return before - after if max(after, config_after) <= max(limit, before * (1 + ZERO)) else -math.inf


def _worth_waiting(awaited: Cell, chosen: Cell, worker: str, cells: Cells, outlook: Outlook, limit: float) -> bool:
    """Whether starting ``chosen`` would make the config of ``awaited`` late and waiting does less harm."""
    free = outlook.config_free[awaited[0]]
    delay = outlook.now + cells[chosen][worker] - free
    wait = free - outlook.now
    if wait < 0 or delay <= 0:
        return False
    if outlook.config_ends(awaited[0]) + delay <= limit or outlook.worker_ends(worker) + wait > limit:
        return False
    return (
        outlook.config_ends(chosen[0]) + wait + cells[awaited][worker] <= limit
        or outlook.config_left[chosen[0]] < outlook.config_left[awaited[0]]
    )


def relax(
    cells: Cells,
    *,
    worker_ready: Times | None = None,
    config_ready: Times | None = None,
    worker_until: Times | None = None,
) -> tuple[float, Shares]:
    """Solve the linear program and return its bound and its shares.

    ``worker_until`` holds the departure time of each worker known to leave.
    """
    worker_ready, config_ready, worker_until = worker_ready or {}, config_ready or {}, worker_until or {}
    _check(cells, worker_ready=worker_ready, config_ready=config_ready, worker_until=worker_until)
    latest_ready = max([0.0, *worker_ready.values(), *config_ready.values()])
    if not cells:
        return latest_ready, {}
    return _Program(cells, worker_ready, config_ready, worker_until, latest_ready).solve()


class _Program:
    """The linear program at the top of this file: one column per share, one for the bound, one row per load."""

    def __init__(
        self, cells: Cells, worker_ready: Times, config_ready: Times, worker_until: Times, latest_ready: float
    ) -> None:
        self.cells, self.worker_until, self.latest_ready = cells, worker_until, latest_ready
        self.columns = [(cell, worker, seconds) for cell, row in cells.items() for worker, seconds in row.items()]
        #: Seconds per unit of the program: times of at most 1 keep the solver's absolute precision meaningful.
        self.scale = max(latest_ready, *(seconds for _, _, seconds in self.columns)) or 1.0
        workers = dict.fromkeys(worker for _, worker, _ in self.columns)
        #: The upper limit of each row, in seconds, by kind and name of its load. A load row reads -C + load <= -ready;
        #: a worker that leaves has a second row: load <= until - ready.
        self.limits = {("worker", worker): -worker_ready.get(worker, 0.0) for worker in workers}
        for config in _may_bind(cells, worker_ready, config_ready, latest_ready):
            self.limits["config", config] = -config_ready.get(config, 0.0)
        for worker in workers:
            if worker in worker_until:
                self.limits["until", worker] = worker_until[worker] - worker_ready.get(worker, 0.0)

    def solve(self) -> tuple[float, Shares]:
        import numpy as np

        try:
            from scipy.optimize import linprog
            from scipy.sparse import csr_array
        except ImportError as error:
            raise MissingExtra("SciPy", "scipy", otherwise="without SciPy, give each partition one replica") from error

        bound = len(self.columns)
        rows, places, values = (np.array(part) for part in zip(*self._entries(), strict=True))
        cell_of = np.repeat(np.arange(len(self.cells)), [len(row) for row in self.cells.values()])
        solution = linprog(
            np.eye(1, bound + 1, bound)[0],
            A_ub=csr_array((values, (rows, places)), shape=(len(self.limits), bound + 1)),
            b_ub=np.array(list(self.limits.values())) / self.scale,
            A_eq=csr_array((np.ones(bound), (cell_of, np.arange(bound))), (len(self.cells), bound + 1)),
            b_eq=np.ones(len(self.cells)),
            bounds=[(0, None)] * bound + [(self.latest_ready / self.scale, None)],
            method="highs",
        )
        if solution.x is None:
            raise UsageError(
                f"worker_until={dict(self.worker_until)}: too early to train the cells that no other worker holds; "
                "copy their partitions to a worker that stays, or let these workers stay longer"
            )
        return float(solution.fun) * self.scale, self._shares(solution.x.tolist())

    def _entries(self) -> list[tuple[int, int, float]]:
        """Return the row, the column and the value of each coefficient of the load rows."""
        row_of = {load: row for row, load in enumerate(self.limits)}
        entries = [(row, len(self.columns), -1.0) for (kind, _), row in row_of.items() if kind != "until"]
        for column, ((config, _), worker, seconds) in enumerate(self.columns):
            touched = (("worker", worker), ("config", config), ("until", worker))
            entries += [(row_of[load], column, seconds / self.scale) for load in touched if load in row_of]
        return entries

    def _shares(self, parts: list[float]) -> Shares:
        share: dict[Cell, dict[str, float]] = {cell: {} for cell in self.cells}
        for (cell, worker, _), part in zip(self.columns, parts, strict=False):
            if part > ZERO:
                share[cell][worker] = part
        return share


def _may_bind(cells: Cells, worker_ready: Times, config_ready: Times, latest_ready: float) -> Iterator[str]:
    """Return the configs whose load can reach the bound; with many configs there are none, which halves the program."""
    least, most = dict(config_ready), dict(config_ready)
    workers = {worker for row in cells.values() for worker in row}
    total = sum(worker_ready.get(worker, 0.0) for worker in workers)
    for (config, _), row in cells.items():
        fastest = min(row.values())
        least[config] = least.get(config, 0.0) + fastest
        most[config] = most.get(config, 0.0) + max(row.values())
        total += fastest
    lower = max(latest_ready, total / len(workers), *least.values())
    return (config for config in dict.fromkeys(config for config, _ in cells) if most[config] > lower * (1 - ZERO))


def _check(cells: Cells, **times: Times) -> None:
    for (config, partition), row in cells.items():
        if not row:
            raise UsageError(
                f"partition {partition}, needed by config {config}, is on no worker: "
                "wait for a worker that holds it, or copy it to one"
            )
        for worker, seconds in row.items():
            if not 0 <= seconds < math.inf:
                raise UsageError(
                    f"{seconds} seconds for config {config} on partition {partition} at worker {worker}: "
                    "must be finite and at least 0; estimate the time from the units measured so far"
                )
    for name, values in times.items():
        for owner, seconds in values.items():
            if not 0 <= seconds < math.inf:
                raise UsageError(
                    f"{name}[{owner!r}]={seconds}: must be finite and at least 0; leave the entry out for 0"
                )


class _Loads:
    """The loads of workers and configs under a tentative assignment, and the moves that lower the highest load."""

    def __init__(self, cells: Cells, worker_ready: Times, config_ready: Times) -> None:
        self.cells = cells
        self.worker: dict[Cell, str] = {}
        self.workers = dict(worker_ready) | {w: worker_ready.get(w, 0.0) for row in cells.values() for w in row}
        self.configs = dict(config_ready) | {config: config_ready.get(config, 0.0) for config, _ in cells}
        #: The cells of each worker, as keys.
        self.at: dict[str, dict[Cell, None]] = {worker: {} for worker in self.workers}

    @property
    def peak(self) -> float:
        return max([0.0, *self.workers.values(), *self.configs.values()])

    def assign(self, cell: Cell, worker: str) -> None:
        """Assign a cell to a worker, and take it from its former worker."""
        former = self.worker.get(cell)
        if former is not None:
            del self.at[former][cell]
            self.workers[former] -= self.cells[cell][former]
            self.configs[cell[0]] -= self.cells[cell][former]
        self.worker[cell] = worker
        self.at[worker][cell] = None
        self.workers[worker] += self.cells[cell][worker]
        self.configs[cell[0]] += self.cells[cell][worker]

    def ends(self, cell: Cell, worker: str) -> float:
        """Return the higher of the loads of a worker and a config if the worker got the cell."""
        seconds = self.cells[cell][worker]
        saved = self.cells[cell][self.worker[cell]] if cell in self.worker else 0.0
        return max(self.workers[worker] + seconds, self.configs[cell[0]] + seconds - saved)

    def improve(self, target: float) -> None:
        """Move cells off the highest load, one at a time or two in exchange, until no move lowers it."""
        for _ in self.worker:
            if self.peak <= target:
                return
            moves = self._move() or self._exchange(target)
            if not moves:
                return
            for cell, worker in moves:
                self.assign(cell, worker)

    def _move(self) -> list[tuple[Cell, str]]:
        best: list[tuple[Cell, str]] = []
        lowest = self.peak * (1 - ZERO)
        for cell, worker in self._moves(self._on_peak()):
            after = self.ends(cell, worker)
            if after < lowest:
                best, lowest = [(cell, worker)], after
        return best

    def _exchange(self, target: float) -> list[tuple[Cell, str]]:
        """Return a cell to move to another worker, and a cell to move off that worker in exchange.

        The first pair that reaches the target will do: with many cells there are many such pairs.
        """
        best: list[tuple[Cell, str]] = []
        lowest = self.peak * (1 - ZERO)
        for cell, worker in self._moves(self._on_peak()):
            former = self.worker[cell]
            self.assign(cell, worker)
            if self.configs[cell[0]] < lowest:
                for other, refuge in self._moves(self.at[worker]):
                    relieved = self.workers[worker] - self.cells[other][worker]
                    after = max(relieved, self.configs[cell[0]], self.ends(other, refuge))
                    if other != cell and after < lowest:
                        best, lowest = [(cell, worker), (other, refuge)], after
            self.assign(cell, former)
            if lowest <= target:
                break
        return best

    def _moves(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, str]]:
        for cell in cells:
            for worker in self.cells[cell]:
                if worker != self.worker[cell]:
                    yield cell, worker

    def _on_peak(self) -> list[Cell]:
        """Return the cells of the worker or config with the highest load."""
        worker = max(self.workers, key=self.workers.__getitem__)
        config = max(self.configs, key=self.configs.__getitem__)
        if self.workers[worker] >= self.configs[config]:
            return list(self.at[worker])
        return [cell for cell in self.worker if cell[0] == config]
