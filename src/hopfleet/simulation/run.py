"""Experiments with a list of trials in virtual time, and what comes of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import RunStarted
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config
from hopfleet.errors import UsageError, WorkersLost
from hopfleet.monitor.history import History
from hopfleet.runtime.driver import Effects
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Goal, Search, Suggestion
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver
from hopfleet.support import registry
from hopfleet.support.files import remove_file, write_text
from hopfleet.version import __version__


@dataclass(frozen=True, slots=True)
class Simulation:
    """The outcome of a simulated run."""

    policy: str
    seed: int
    trials: int
    workers: int
    makespan: float
    lower_bound: float
    schedule_seconds: float  #: real seconds that the controller took for all its decisions
    decisions: int
    history: History

    @property
    def ratio(self) -> float:
        return self.makespan / self.lower_bound

    @property
    def utilisation(self) -> dict[str, float]:
        """Return the share of the makespan in which each worker trained."""
        return {name: worker.busy / self.makespan for name, worker in self.history.workers.items()}

    def as_json(self) -> dict[str, Any]:
        names = (
            *("policy", "seed", "trials", "workers", "makespan", "lower_bound", "ratio"),
            *("schedule_seconds", "decisions", "utilisation"),
        )
        return {name: getattr(self, name) for name in names}

    def gantt(self, path: str | os.PathLike[str]) -> Path:
        """Draw the schedule as a PNG, SVG or PDF file, or as an HTML page."""
        from hopfleet.monitor.charts.gantt import draw_gantt

        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"path={path!r}: must be the name of a file that ends in .png, .svg, .pdf or .html")
        target = Path(path)
        if target.suffix != ".html":
            draw_gantt(self.history, target)
            return target
        picture = target.with_suffix(".svg")
        draw_gantt(self.history, picture)
        title = f"{self.policy}: makespan {self.makespan:.4g}, {self.ratio:.4f} of the lower bound"
        head = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>"
        write_text(target, head + picture.read_text(encoding="utf-8"), durable=False)
        remove_file(picture)
        return target


class Listed(Search):
    """A number of trials that all train to the end, with the hyper-parameters that are known, by trial number.

    If it ``listens``, ``together`` trials wait for one another at the end of each epoch.
    """

    def __init__(
        self,
        trials: int,
        epochs: int,
        *,
        goal: Goal | None = None,
        configs: Mapping[int, Config] | None = None,
        listens: bool = True,
        together: int = 0,
    ) -> None:
        self._count, self.max_epochs, self.listens = trials, epochs, listens
        self._configs, self._together = configs or {}, together
        self.goal = goal or Goal("train_loss", "min")

    @property
    def trials(self) -> int:
        return self._count

    def concurrency(self, workers: int) -> int:
        return self._together or super().concurrency(workers)

    def suggest(self, number: int) -> Suggestion | None:
        return Suggestion(dict(self._configs.get(number, {})), self.max_epochs) if number < self._count else None


def error_of(seed: int, noise: float) -> Callable[[int, int, int], float]:
    """Return the factor between the actual and the expected time of a unit, by trial, epoch and partition."""

    def error(trial: int, epoch: int, partition: int) -> float:
        if not noise:
            return 1.0
        return random.Random(derive(seed, "noise", trial, epoch, partition)).lognormvariate(0.0, noise)

    return error


def run_trials(
    search: Listed,
    backend: Simulated,
    *,
    workers: int,
    estimates: Estimates,
    partitions: int,
    policy: str,
    seed: int,
    lower_bound: float,
    name: str,
    effects: Effects | None = None,
    **controls: Any,
) -> Simulation:
    """Run all trials of a search at once on simulated workers; ``controls`` go to the controller."""
    controller = Controller(
        search,
        registry.find("policy", policy, POLICIES)(),
        partitions=partitions,
        valid_partitions=0,
        seed=seed,
        max_live=search.trials,
        estimates=estimates,
        **controls,
    )
    history = History(metric="train_loss", mode="min", partitions=partitions, name=f"{name} ({policy})")
    driver = simulated_driver(controller, backend, [history], effects=effects)
    backend.start(None, workers)
    spent, decisions = 0.0, 0
    for events in driver.moments([RunStarted(__version__, workers)]):
        began = time.perf_counter()
        messages = driver.decide(events)
        spent += time.perf_counter() - began
        decisions += 1
        driver.follow(messages)
    if not controller.finished:
        raise WorkersLost(f"the simulation cannot continue at {backend.elapsed:.4g} s: no worker is left")
    return Simulation(
        policy=policy,
        seed=seed,
        trials=search.trials,
        workers=workers,
        makespan=backend.makespan,
        lower_bound=lower_bound,
        schedule_seconds=spent,
        decisions=decisions,
        history=history,
    )
