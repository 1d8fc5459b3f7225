"""Whole experiments in virtual time, checked at every step: what the suites of searches, rules and policies share."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.domain.trial import Trial, TrialState
from hopfleet.errors import InvariantBroken
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.driver import Driver
from hopfleet.runtime.effects import missing_versions
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Clone, Decision, Goal, Search, Stop, Suggestion, Train
from hopfleet.search.stopping import Stopping
from hopfleet.simulation.backend import Failure, Simulated
from hopfleet.simulation.driver import simulated_driver

MANY_STEPS = 200_000
"""Steps after which an experiment counts as endless."""


class Searched(Protocol):
    """A suite that makes the search under test."""

    @property
    def space(self) -> spaces.Space: ...

    def make(self) -> Search: ...


@dataclass(frozen=True)
class VirtualExperiment:
    """One experiment: its size, its learning curves, and what happens at which step."""

    seed: int = 0
    workers: int = 2
    partitions: int = 2
    valid: int = 1
    mode: str = "min"
    policy: str = "longest-remaining"
    max_live: int = 256
    steady: bool = True
    decimals: int = 9  #: of metrics; few decimals make ties
    diverging: float = 0.0  #: share of trials that end in NaN
    failing: float = 0.0  #: share of trials that raise an exception
    lost: int = 0  #: workers that are lost and come back
    troubles: Mapping[int, str] = field(default_factory=dict)  #: requests and restarts, by step
    deterministic: bool = False  #: whether trials train in rounds, in orders that the seed fixes
    held: Sequence[Sequence[int]] | None = None  #: the partitions that each worker can read; None stands for all

    @classmethod
    def made(cls, seed: int, troubles: int, **given: Any) -> VirtualExperiment:
        """Return the setting that follows from ``seed``, with up to ``troubles`` faults."""
        rng = random.Random(f"setting {seed} {troubles}")
        kinds = ("add", "clone", "delete", "extend", "prioritise", "restart", "restart", "resume", "stop")
        some = (0.0, 0.0, 0.2, 1.0) if troubles else (0.0,)
        values: dict[str, Any] = {
            "workers": rng.choice((1, 2, 3, 5, 40)),
            "partitions": rng.choice((1, 2, 3)),
            "valid": rng.choice((0, 1, 2)),
            "mode": rng.choice(("min", "max")),
            "policy": rng.choice(("longest-remaining", "random")),
            "max_live": rng.choice((256, 256, 4)),
            "steady": rng.random() < 0.3,
            "decimals": rng.choice((9, 9, 1, 0)),
            "diverging": rng.choice((0.0, 0.0, 0.3, 1.0)),
            "failing": rng.choice(some),
            "lost": rng.randrange(4) if troubles else 0,
            "troubles": {rng.randrange(120): rng.choice(kinds) for _ in range(rng.randint(0, troubles))},
        }
        return cls(seed=seed, **(values | given))

    @property
    def goal(self) -> Goal:
        return Goal("loss" if self.valid else "train_loss", self.mode)

    def draw(self, *names: object) -> random.Random:
        return random.Random(f"{self.seed} {names}")

    def metrics(self, trial: Trial, epoch: int) -> Mapping[str, float]:
        """Return the metrics of a curve that falls at the trial's own speed to the trial's own level."""
        rng = self.draw("curve", trial.number)
        diverges, level, speed = rng.random() < self.diverging, rng.random(), rng.random()
        if diverges and epoch > rng.randrange(3):
            return {"loss": rng.choice((math.nan, math.nan, math.inf, -math.inf))}
        noise = 0.1 * self.draw("noise", trial.number, epoch).random()
        return {"loss": round(level + math.exp(-speed * epoch) + noise, self.decimals)}

    def seconds(self, command: m.RunUnit, trial: Trial) -> float:
        if self.steady:
            return 1.0
        return self.draw("unit", trial.number, command.unit.epoch, command.unit.partition).choice(
            (0.0, 0.25, 1.0, 2.0, 7.0)
        )

    def fails(self, command: m.RunUnit, trial: Trial) -> bool:
        if not self.failing:
            return False
        rng = self.draw("failing", trial.number)
        return rng.random() < self.failing and command.unit.epoch > rng.randrange(4)

    def failures(self) -> list[Failure]:
        rng = self.draw("lost")
        times = [rng.uniform(0, 30) for _ in range(self.lost)]
        return [Failure(at, f"w{rng.randint(1, self.workers)}", at + rng.choice((0.0, 3.0))) for at in times]


class Watched(Stopping):
    """The search under test; every answer is checked."""

    def __init__(self, search: Search) -> None:
        super().__init__(search, [])
        self.names: set[str] = set()

    def suggest(self, number: int) -> Suggestion | None:
        suggestion = super().suggest(number)
        assert super().suggest(number) == suggestion, f"another answer when asked again for suggestion {number}"
        if suggestion is not None:
            assert 1 <= suggestion.epochs <= self.max_epochs, f"{suggestion}: max_epochs is {self.max_epochs}"
            self._check_config(suggestion.config)
        return suggestion

    def added(self, trial: Trial) -> None:
        self.names.add(trial.id)
        super().added(trial)

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        return [*map(self._checked, super().observe(trial, epoch, metrics))]

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        return [*map(self._checked, super().ended(trial, state))]

    def conclude(self) -> Sequence[Decision]:
        return [*map(self._checked, super().conclude())]

    def _checked(self, decision: Decision) -> Decision:
        match decision:
            case Train():
                assert decision.trial in self.names, f"{decision}: unknown trial"
                assert 1 <= decision.epochs <= self.max_epochs, f"{decision}: max_epochs is {self.max_epochs}"
            case Stop():
                assert decision.trial in self.names, f"{decision}: unknown trial"
                assert decision.reason, f"{decision}: give a reason"
            case Clone():
                assert decision.parent in self.names, f"{decision}: unknown parent"
                assert not decision.replaces or decision.replaces in self.names, f"{decision}: unknown trial"
                assert 0 <= decision.epochs <= self.max_epochs, f"{decision}: max_epochs is {self.max_epochs}"
                self._check_config(decision.config)
        return decision

    def _check_config(self, config: Mapping[str, Any]) -> None:
        assert spaces.plain(config) == config, f"{config}: is not JSON"
        for name, value in spaces.values(self.space, config).items():
            dimension = spaces.dimensions(self.space)[name]
            if isinstance(dimension, spaces.Choice):
                assert value in dimension.options, f"{name}={value!r}: is not an option"
            elif isinstance(dimension, spaces.Integer | spaces.Float):
                assert type(value) is (int if isinstance(dimension, spaces.Integer) else float), f"{name}={value!r}"
                bounds = (dimension.low, dimension.high)  # not always multiples of the step
                assert value in bounds or dimension.nearest(value) == value, f"{name}={value!r}: is not in {dimension}"


@dataclass
class Known:
    """What the journal contains about a trial."""

    epochs: int  #: epochs that the trial may train
    origin: str
    trained: int = 0
    state: str = "live"


class Run:
    """One experiment from its first event to its last, checked at every step."""

    def __init__(self, suite: Searched, setting: VirtualExperiment, search: Search | None = None) -> None:
        self.suite, self.setting = suite, setting
        self.rng = setting.draw("run")
        self.messages: list[m.Message] = []
        self.known: dict[str, Known] = {}
        self._curves: dict[tuple[int, int], Mapping[str, float]] = {}
        #: Whether a request to add a trial was granted and the trial is still to come.
        self._adds = False
        self.backend = Simulated(
            setting.seconds,
            self._metrics,
            partitions=setting.held,
            failures=setting.failures(),
            fails=setting.fails,
            clock=0.0,
        )
        self.controller = self._controller(suite.make() if search is None else search)
        self._driver = self._drive()

    @property
    def search(self) -> Search:
        """The search under test."""
        watched = self.controller.search
        assert isinstance(watched, Watched)
        return watched.search

    def journal(self) -> list[str]:
        """Return all messages as text."""
        return [json.dumps(m.encode(message)) for message in self.messages]

    def go(self) -> Run:
        self.backend.start(None, self.setting.workers)
        self._take(m.RunStarted("test", self.setting.workers))
        for step in itertools.count():
            assert step < MANY_STEPS, "the experiment does not end"
            trouble = self.setting.troubles.get(step)
            if trouble is not None and not self.controller.finished:
                self._trouble(trouble)
            if self.controller.finished:
                break
            events = self.backend.receive(0.0)
            assert events, f"nothing runs, and the experiment is not finished: {self.known}"
            for event in events:
                self._take(event)
            if step % 8 == 0:
                validate(self.controller.schedule)
        self._check_end()
        return self

    def _metrics(self, trial: Trial, epoch: int) -> Mapping[str, float]:
        where = trial.number, epoch
        if where not in self._curves:
            self._curves[where] = self.setting.metrics(trial, epoch)
        return self._curves[where]

    def _policy(self) -> Policy:
        return POLICIES[self.setting.policy]()

    def _observers(self) -> Sequence[Observer]:
        """Return the observers of a run that starts or continues."""
        return ()

    def _drive(self) -> Driver:
        return simulated_driver(self.controller, self.backend, self._observers(), journal=self._write)

    def _controller(self, search: Search) -> Controller:
        setting, watched = self.setting, Watched(search)
        watched.setup(self.suite.space, seed=setting.seed, goal=setting.goal)
        return Controller(
            watched,
            self._policy(),
            partitions=setting.partitions,
            valid_partitions=setting.valid,
            seed=setting.seed,
            max_live=setting.max_live,
            fixed_order=setting.deterministic,
            deterministic=setting.deterministic,
        )

    # ------------------------------------------------------------------------------------------------ events

    def _take(self, event: m.Event) -> None:
        self._driver.step([event])
        self._check_paused()

    def _write(self, now: float, messages: Sequence[m.Message]) -> None:
        """Keep messages as a journal does, and check them."""
        self.messages += messages
        event, *follow = messages
        request = event if isinstance(event, m.RequestMade) else None
        for message in follow:
            if isinstance(message, m.RequestAnswered) and not message.granted:
                request = None
            self._check(message, request)

    def _trouble(self, kind: str) -> None:
        if kind == "restart":
            self._restart()
            return
        schedule = self.controller.schedule
        names = [*schedule.trials, *schedule.parked]
        trial = self.rng.choice(names) if names else "missing"
        longest = self.controller.search.max_epochs + 2
        arguments: Mapping[str, dict[str, Any]] = {
            "add": {"config": self.controller.search.examples(1)[0]},
            "clone": {"trial": trial, "warm": self.rng.random() < 0.5},
            "delete": {"trial": trial},
            "extend": {"trials": self.rng.randint(1, 3)},
            "prioritise": {"trial": trial},
            "resume": {"trial": trial, "epochs": self.rng.choice((None, self.rng.randint(1, longest)))},
            "stop": {"trial": trial},
        }
        self._take(m.RequestMade(kind, arguments[kind], number=1))

    def _restart(self) -> None:
        """Lose all workers and all versions that are not durable; continue with a new controller."""
        before = self.controller.search
        twin = self._restored().search
        self._check_alike(before, twin)
        self.controller = self._restored()
        self.backend.end()
        self._driver = self._drive()
        missing = list(missing_versions(self.controller.schedule, self.backend.saved))
        self._take(m.RunStarted("test", self.setting.workers))
        for event in missing:
            self._take(event)
        self.backend.start(None, self.setting.workers)

    def _restored(self) -> Controller:
        controller = self._controller(self.suite.make())
        controller.restore([m.decode(*json.loads(text)) for text in self.journal()])
        return controller

    def _check_alike(self, before: Search, twin: Search) -> None:
        """Check that a restored search answers like the search before. Neither is used afterwards."""
        added = sum(known.origin == "search" for known in self.known.values())
        bounds = [(search.trials, search.max_epochs) for search in (before, twin)]
        assert bounds[0] == bounds[1], f"(trials, max_epochs) are {bounds[1]} after a restart, not {bounds[0]}"
        suggestions = [search.suggest(added) for search in (before, twin)]
        assert suggestions[0] == suggestions[1], f"{suggestions[1]} after a restart, not {suggestions[0]}"
        for name, progress in self.controller.schedule.trials.items():
            for value in (0.1, 0.9):
                told = (progress.trial, progress.epochs_ended + 1, {self.setting.goal.metric: value})
                assert list(before.observe(*told)) == list(twin.observe(*told)), f"{name} after a restart"

    # ------------------------------------------------------------------------------------------------ checks

    def _check(self, message: m.Message, request: m.RequestMade | None) -> None:
        longest = self.controller.search.max_epochs
        requested = {} if request is None else request.arguments
        match message:
            case m.TrialAdded(trial=trial):
                person = self._adds
                self._adds = False
                assert person or message.epochs <= longest, message
                origin = "person" if person else message.origin
                self.known[trial] = Known(message.epochs, origin, len(message.visits) // self.setting.partitions)
            case m.RequestAnswered(granted=True):
                self._adds = request is not None and request.request in ("add", "clone")
            case m.TrialResumed(trial=trial):
                known = self.known[trial]
                person = requested.get("trial") == trial
                assert person or (message.epochs <= longest and known.state in ("live", "paused")), message
                known.epochs, known.state = message.epochs, "live"
            case m.EpochEnded(trial=trial):
                known = self.known[trial]
                assert message.epoch == known.trained + 1 <= known.epochs, message
                known.trained += 1
            case m.TrialStopped(trial=trial):
                self.known[trial].state = "stopping"
            case m.TrialEnded(trial=trial):
                self.known[trial].state = "ended"
            case m.TrialPaused(trial=trial):
                assert self.known[trial].state == "live", message
                self.known[trial].state = "paused"
            case m.TrialDeleted(trial=trial):
                self.known[trial].state = "deleted"
            case m.RunStalled(text=text):
                raise InvariantBroken(text)
            case m.RunUnit(trial=trial):
                known = self.known[trial]
                # A stopped trial whose last version was lost trains that version again, and nothing new.
                again = known.state == "stopping" and message.unit.epoch <= known.trained
                assert known.state == "live" or again, f"{message}: the trial is {known.state}"
            case _:
                pass

    def _check_paused(self) -> None:
        """Check that every paused trial is parked with a durable version."""
        for name, known in self.known.items():
            if known.state == "paused":
                progress = self.controller.schedule.parked[name]
                assert progress.state is TrialState.PAUSED, name
                assert progress.version == known.trained * self.setting.partitions, name
                assert progress.durable(progress.version), f"{name}: its model is not durable"

    def _check_end(self) -> None:
        assert self.messages[-1] == m.Finish(complete=True), f"ends with {self.messages[-1]}"
        validate_history(self.messages, self.setting.partitions)
        own = sum(known.origin in ("search", "clone") for known in self.known.values())
        assert own <= self.controller.search.trials, f"{own} trials instead of {self.controller.search.trials}"
        for name, known in self.known.items():
            assert known.state in ("ended", "paused", "deleted"), f"{name}: is {known.state} at the end"
