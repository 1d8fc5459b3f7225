"""The rehearsal of an experiment: its outline, and a simulation of the whole run based on profiles.

The simulation is decided by the same controller that will run the experiment. ``fit`` rehearses as well: the profiles
tell its policy which trials are long, and the prediction is stored for comparison with the actual run.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import FormTeams, RunStarted, RunUnit, SaveVersion
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.trial import Config, Trial
from hopfleet.forecast.profiling import BATCHES, Probe, Profiles, profile_trials
from hopfleet.monitor.history import History
from hopfleet.planner.fleet.allocation import Fleet
from hopfleet.planner.teams import Scaling
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.estimates import Estimates, Prior
from hopfleet.scheduler.fusion import Fusion
from hopfleet.search.base import Goal
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver
from hopfleet.simulation.run import Listed
from hopfleet.version import __version__
from hopfleet.worker.spec import Profile

UNIT_SECONDS = 0.002
"""Seconds that a unit or an evaluation adds to its work: decision, journal, two messages, opening the stream."""

ENOUGH = 6
"""Least number of profiled configurations for a prediction, unless all are profiled."""

SHARE, LONG_SHARE = 0.05, 0.005
"""Share of a run's expected time that profiling may take; LONG_SHARE applies above SLOW seconds."""

SLOW = 2.0
"""Seconds after which progress is reported."""

PREDICTING = 0.01
"""Share of a run's expected time that its prediction may take."""

SIMULATED = 20_000
"""Most units and evaluations to simulate; of a larger experiment a part is simulated and extrapolated."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The properties of an experiment that a schedule depends on."""

    name: str
    trials: int
    epochs: int
    rows: Sequence[int]  #: rows of each partition
    valid_rows: Sequence[int]  #: rows of each validation partition
    workers: int
    policy_name: str
    policy: Callable[[], Policy]
    fixed_order: bool
    seed: int
    goal: Goal
    round_size: int = 0  #: trials that wait for one another at the end of each epoch; 0: none waits
    known: bool = True  #: whether the configuration of each trial is known in advance
    open_ended: bool = False  #: whether a budget, not the search, limits the number of trials
    configs: Mapping[int, Config] = field(default_factory=dict)  #: known configurations, by trial number
    fuse: str = "off"  #: how trials train together
    fusions: Mapping[str, Fusion] = field(
        default_factory=dict
    )  #: which trials may train together, by value of ``fuse``
    crowded: bool = False  #: whether no core is left to produce batches
    teams: Sequence[TeamShape] = (SINGLE,)  #: how the first workers train, in turn; the first one is profiled
    scaling: Scaling | None = None  #: how fast teams are, if idle devices may join as teams
    fleet: Fleet | None = None  #: the rates of trials, if trials get numbers of devices in rounds

    @property
    def per_trial(self) -> int:
        return self.epochs * (len(self.rows) + len(self.valid_rows))

    def lower_bound(self, profiles: Profiles) -> float:
        """Return a bound on the makespan of any schedule: work shared evenly, and the longest trial unsplit."""
        found = [profile for number, profile in profiles.found.items() if number < self.trials]
        others = self.trials - len(found)
        every = [*found, profiles.mean] if others else found
        # The units of a trial run one after another; only its evaluations can run side by side.
        alone = [self._seconds(profile, max(self.valid_rows, default=0)) for profile in every]
        share = min(1.0, profiles.share(self.fuse)) if self.fuse in self.fusions else 1.0
        whole = [self._seconds(profile, sum(self.valid_rows), share) for profile in every]
        total = sum(whole) + max(0, others - 1) * whole[-1]
        if self.scaling is None:
            return max(total / self.workers, *alone)
        devices = sum(shape.devices for shape in itertools.islice(itertools.cycle(self.teams), self.workers))
        together = devices * max(self.pace(count) / count for count in range(1, devices + 1))
        return max(total / together, max(alone) / self.pace(devices))

    def pace(self, devices: int) -> float:
        """Return how many times faster a worker with some devices is than the profiled one, as far as known."""
        scaling = self.scaling
        return 1.0 if scaling is None else scaling.speed(devices) / scaling.speed(self.teams[0].devices)

    def _seconds(self, profile: Profile, valid_rows: int, share: float = 1.0) -> float:
        """Return the seconds of a trial's work without saves, hops and the production of batches."""
        training = share * profile.seconds_per_row * sum(self.rows)
        evaluation = profile.evaluation_seconds_per_row * valid_rows
        return profile.open_seconds + self.epochs * (training + evaluation) + self.per_trial * UNIT_SECONDS

    def small_enough(self) -> Outline:
        """Return this outline, or a similar one with fewer trials and, if needed, fewer epochs."""
        if self.trials * self.per_trial <= SIMULATED:
            return self
        per_epoch = len(self.rows) + len(self.valid_rows)
        enough = min(self.trials, 4 * self.workers)
        epochs = max(1, min(self.epochs, SIMULATED // (enough * per_epoch)))
        trials = max(enough, min(self.trials, SIMULATED // (epochs * per_epoch)))
        return dataclasses.replace(self, trials=trials, epochs=epochs)

    def with_batches(self, training: float, feeding: float) -> float:
        """Return the seconds to train and to produce the batches: at the same time if cores are to spare."""
        return training + feeding if self.crowded else max(training, feeding)

    def longest_unit(self, profiles: Profiles) -> float:
        """Return the expected seconds of the longest unit of a profiled trial."""
        slowest = max(profile.seconds_per_row for profile in profiles.found.values())
        return UNIT_SECONDS + self.with_batches(slowest, profiles.feeding) * max(self.rows)

    def estimates(self, profiles: Profiles) -> Estimates:
        """Return what is expected of units, from what was profiled on the first worker."""
        pace = 1.0 if self.scaling is None else self.scaling.speed(self.teams[0].devices)
        return Estimates(self.rows, self.prior(profiles) if profiles.timed else None, pace)

    def prior(self, profiles: Profiles) -> Prior:
        """Return the expected seconds of units, for ``Estimates``."""

        def seconds(number: int, worker: str, partition: int) -> float:
            profile = profiles.of(number) if self.known else profiles.mean
            return UNIT_SECONDS + self.with_batches(profile.seconds_per_row, profiles.feeding) * self.rows[partition]

        return seconds


class Rehearsal:
    """A whole experiment in virtual time, based on profiles."""

    def __init__(self, outline: Outline, profiles: Profiles) -> None:
        self._outline = outline
        self._profiles = profiles
        mode: Any = outline.goal.mode
        self.history = History(
            metric=outline.goal.metric, mode=mode, partitions=len(outline.rows), name=f"{outline.name}, predicted"
        )
        self.hop_bytes = 0
        self.complete = False
        #: When idle devices joined as teams, and as which.
        self.joined: list[tuple[float, tuple[TeamShape, ...]]] = []
        self._opened: set[tuple[str, str]] = set()  #: pairs of a worker and a trial that it has built
        self._written: dict[str, float] = {}  #: when the durable save of a trial is done
        self._made: set[tuple[int, int]] = set()  #: epochs (0: validation) and partitions whose batches are shared
        self._work: dict[int, tuple[float, float]] = {}  #: seconds to train and to produce batches, by attempt
        self._backend = Simulated(
            self._seconds,
            self._metrics,
            together=self._together,
            teams=outline.teams,
            form_seconds=0.0 if outline.scaling is None else outline.scaling.form_seconds,
            size=lambda trial: profiles.of(trial.number).size,
        )
        self._controller = Controller(
            Listed(
                *(outline.trials, outline.epochs),
                goal=outline.goal,
                configs=outline.configs,
                listens=outline.round_size > 0,
                together=outline.round_size,
            ),
            outline.policy(),
            partitions=len(outline.rows),
            valid_partitions=len(outline.valid_rows),
            seed=outline.seed,
            estimates=outline.estimates(profiles),
            fixed_order=outline.fixed_order,
            deterministic=outline.round_size > 0,
            fusion=outline.fusions.get(outline.fuse),
            scaling=outline.scaling,
            fleet=outline.fleet,
        )
        self._driver = simulated_driver(
            self._controller,
            self._backend,
            [self.history],
            effects={SaveVersion: self._save, FormTeams: self._form},
        )

    @property
    def makespan(self) -> float:
        return self._backend.makespan

    @property
    def shared_bytes(self) -> int:
        """The most bytes of models in shared memory."""
        return self._backend.saved.most_shared

    def as_json(self) -> dict[str, Any]:
        """Return the makespan and all spans of work."""
        start = self._backend.now() - self._backend.elapsed
        spans = [
            [span.worker, span.trial, span.epoch, span.partition, span.work.value]
            + [round(time - start, 6) for time in (span.started, span.ended)]
            for span in self.history.spans
        ]
        return {"makespan": round(self.makespan, 6), "spans": spans}

    def run(self, until: float = math.inf, clock: Callable[[], float] = time.perf_counter) -> Rehearsal:
        """Simulate until the experiment ends or the clock shows ``until``."""
        self._backend.start(None, self._outline.workers)
        for events in self._driver.moments([RunStarted(__version__, self._outline.workers)]):
            if clock() >= until:
                break
            self._driver.step(events)
        self.complete = self._controller.finished
        return self

    def _profile(self, trial: str) -> Profile:
        progress = self._controller.schedule.find(trial)
        assert progress is not None, f"{trial} is unknown"
        return self._profiles.of(progress.trial.number)

    def _save(self, command: SaveVersion) -> None:
        if command.durable:
            self._written[command.trial] = self._backend.elapsed + self._profile(command.trial).save_seconds
        self._driver.send(command)

    def _form(self, command: FormTeams) -> None:
        self.joined.append((self._backend.elapsed, command.shapes))
        self._backend.form_teams(command.shapes)

    def _seconds(self, command: RunUnit, trial: Trial) -> float:
        profile, outline = self._profiles.of(trial.number), self._outline
        # A model that is being written cannot train on.
        seconds = UNIT_SECONDS + max(0.0, self._written.pop(trial.id, 0.0) - self._backend.elapsed)
        if (command.worker, trial.id) not in self._opened:
            self._opened.add((command.worker, trial.id))
            seconds += profile.open_seconds
        # A model that is still being made has no maker yet: its trial goes on at the same worker.
        if command.model.version and self._backend.makers.get(trial.id, command.worker) != command.worker:
            # One worker writes the model to memory and the other reads it.
            seconds += 2 * profile.load_seconds
            self.hop_bytes += profile.size if command.unit.trains else 0
        self._work[command.attempt] = work = self._training_and_feeding(command, profile)
        return seconds + outline.with_batches(*work)

    def _training_and_feeding(self, command: RunUnit, profile: Profile) -> tuple[float, float]:
        """Return the seconds to train or evaluate, and those to produce the batches unless they are shared already."""
        unit, training, feeding = command.unit, command.unit.trains, self._profiles.feeding
        rows = (self._outline.rows if training else self._outline.valid_rows)[unit.partition]
        portion = (unit.epoch if training else 0, unit.partition)
        # An evaluation was timed with its batches.
        own = profile.seconds_per_row if training else max(0.0, profile.evaluation_seconds_per_row - feeding)
        there = portion in self._made
        if profile.passed_on:
            self._made.add(portion)
        pace = self._outline.pace(len(self._backend.placement(command.worker).devices))
        return own * rows / pace, 0.0 if there else feeding * rows

    def _together(self, commands: Sequence[RunUnit], seconds: Sequence[float]) -> float:
        """Return the seconds of a flotilla: the longest member, a share of every other member, the batches once."""
        works = [self._work[command.attempt] for command in commands]
        share = self._profiles.share(self._outline.fuse) if commands[0].unit.trains else 1.0
        training, feeding = [work[0] for work in works], max(work[1] for work in works)
        beside = sum(seconds) - sum(self._outline.with_batches(*work) for work in works)
        return beside + self._outline.with_batches((1 - share) * max(training) + share * sum(training), feeding)

    def _metrics(self, trial: Trial, epoch: int) -> dict[str, float]:
        # No epoch beats the first one, so both the best and the last version are kept.
        return {self._outline.goal.metric.removeprefix("train_"): 1.0}


def worth_profiling(outline: Outline, batch_size: int) -> bool:
    """Whether profiling can improve the schedule, and its first configuration is a small part of the run."""
    batches = outline.trials * outline.epochs * sum(outline.rows) / batch_size / outline.workers
    return outline.workers > 1 and outline.trials > outline.workers and SHARE * batches >= 1 + BATCHES


def measure(
    probe: Probe,
    configs: Mapping[int, Config],
    outline: Outline,
    known: Mapping[int, Profile],
    clock: Callable[[], float] = time.perf_counter,
) -> Profiles:
    """Profile configurations in a small share of the run's expected time, with that of ``known``.

    A policy that knows which trials are long saves up to the time of one unit at the end of a run, so profiling must
    be cheap: as soon as there are enough profiles for a prediction, it takes no longer than a unit.
    """
    spent = sum(profile.seconds for profile in known.values())

    def budget(found: Mapping[int, Profile]) -> float:
        if not found:
            return SLOW
        profiles = Profiles(found)
        run = outline.lower_bound(profiles)
        most = min(SHARE * run, max(SLOW, LONG_SHARE * run)) - spent
        return most if profiles.timings < ENOUGH else min(most, outline.longest_unit(profiles))

    return profile_trials(probe, configs, seed=outline.seed, known=known, budget=budget, clock=clock)


def predict(outline: Outline, found: Profiles, clock: Callable[[], float] = time.thread_time) -> Rehearsal | None:
    """Predict the run in a small share of its expected time; None if it would take longer, or too little is known."""
    timed = found.timings
    every = len(found.found) + len(found.failed) == outline.trials
    if not timed or not (every or timed >= ENOUGH) or outline.trials * outline.per_trial > SIMULATED:
        return None
    until = clock() + PREDICTING * outline.lower_bound(found)
    rehearsal = Rehearsal(outline, found).run(until, clock)
    return rehearsal if rehearsal.complete else None
