"""One experiment in virtual time: its searches, its fleet, and the faults that strike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hopfleet.controller.controller import Controller
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import Random
from hopfleet.search.base import Clone, Goal, Stop, Suggestion, Train

FAULTS = (
    *(
        "lose",
        "leave",
        "join",
        "raise",
        "unsavable",
        "unloadable",
        "deadly",
        "vanish",
        "rot",
        "forget",
        "repeat",
        "drain",
        "crash",
        "cut",
    ),
    *("zombie", "mute", "deaf", "late", "unwritten", "partial", "refuse"),
)
REQUESTS = ("stop", "resume", "delete", "clone", "add", "prioritise", "pause", "proceed", "workers", "extend")


@dataclass(frozen=True)
class Fault:
    step: int
    kind: str
    pick: int = 0


@dataclass(frozen=True)
class Setting:
    """One experiment, its fleet and what goes wrong."""

    workers: tuple[tuple[int, ...] | None, ...] = (None,)
    partitions: int = 2
    valid: int = 1
    evaluators: tuple[tuple[int, ...] | None, ...] = ()  #: the validation partitions of each worker; empty: all
    whole: bool = False  #: metrics need the rows of all validation partitions at once
    trials: int = 2
    epochs: int = 2
    stops: dict[int, int] = field(default_factory=dict)  #: trial number -> the epoch that the search stops it after
    policy: str = "longest-remaining"
    max_live: int = 256
    seed: int = 0
    steady: bool = True  #: every unit takes one second
    brisk: bool = False  #: units take a twentieth of the time
    save_seconds: float = 0.0  #: at most
    faults: tuple[Fault, ...] = ()
    together: int = 0  #: the most trials that train together; 0: none do
    sticky: bool = False  #: trials stay where their models are
    lookahead: bool = False  #: workers are told ahead what comes next
    playful: bool = False  #: the search pauses, resumes and clones trials
    fixed: bool = False  #: the order of visits is fixed beforehand
    moment: float | None = None  #: seconds in which events are taken in together; None: one by one

    @property
    def metric(self) -> str:
        return "loss" if self.valid else "train_loss"


class Stopping(Random):
    """Random search that stops some trials early."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.trials, setting.epochs)
        self.stops = setting.stops
        self.setup({"x": 1}, seed=setting.seed, goal=Goal(setting.metric, "min"))

    def observe(self, trial, epoch, metrics):
        return [Stop(trial.id, "early")] if self.stops.get(trial.number) == epoch < self.max_epochs else []


class Playful(Stopping):
    """A search that lets trials train for an epoch at a time, and now and then has one go on with another's model."""

    MOST_CLONES = 6

    def setup(self, space, *, seed, goal):
        super().setup(space, seed=seed, goal=goal)
        self.clones = 0
        self.paused: dict[str, int] = {}

    def suggest(self, number):
        suggestion = super().suggest(number)
        return None if suggestion is None else Suggestion(suggestion.config, 1 + number % self.max_epochs)

    def added(self, trial):
        self.clones += trial.parent is not None

    def observe(self, trial, epoch, metrics):
        decisions = list(super().observe(trial, epoch, metrics))
        dice = random.Random(f"{self.seed} {trial.id} {epoch}").random()
        if dice < 0.3 and self.clones < self.MOST_CLONES and self.paused:
            return [*decisions, Clone(min(self.paused), {"x": 2}, replaces=trial.id)]
        if dice < 0.6:
            decisions.append(Train(trial.id, min(epoch + 1, self.max_epochs)))
        elif self.paused:
            decisions.append(Train(*self.paused.popitem()))
        self.paused[trial.id] = self.max_epochs
        return decisions

    def ended(self, trial, state):
        self.paused.pop(trial.id, None)
        return [Train(*self.paused.popitem())] if self.paused else []


def controller_of(setting: Setting) -> Controller:
    return Controller(
        (Playful if setting.playful else Stopping)(setting),
        POLICIES[setting.policy](),
        partitions=setting.partitions,
        valid_partitions=setting.valid,
        seed=setting.seed,
        max_live=setting.max_live,
        fixed_order=setting.fixed,
        fusion=Fusion(lambda config: None, most=setting.together) if setting.together else None,
        sticky=setting.sticky,
        lookahead=setting.lookahead,
    )


def pick(options: Sequence, fault: Fault):
    return options[fault.pick % len(options)]


def covered(workers: Sequence[tuple[int, ...] | None], partitions: int) -> bool:
    """Whether every partition can be read by some worker."""
    return any(w is None for w in workers) or set(range(partitions)) <= set().union(*filter(None, workers))
