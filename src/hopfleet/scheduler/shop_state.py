"""Who is idle, who is busy until when and what is left to do, as plain lists: what a rule looks at to choose.

A floor knows trials and workers by index, partitions by number, and each partition is at home on one worker. The same
rules run on the floor of a live schedule (``mirror``) and on copies of it that live through a dry run (``dryrun``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Start = tuple[int, int]
"""A trial and the worker that begins its next unit."""

Rule = Callable[["Floor"], Sequence[Start]]
"""All that should start now, each trial and each worker at most once, the most urgent first.

A rule reads the floor and changes nothing. Whoever it leaves out does better to wait for somebody who is busy; while
nobody is busy it names a start if there is one."""


@dataclass(slots=True)
class Floor:
    """Trials and workers at one moment. Times are in seconds, on the clock of ``now``."""

    now: float
    #: The worker of each partition; -1 while there is none.
    home: list[int]
    #: When each worker will be free. It is idle if that is not after ``now``.
    worker_free: list[float]
    #: Expected seconds of the units that each worker has left, without those that run.
    worker_left: list[float]
    #: Expected seconds by trial and partition.
    seconds: list[list[float]] = field(default_factory=list)
    #: Partitions not begun in the current epoch, by trial and worker.
    todo: list[dict[int, list[int]]] = field(default_factory=list)
    #: The trials with a partition in ``todo`` at each worker.
    wanted: list[set[int]] = field(default_factory=list)
    #: The current epoch and the number of whole epochs that follow it, by trial.
    epoch: list[int] = field(default_factory=list)
    laps: list[int] = field(default_factory=list)
    trial_free: list[float] = field(default_factory=list)
    trial_left: list[float] = field(default_factory=list)
    #: The only partition that a trial may visit next, where its order is given.
    forced: dict[int, int] = field(default_factory=dict)
    #: Whether a trial goes on where it is for as long as it can, whatever a plan says.
    stays: bool = False
    #: What each busy worker trains; -1 for an evaluation.
    runs: dict[int, int] = field(default_factory=dict)
    #: Units not begun, of all epochs.
    units: int = 0
    #: By how much units miss their expected times: the standard deviation of the logarithm.
    noise: float = 0.0
    #: How many units that is known from.
    judged: int = 0
    #: Trials whose next unit may begin, or may as soon as their model is saved; workers that run nothing.
    idle_trials: set[int] = field(default_factory=set)
    idle_workers: set[int] = field(default_factory=set)

    def meets(self, trial: int, worker: int) -> bool:
        """Whether the next unit of ``trial`` may be at ``worker``."""
        return worker in self.todo[trial] and (trial not in self.forced or self.home[self.forced[trial]] == worker)

    @property
    def plannable(self) -> bool:
        """Whether everything that is left could be planned: all partitions are there, and no order is given."""
        return not self.forced and -1 not in self.home

    @property
    def expects_more(self) -> bool:
        """Whether more units should end at this very moment. In earnest two never do; in virtual time they often do."""
        # As far as sums of times are off by rounding; the time of day is a large number, of which this is milliseconds.
        close = 1e-12 * abs(self.now)
        return any(abs(self.worker_free[w] - self.now) <= close for w, trial in self.runs.items() if trial >= 0)

    def able(self, worker: int) -> set[int]:
        """The idle trials whose next unit may be at ``worker``."""
        trials = self.wanted[worker] & self.idle_trials
        if self.forced:
            trials = {trial for trial in trials if self.meets(trial, worker)}
        return trials

    def partition(self, trial: int, worker: int) -> int:
        """The partition of that unit."""
        return self.forced[trial] if trial in self.forced else self.todo[trial][worker][-1]

    def lap(self, trial: int) -> dict[int, list[int]]:
        """All partitions of an epoch by worker, the longest unit last."""
        visits: dict[int, list[int]] = {}
        for partition in sorted(range(len(self.home)), key=self.seconds[trial].__getitem__):
            visits.setdefault(self.home[partition], []).append(partition)
        return visits

    def start(self, trial: int, worker: int) -> int:
        """Begin the next unit of a trial at a worker; returns its partition."""
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
        """A worker is done: it and its trial are free, and a trial that has completed an epoch enters the next."""
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

    def copy(self, most_laps: int) -> Floor:
        """The same floor with at most so many further epochs, and without given orders."""
        floor = Floor(self.now, self.home, self.worker_free[:], [0.0] * len(self.worker_left), self.seconds)
        floor.noise = self.noise
        floor.todo = [{worker: visits[:] for worker, visits in todo.items()} for todo in self.todo]
        floor.epoch = self.epoch[:]
        # Of everybody the same: who is ahead stays ahead.
        beyond = max(0, max(self.laps, default=0) - most_laps)
        floor.laps = [max(0, laps - beyond) for laps in self.laps]
        floor.trial_free = self.trial_free[:]
        floor.runs = self.runs.copy()
        busy = set(self.runs.values())
        floor.idle_trials = {trial for trial, todo in enumerate(self.todo) if todo and trial not in busy}
        floor.idle_workers = self.idle_workers.copy()
        floor.sum_up()
        return floor

    def sum_up(self) -> None:
        """Work out what is left of each trial and for each worker."""
        self.trial_left = [0.0] * len(self.todo)
        self.worker_left = [0.0] * len(self.worker_left)
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


def floor_of(seconds: list[list[float]], *, home: list[int] | None = None, laps: int = 0) -> Floor:
    """A floor where everything is still to do: ``seconds`` by trial and partition, and ``laps`` more epochs."""
    home = list(range(len(seconds[0]))) if home is None else home
    workers = max(home) + 1
    floor = Floor(0.0, home, [0.0] * workers, [0.0] * workers, seconds)
    floor.todo = [floor.lap(trial) for trial in range(len(seconds))]
    floor.epoch, floor.laps = [1] * len(seconds), [laps] * len(seconds)
    floor.trial_free = [0.0] * len(seconds)
    floor.idle_trials = set(range(len(seconds)))
    floor.idle_workers = set(range(workers))
    floor.sum_up()
    return floor
