"""Histories made by the real controller on simulated workers, with searches that pause, resume and clone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

import hopfleet as hop
from hopfleet.controller.controller import Controller
from hopfleet.domain import space as spaces
from hopfleet.domain.choices import Mode
from hopfleet.domain.messages import EpochEnded, Message, RunStarted, TrialAdded
from hopfleet.domain.trial import Trial
from hopfleet.monitor.history import History
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Clone, Decision, Goal, Search, Suggestion, Train
from hopfleet.simulation.backend import Simulated
from hopfleet.simulation.driver import simulated_driver

RATE = {"lr": hop.loguniform(1e-4, 1e-1)}

Metrics = Callable[[Trial, int], Mapping[str, float]]


def made(
    search: Search,
    space: Mapping[str, Any],
    metrics: Metrics,
    *,
    metric: str = "accuracy",
    mode: Mode = "max",
    look: Callable[[History], None] = lambda history: None,
) -> History:
    """The history of a whole experiment over 2 partitions with 4 workers; ``look`` sees it after each step."""
    search.setup(space, seed=0, goal=Goal(metric, mode))
    backend = Simulated(metrics=metrics)
    controller = Controller(
        *(search, POLICIES["longest-remaining"]()),
        partitions=2,
        valid_partitions=1,
        seed=0,
        estimates=Estimates([1, 1]),
    )
    history = History(metric=metric, mode=mode, partitions=2, name="digits", expected=search.expected())
    backend.start(None, 4)
    driver = simulated_driver(controller, backend, [history])
    for events in driver.moments([RunStarted("0")]):
        for event in events:
            driver.step([event])
            look(history)
    assert controller.finished
    return history


class Drawn(Search):
    """Draws ``trials`` configurations from the space; they pause after ``first`` epochs."""

    def __init__(self, trials: int, first: int, max_epochs: int) -> None:
        self._trials, self.first, self.max_epochs = trials, first, max_epochs
        self.scores: dict[int, dict[str, float]] = {}
        self.configs: dict[str, Any] = {}

    @property
    def trials(self) -> int:
        return self._trials

    def suggest(self, number: int) -> Suggestion | None:
        config = spaces.configure(self.space, seed=self.seed, number=number)
        return Suggestion(config, self.first) if number < self._trials else None

    def added(self, trial: Trial) -> None:
        self.configs[trial.id] = trial.config


class Halving(Drawn):
    """A third of those that come to a rung go on to the next, which is three times as far."""

    def __init__(self, trials: int, max_epochs: int) -> None:
        super().__init__(trials, 1, max_epochs)
        self.told: set[tuple[int, str]] = set()

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        here = self.scores.setdefault(epoch, {})
        here[trial.id] = self.goal.cost(metrics)
        if epoch not in (1, 3, 9, 27) or epoch >= self.max_epochs:
            return ()
        best = sorted(here, key=here.__getitem__)[: len(here) // 3]
        new = [name for name in best if (epoch, name) not in self.told]
        self.told.update((epoch, name) for name in new)
        return [Train(name, 3 * epoch) for name in new]


class Population(Drawn):
    """Every two epochs the worst quarter is replaced by clones of the best, with another learning rate."""

    def __init__(self, trials: int, max_epochs: int) -> None:
        super().__init__(trials, max_epochs, max_epochs)
        self.random = random.Random(0)

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        here = self.scores.setdefault(epoch, {})
        here[trial.id] = self.goal.cost(metrics)
        if epoch % 2 or epoch >= self.max_epochs or len(here) != self._trials:
            return ()
        order = sorted(here, key=here.__getitem__)
        count = max(1, self._trials // 4)
        config = self.configs[order[0]]
        return [
            Clone(order[0], {**config, "lr": config["lr"] * self.random.choice([0.5, 2.0])}, replaces=worst)
            for worst in order[-count:]
        ]


def history_of(*trials: tuple[Mapping[str, Any], Mapping[str, float] | None], mode: Mode = "max") -> History:
    """Trials t0, t1, ... with a configuration each and the metrics of their only epoch, if it has ended."""
    messages: list[Message] = []
    for index, (config, metrics) in enumerate(trials):
        messages.append(TrialAdded(f"t{index}", index, config, 0, 1))
        if metrics is not None:
            messages.append(EpochEnded(f"t{index}", 1, 2, metrics, True))
    return History.of([(0.0, each) for each in messages], metric="accuracy", mode=mode, partitions=2, name="digits")


def texts(figure: Figure) -> str:
    found = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    ticks = [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    labels = [label for axes in figure.axes for label in (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left"))]
    return "\n".join([*(text.get_text() for text in (*found, *ticks)), *labels])


def named(figure: Figure, name: str) -> list[Any]:
    return [artist for axes in figure.axes for artist in axes.get_children() if artist.get_gid() == name]
