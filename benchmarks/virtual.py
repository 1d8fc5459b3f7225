"""Searches in virtual time: ours through the controller with hopping, others with one worker for each trial.

Both train the same synthetic models on the same number of workers, until a deadline. A *task-parallel* worker takes a
trial, trains it epoch after epoch on its own copy of all data, and takes the next trial when told to stop.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import EpochEnded, RunStarted, RunUnit, TrialAdded
from hopfleet.domain.space import Space
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Goal, Search, Train
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver


class World(Protocol):
    """The models to train."""

    def start(self, trial: str, parent: str = "", epoch: int = 0) -> None: ...

    def accuracy(self, trial: str, config: Config, epoch: int) -> float: ...


@dataclass
class Log:
    """The course of a search: time, trial, epoch and accuracy of every finished epoch."""

    epochs: list[tuple[float, str, int, float]] = field(default_factory=list)

    def explored(self) -> int:
        """Count the trials that have trained for at least one epoch."""
        return len({trial for _, trial, _, _ in self.epochs})

    def first(self, target: float) -> float | None:
        """Return when the target was met."""
        return next((time for time, _, _, value in self.epochs if value >= target), None)

    def best(self) -> list[tuple[float, float]]:
        """Return the best accuracy so far, at each improvement."""
        steps: list[tuple[float, float]] = []
        for time, _, _, value in self.epochs:
            if not steps or value > steps[-1][1]:
                steps.append((time, value))
        return steps


def hopping(
    search: Search,
    space: Space,
    world: World,
    seconds: Callable[[Config], float],
    *,
    workers: int,
    until: float,
    seed: int,
    policy: str = "auto",
    max_live: int = 256,
) -> Log:
    """Run our search: one partition per worker; a unit takes its share of an epoch."""
    search.setup(space, seed=seed, goal=Goal("accuracy", "max"))
    controller = Controller(
        search, POLICIES[policy](), partitions=workers, valid_partitions=1, seed=seed, max_live=max_live
    )

    def unit(command: RunUnit, trial: Trial) -> float:
        return seconds(trial.config) / workers if command.unit.trains else 0.0

    def metrics(trial: Trial, epoch: int) -> dict[str, float]:
        return {"accuracy": world.accuracy(trial.id, trial.config, epoch)}

    backend = Simulated(unit, metrics, partitions=[[worker] for worker in range(workers)])
    backend.start(None, workers)
    log = Log()

    def start(added: TrialAdded) -> None:
        world.start(added.trial, added.parent, len(added.visits) // workers)

    def end_epoch(ended: EpochEnded) -> None:
        log.epochs.append((backend.elapsed, ended.trial, ended.epoch, ended.metrics["accuracy"]))

    driver = simulated_driver(controller, backend, effects={TrialAdded: start, EpochEnded: end_epoch})
    for events in driver.moments([RunStarted("benchmark", workers)]):
        if backend.elapsed > until:
            break
        driver.step(events)
    return log


def sharing(search: Search, space: Space, world: World, *, workers: int, until: float, seed: int, live: int) -> Log:
    """Run our search without the controller: up to ``live`` trials share the workers evenly, an epoch takes a second.

    This takes a small part of the time of ``hopping``, and does no more than pausing, resuming and completing trials.
    """
    search.setup(space, seed=seed, goal=Goal("accuracy", "max"))
    trials: dict[str, Trial] = {}
    epochs: dict[str, int] = {}
    left: dict[str, float] = {}  #: the part of each running trial's epoch that is still to be trained
    now, log = 0.0, Log()
    while True:
        while len(left) < live and (suggestion := search.suggest(len(trials))) is not None:
            trial = Trial(f"t{len(trials)}", len(trials), suggestion.config, 0, suggestion.epochs)
            trials[trial.id], epochs[trial.id], left[trial.id] = trial, 0, 1.0
            search.added(trial)
        if not left:
            return log
        rate, name = min(1.0, workers / len(left)), min(left, key=left.__getitem__)
        seconds = left[name] / rate
        now += seconds
        if now > until:
            return log
        left = {other: part - seconds * rate for other, part in left.items()}
        epochs[name] += 1
        trial, epoch = trials[name], epochs[name]
        accuracy = world.accuracy(name, trial.config, epoch)
        log.epochs.append((now, name, epoch, accuracy))
        left[name] = 1.0
        if epoch >= trial.epochs:
            del left[name]
        decisions = [*search.observe(trial, epoch, {"accuracy": accuracy})]
        if epoch >= search.max_epochs:
            decisions += search.ended(trial, TrialState.COMPLETED)
        for decision in decisions:
            assert isinstance(decision, Train), "searches that stop or clone trials need the controller"
            trials[decision.trial] = replace(trials[decision.trial], epochs=decision.epochs)
            left.setdefault(decision.trial, 1.0)


# ----------------------------------------------------------------------------------------------- task-parallel


class Tuner(Protocol):
    """The search of another library, as a task-parallel worker sees it."""

    def next(self) -> tuple[str, Config] | None:
        """Return a trial to train from its beginning."""

    def report(self, trial: str, epoch: int, value: float) -> bool:
        """Whether to continue training after an epoch."""


def task_parallel(tuner: Tuner, world: World, seconds: Callable[[Config], float], *, workers: int, until: float) -> Log:
    log = Log()
    queue: list[tuple[float, int, str, Config, int]] = []
    for worker in range(workers):
        _take(tuner, world, seconds, queue, 0.0, worker)
    while queue:
        now, worker, trial, config, epoch = heapq.heappop(queue)
        if now > until:
            break
        value = world.accuracy(trial, config, epoch)
        log.epochs.append((now, trial, epoch, value))
        if tuner.report(trial, epoch, value):
            heapq.heappush(queue, (now + seconds(config), worker, trial, config, epoch + 1))
        else:
            _take(tuner, world, seconds, queue, now, worker)
    return log


def _take(
    tuner: Tuner,
    world: World,
    seconds: Callable[[Config], float],
    queue: list[tuple[float, int, str, Config, int]],
    now: float,
    worker: int,
) -> None:
    taken = tuner.next()
    if taken is not None:
        trial, config = taken
        world.start(trial)
        heapq.heappush(queue, (now + seconds(config), worker, trial, config, 1))


@dataclass
class Restarting:
    """ASHA as a pool of tasks runs it: a promoted configuration is a new task, which trains from the beginning."""

    configs: Callable[[int], Config]
    rungs: Sequence[int]
    eta: int = 3
    _number: int = 0
    _scores: dict[int, dict[str, float]] = field(default_factory=dict)
    _promoted: set[tuple[int, str]] = field(default_factory=set)
    _config: dict[str, Config] = field(default_factory=dict)
    _rung: dict[str, int] = field(default_factory=dict)

    def next(self) -> tuple[str, Config] | None:
        for level in reversed(range(len(self.rungs) - 1)):
            scores = self._scores.get(level, {})
            best = sorted(scores, key=scores.__getitem__, reverse=True)[: len(scores) // self.eta]
            for name in best:
                if (level, name) not in self._promoted:
                    self._promoted.add((level, name))
                    return self._task(name, level + 1)
        self._number += 1
        name = f"c{self._number}"
        self._config[name] = self.configs(self._number)
        return self._task(name, 0)

    def _task(self, name: str, level: int) -> tuple[str, Config]:
        task = f"{name}/{level}"
        self._rung[task] = level
        return task, self._config[name]

    def report(self, trial: str, epoch: int, value: float) -> bool:
        level = self._rung[trial]
        if epoch < self.rungs[level]:
            return True
        self._scores.setdefault(level, {})[trial.split("/")[0]] = value
        return False

    def explored(self) -> int:
        return len(self._scores.get(0, {}))


@dataclass
class RayASHA:
    """Ray Tune's AsyncHyperBandScheduler on random configurations. It stops trials, and resumes none."""

    configs: Callable[[int], Config]
    max_epochs: int
    eta: int = 3

    def __post_init__(self) -> None:
        from ray.tune.schedulers import AsyncHyperBandScheduler

        self._scheduler = AsyncHyperBandScheduler(
            time_attr="epoch", metric="accuracy", mode="max", max_t=self.max_epochs, reduction_factor=self.eta
        )
        self._trials: dict[str, _RayTrial] = {}

    def next(self) -> tuple[str, Config] | None:
        name = f"r{len(self._trials) + 1}"
        self._trials[name] = _RayTrial(name)
        self._scheduler.on_trial_add(None, self._trials[name])
        return name, self.configs(len(self._trials))

    def report(self, trial: str, epoch: int, value: float) -> bool:
        result = {"epoch": epoch, "accuracy": value, "training_iteration": epoch}
        decision = self._scheduler.on_trial_result(None, self._trials[trial], result)
        return bool(decision == "CONTINUE") and epoch < self.max_epochs


@dataclass
class _RayTrial:
    trial_id: str


@dataclass
class OptunaPruner:
    """Optuna's TPE with a pruner. It prunes trials, and resumes none."""

    space: Space
    max_epochs: int
    pruner: str
    seed: int

    def __post_init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruners: dict[str, Any] = {
            "median": optuna.pruners.MedianPruner,
            "halving": partial(optuna.pruners.SuccessiveHalvingPruner, reduction_factor=3),
        }
        self._study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=self.seed, constant_liar=True),
            pruner=pruners[self.pruner](),
        )
        self._trials: dict[str, optuna.Trial] = {}
        self._last: dict[str, float] = {}

    def next(self) -> tuple[str, Config] | None:
        trial = self._study.ask()
        config = {
            "lr": trial.suggest_float("lr", 1e-4, 1.0, log=True),
            "momentum": trial.suggest_float("momentum", 0.0, 0.99),
            "width": trial.suggest_int("width", 16, 1024, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.7),
        }
        name = f"o{trial.number + 1}"
        self._trials[name] = trial
        return name, config

    def report(self, trial: str, epoch: int, value: float) -> bool:
        import optuna

        running = self._trials[trial]
        running.report(value, epoch)
        if epoch >= self.max_epochs:
            self._study.tell(running, value)
            return False
        if running.should_prune():
            self._study.tell(running, state=optuna.trial.TrialState.PRUNED)
            return False
        return True


@dataclass
class Patient:
    """Random search: every configuration to its end."""

    configs: Callable[[int], Config]
    max_epochs: int
    _number: int = 0

    def next(self) -> tuple[str, Config] | None:
        self._number += 1
        return f"p{self._number}", self.configs(self._number)

    def report(self, trial: str, epoch: int, value: float) -> bool:
        return epoch < self.max_epochs


def rng_of(*parts: object) -> random.Random:
    return random.Random(" ".join(map(str, parts)))
