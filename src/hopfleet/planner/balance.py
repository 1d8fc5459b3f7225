"""Who trains where when partitions have replicas and workers differ in speed: a small linear program, rounded.

With one copy of each partition there is nothing to decide but the order. With more, a greedy rule sends too much to
slow workers, whatever its order, and ends at 1.2 to 1.5 times the optimum. So the work is shared out first:

    minimise C    over the shares x[config, partition, worker] ≥ 0, for workers that hold the partition
    subject to    the shares of each (config, partition) add up to 1
                  worker_ready + Σ x · seconds ≤ C    for each worker, since it runs one unit at a time
                  config_ready + Σ x · seconds ≤ C    for each config, since it is trained in one place at a time

No schedule ends before C. A basic solution splits no more cells than there are tight loads, a handful, and those are
then given whole to one worker. ``choose`` dispatches by such a balance and lets idle workers steal.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hopfleet.errors import MissingExtra, UsageError

Cell = tuple[str, int]
"""A config and a partition that it has yet to visit in this epoch."""

Cells = Mapping[Cell, Mapping[str, float]]
"""The seconds that each cell takes on each of the workers that hold its partition."""

Times = Mapping[str, float]
"""Seconds by worker or by config."""

Shares = Mapping[Cell, Times]
"""What part of each cell goes to which worker."""

ZERO = 1e-7
"""The precision of the solver: shares below it are none, times closer than it are equal."""

NEAR = 1.001
"""Rounded shares this close to the bound need no improvement."""

SPARE = 0.3
"""A config is urgent if it has less to spare than this part of the time that is left."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Who should train what, so that no worker and no config is kept busy much beyond ``bound``.

    It holds for the cells and workers that it was made for. When there are others, make another.
    """

    #: No schedule can end earlier, up to the solver's precision; counted from the zero of the ready times.
    bound: float
    #: The best shares. They add up to 1 for each cell; those of nothing are left out.
    share: Shares
    #: The rounded shares: one worker for each cell.
    worker: Mapping[Cell, str]
    #: When the last worker and config would be done under the rounded shares, if nobody ever had to wait.
    peak: float


def installed() -> bool:
    """Whether SciPy, which solves the linear program, is installed."""
    return importlib.util.find_spec("scipy") is not None


def balance(cells: Cells, *, worker_ready: Times | None = None, config_ready: Times | None = None) -> Balance:
    """Share the cells out among the workers that hold them.

    Workers and configs are taken to be busy until they are ready, which is at 0 unless given; the bound counts that.
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
    """How far the cells of a balance have come. Times count from the balance's zero."""

    now: float
    #: When each worker that runs a unit, and each config that is in one, is expected to be free; idle ones left out.
    worker_free: Times
    config_free: Times
    #: The seconds of the cells not started yet that each worker has by the balance, and that each config has.
    worker_left: Times
    config_left: Times

    def worker_ends(self, worker: str) -> float:
        """When a worker would be done with its own cells if it never had to wait."""
        return max(self.now, self.worker_free.get(worker, self.now)) + self.worker_left.get(worker, 0.0)

    def config_ends(self, config: str) -> float:
        """When a config would be done if it never had to wait."""
        return max(self.now, self.config_free.get(config, self.now)) + self.config_left.get(config, 0.0)


def choose(
    worker: str, own: Iterable[Cell], others: Iterable[Cell], cells: Cells, balance: Balance, outlook: Outlook
) -> Cell | None:
    """The cell that an idle worker should start now, or None if it does better to wait for the next event.

    ``own`` are the cells not started yet that the balance gives to the worker, ``others`` are those that it could
    steal, since it holds their partition; those of running configs are among both.

    - *Own*: the worker takes the cell of the config with most left, of those that leave little time to spare. Of the
      others, it takes the one that it does better than anybody else by most, in case this worker is lost.
    - *Steal*: if it has none that could start, it takes another's, as long as both it and the config would end by
      the time that the balance promises, or else by the time that the robbed worker would; it robs where it gains
      the most time.
    - *Wait*: it starts neither if that would make a running config late that it is to train next, unless the wait
      makes the worker itself late, or a config with more left.

    Nobody waits but for a unit that runs and is not overdue, so there is always somebody to go on. Ask on behalf of
    the idle worker with most left first.
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
    """The seconds that a cell would take more on the fastest other worker; 0 if there is none."""
    others = [seconds for other, seconds in cells[cell].items() if other != worker]
    return min(others) - cells[cell][worker] if others else 0.0


def _gain(cell: Cell, worker: str, cells: Cells, balance: Balance, outlook: Outlook, limit: float) -> float:
    """By how much the thief would end before the robbed worker; -inf if it must not steal this cell."""
    robbed = balance.worker[cell]
    before = outlook.worker_ends(robbed)
    after = outlook.worker_ends(worker) + cells[cell][worker]
    config_after = outlook.config_ends(cell[0]) + cells[cell][worker] - cells[cell][robbed]
    return before - after if max(after, config_after) <= max(limit, before * (1 + ZERO)) else -math.inf


def _worth_waiting(awaited: Cell, chosen: Cell, worker: str, cells: Cells, outlook: Outlook, limit: float) -> bool:
    """Whether starting ``chosen`` would make the config of ``awaited`` late, and not starting it is no worse."""
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
    """The linear program: its bound and its shares. ``worker_until`` tells when a worker is known to leave."""
    import numpy as np

    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array
    except ImportError as error:
        raise MissingExtra("SciPy", "scipy", otherwise="without SciPy, give each partition one replica") from error

    worker_ready, config_ready, worker_until = worker_ready or {}, config_ready or {}, worker_until or {}
    _check(cells, worker_ready=worker_ready, config_ready=config_ready, worker_until=worker_until)
    floor = max([0.0, *worker_ready.values(), *config_ready.values()])
    if not cells:
        return floor, {}
    columns = [(cell, worker, seconds) for cell, row in cells.items() for worker, seconds in row.items()]
    bound_column = len(columns)
    workers = dict.fromkeys(worker for _, worker, _ in columns)
    # One row for each load: -C + load ≤ -ready. A worker that leaves has a second one: load ≤ until - ready.
    names = [("worker", worker) for worker in workers]
    names += [("config", config) for config in _may_bind(cells, worker_ready, config_ready, floor)]
    names += [("until", worker) for worker in workers if worker in worker_until]
    limits = {
        "worker": lambda name: -worker_ready.get(name, 0.0),
        "config": lambda name: -config_ready.get(name, 0.0),
        "until": lambda name: worker_until[name] - worker_ready.get(name, 0.0),
    }
    # Times of at most 1 keep the solver's absolute precision meaningful.
    scale = max(floor, *(seconds for _, _, seconds in columns)) or 1.0
    row_of = {name: row for row, name in enumerate(names)}
    entries = [(row, bound_column, -1.0) for (kind, _), row in row_of.items() if kind != "until"]
    for column, ((config, _), worker, seconds) in enumerate(columns):
        touched = (("worker", worker), ("config", config), ("until", worker))
        entries += [(row_of[name], column, seconds / scale) for name in touched if name in row_of]
    rows, places, values = (np.array(part) for part in zip(*entries, strict=True))
    cell_of = np.repeat(np.arange(len(cells)), [len(row) for row in cells.values()])
    solution = linprog(
        np.eye(1, bound_column + 1, bound_column)[0],
        A_ub=csr_array((values, (rows, places)), shape=(len(names), bound_column + 1)),
        b_ub=np.array([limits[kind](name) for kind, name in names]) / scale,
        A_eq=csr_array((np.ones(bound_column), (cell_of, np.arange(bound_column))), (len(cells), bound_column + 1)),
        b_eq=np.ones(len(cells)),
        bounds=[(0, None)] * bound_column + [(floor / scale, None)],
        method="highs",
    )
    if solution.x is None:
        raise UsageError(
            f"worker_until={dict(worker_until)}: the cells that no other worker holds cannot be trained by then; "
            "copy their partitions to a worker that stays, or let these stay longer"
        )
    share: dict[Cell, dict[str, float]] = {cell: {} for cell in cells}
    for (cell, worker, _), part in zip(columns, solution.x.tolist(), strict=False):
        if part > ZERO:
            share[cell][worker] = part
    return float(solution.fun) * scale, share


def _may_bind(cells: Cells, worker_ready: Times, config_ready: Times, floor: float) -> Iterator[str]:
    """The configs whose load can reach the bound. With many configs there are none, which halves the program."""
    least, most = dict(config_ready), dict(config_ready)
    workers = {worker for row in cells.values() for worker in row}
    total = sum(worker_ready.get(worker, 0.0) for worker in workers)
    for (config, _), row in cells.items():
        fastest = min(row.values())
        least[config] = least.get(config, 0.0) + fastest
        most[config] = most.get(config, 0.0) + max(row.values())
        total += fastest
    lower = max(floor, total / len(workers), *least.values())
    return (config for config in dict.fromkeys(config for config, _ in cells) if most[config] > lower * (1 - ZERO))


def _check(cells: Cells, **times: Times) -> None:
    for (config, partition), row in cells.items():
        if not row:
            raise UsageError(
                f"partition {partition}, wanted by config {config}, is on no worker: "
                "wait for one that holds it, or copy it to one"
            )
        for worker, seconds in row.items():
            if not 0 <= seconds < math.inf:
                raise UsageError(
                    f"{seconds} seconds for config {config} on partition {partition} at worker {worker}: "
                    "must be finite and at least 0; estimate it from the units measured so far"
                )
    for name, values in times.items():
        for owner, seconds in values.items():
            if not 0 <= seconds < math.inf:
                raise UsageError(f"{name}[{owner!r}]={seconds}: must be finite and at least 0; leave it out for none")


class _Loads:
    """The loads of workers and configs while cells are given to workers, and the moves that lower the highest."""

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
        """Give a cell to a worker, and take it from the one that had it."""
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
        """The higher of the two loads that a cell would add to at another worker."""
        seconds = self.cells[cell][worker]
        saved = self.cells[cell][self.worker[cell]] if cell in self.worker else 0.0
        return max(self.workers[worker] + seconds, self.configs[cell[0]] + seconds - saved)

    def improve(self, target: float) -> None:
        """Move cells off whatever has the highest load, one at a time or two in exchange, until nothing helps."""
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
        """A cell that goes to another worker, and one that leaves that worker for it. The first pair that reaches
        the target will do: with many cells there are many."""
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
        """The cells of the worker or config with the highest load."""
        worker = max(self.workers, key=self.workers.__getitem__)
        config = max(self.configs, key=self.configs.__getitem__)
        if self.workers[worker] >= self.configs[config]:
            return list(self.at[worker])
        return [cell for cell in self.worker if cell[0] == config]
