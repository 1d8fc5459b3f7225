"""The state of the shop as plain lists: idle and busy trials and workers, and the work left. Dispatch rules read it.

A shop state identifies trials and workers by index and partitions by number; each partition has one home worker. The
same dispatch rules run on the state of a live schedule (``shop_view``) and on copies that a dry run simulates
(``dryrun``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Start = tuple[int, int]
"""A trial and the worker that starts its next unit."""

TICK = 1e-6
"""Seconds by which times that are equal may differ: a float resolves the time of day to a quarter of this."""

LEAST = 1e-9
"""Seconds of work left that urgency is measured by at least: sums that should be 0 may be off by rounding."""

DispatchRule = Callable[["ShopState"], Sequence[Start]]
"""Returns the units to start now, each trial and each worker at most once, the most urgent first.

A dispatch rule reads the state and changes nothing. Idle trials and workers that it leaves out wait for a busy one;
while no worker is busy, the rule returns at least one start if one is possible."""


@dataclass(slots=True)
class ShopState:
    """The trials and workers at one moment. Times are in seconds, on the clock of ``now``."""

    now: float
    #: The worker of each partition; -1 while no worker has the partition.
    home: list[int]
    #: The time when each worker will be free; no later than ``now`` for an idle worker.
    worker_free: list[float]
    #: Expected seconds of the units left for each worker, without running units.
    worker_left: list[float]
    #: Expected seconds by trial and partition.
    seconds: list[list[float]] = field(default_factory=list)
    #: Partitions not started in the current epoch, by trial and worker.
    todo: list[dict[int, list[int]]] = field(default_factory=list)
    #: The trials with a partition in ``todo`` at each worker.
    wanted: list[set[int]] = field(default_factory=list)
    #: The current epoch and the number of whole epochs that follow it, by trial.
    epoch: list[int] = field(default_factory=list)
    laps: list[int] = field(default_factory=list)
    trial_free: list[float] = field(default_factory=list)
    trial_left: list[float] = field(default_factory=list)
    #: The next partition of each trial whose visit order is fixed.
    forced: dict[int, int] = field(default_factory=dict)
    #: Whether a trial continues on its worker while that worker has partitions for it, whatever a plan says.
    sticky: bool = False
    #: The trial that each busy worker trains; -1 for an evaluation.
    runs: dict[int, int] = field(default_factory=dict)
    #: Units not started, of all epochs.
    units: int = 0
    #: The deviation of units from their expected times: the standard deviation of log(measured / expected).
    noise: float = 0.0
    #: The number of units that ``noise`` was estimated from.
    judged: int = 0
    #: Trials whose next unit may start, at once or as soon as their model is saved; workers that run nothing.
    idle_trials: set[int] = field(default_factory=set)
    idle_workers: set[int] = field(default_factory=set)

    def meets(self, trial: int, worker: int) -> bool:
        """Whether the next unit of ``trial`` may run on ``worker``."""
        return worker in self.todo[trial] and (trial not in self.forced or self.home[self.forced[trial]] == worker)

    def owes(self, trial: int) -> bool:
        """Whether a trial has units that were not started."""
        return bool(self.todo[trial] or self.laps[trial])

    @property
    def plannable(self) -> bool:
        """Whether all remaining work can be planned: every partition has a worker, and no visit order is fixed."""
        return not self.forced and -1 not in self.home

    @property
    def expects_more(self) -> bool:
        """Whether more units are expected to end at this moment, as happens in virtual time but not in real time."""
        return any(abs(self.worker_free[w] - self.now) <= TICK for w, trial in self.runs.items() if trial >= 0)

    def able(self, worker: int) -> set[int]:
        """Return the idle trials whose next unit may run on ``worker``."""
        trials = self.wanted[worker] & self.idle_trials
        if self.forced:
            trials = {trial for trial in trials if self.meets(trial, worker)}
        return trials

    def partition(self, trial: int, worker: int) -> int:
        """Return the partition of a trial's next unit on ``worker``."""
        return self.forced[trial] if trial in self.forced else self.todo[trial][worker][-1]

    def lap(self, trial: int) -> dict[int, list[int]]:
        """Return all partitions of an epoch by worker, the longest unit last."""
        visits: dict[int, list[int]] = {}
        for partition in sorted(range(len(self.home)), key=self.seconds[trial].__getitem__):
            visits.setdefault(self.home[partition], []).append(partition)
        return visits

    def start(self, trial: int, worker: int) -> int:
        """Start the next unit of a trial on a worker, and return the unit's partition."""
        partition = self.partition(trial, worker)
        seconds = self.seconds[trial][partition]
        todo = self.todo[trial]
        todo[worker].remove(partition)
        if not todo[worker]:
            del todo[worker]
            self.wanted[worker].remove(trial)
        self.forced.pop(trial, None)
        self.trial_left[trial] -= seconds
        self.worker_left[worker] -= seconds
        self.trial_free[trial] = self.worker_free[worker] = self.now + seconds
        self.units -= 1
        self.runs[worker] = trial
        self.idle_trials.remove(trial)
        self.idle_workers.remove(worker)
        return partition

    def finish(self, worker: int) -> None:
        """Free a worker and its trial; a trial that has completed an epoch enters the next."""
        trial = self.runs.pop(worker)
        self.worker_free[worker] = self.now
        self.idle_workers.add(worker)
        if trial < 0:
            return
        self.trial_free[trial] = self.now
        if not self.todo[trial] and self.laps[trial]:
            self.laps[trial] -= 1
            self.epoch[trial] += 1
            self.todo[trial] = self.lap(trial)
            for each in self.todo[trial]:
                self.wanted[each].add(trial)
        if self.todo[trial]:
            self.idle_trials.add(trial)

    def copy(self, most_laps: int) -> ShopState:
        """Return a copy with at most ``most_laps`` further epochs, and without fixed visit orders."""
        state = ShopState(self.now, self.home, self.worker_free[:], [], self.seconds)
        state.noise = self.noise
        state.todo = [{worker: visits[:] for worker, visits in todo.items()} for todo in self.todo]
        state.epoch = self.epoch[:]
        # All trials lose the same number of epochs, so their relative progress is kept.
        beyond = max((0, *(laps - most_laps for laps in self.laps)))
        state.laps = [max(0, laps - beyond) for laps in self.laps]
        state.trial_free = self.trial_free[:]
        state.runs = self.runs.copy()
        busy = set(self.runs.values())
        state.idle_trials = {trial for trial, todo in enumerate(self.todo) if todo and trial not in busy}
        state.idle_workers = self.idle_workers.copy()
        state.sum_up()
        return state

    def sum_up(self) -> None:
        """Recompute the work left for each trial and each worker."""
        self.trial_left = [0.0] * len(self.todo)
        self.worker_left = [0.0] * len(self.worker_free)
        self.units = len(self.home) * sum(self.laps)
        self.wanted = [set() for _ in self.worker_left]
        for trial, todo in enumerate(self.todo):
            seconds, laps = self.seconds[trial], self.laps[trial]
            owed = [laps] * len(self.home)
            for worker, visits in todo.items():
                self.wanted[worker].add(trial)
                self.units += len(visits)
                for partition in visits:
                    owed[partition] += 1
            for partition, times in enumerate(owed):
                self.trial_left[trial] += times * seconds[partition]
                self.worker_left[self.home[partition]] += times * seconds[partition]


def initial_state(seconds: list[list[float]], *, home: list[int] | None = None, laps: int = 0) -> ShopState:
    """Return a state with no unit started: ``seconds`` by trial and partition, ``laps`` epochs after the first."""
    home = list(range(len(seconds[0]))) if home is None else home
    workers = max(home) + 1
    state = ShopState(0.0, home, [0.0] * workers, [], seconds)
    state.todo = [state.lap(trial) for trial in range(len(seconds))]
    state.epoch, state.laps = [1] * len(seconds), [laps] * len(seconds)
    state.trial_free = [0.0] * len(seconds)
    state.idle_trials = set(range(len(seconds)))
    state.idle_workers = set(range(workers))
    state.sum_up()
    return state
