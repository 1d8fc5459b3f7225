"""What every search procedure promises.

The controller owns one search. It calls ``setup`` once; then ``suggest`` whenever it has room for another trial and
``added`` when there is one; ``observe`` after every epoch of every trial; ``ended`` when a trial has ended. A search
answers with decisions. It keeps its own state and touches nothing else: no clock, no files, no random numbers but those
that follow from its seed. So the same calls lead to the same state, which is how an experiment is resumed: ``setup``,
``added``, ``observe`` and ``ended`` are called again as the journal tells, and their decisions are not asked for twice.

Trials that the search did not suggest may turn up as well: points to try first, a person's, clones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.objectives import PARAMS, Limit, feasible
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import SpaceError, UsageError
from hopfleet.errors import describe as describe_error

MAX_LIVE = 256
"""How many trials are under way at once. Enough for any schedule to be dense, few enough to bound disk and memory."""

UNLIMITED = 1 << 62
"""More trials than there will ever be: a budget ends the experiment, not the search."""

DRAWS = 1000
"""How many configurations are drawn, at most, to find one that the constraints allow."""

Rule = Callable[[Config], Any]
"""Says of a configuration whether it may be tried."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A configuration, and until which epoch to train it. There it pauses, unless that is the last one of all."""

    config: Config
    epochs: int


@dataclass(frozen=True, slots=True)
class Train:
    """Train a trial until so many epochs; a paused one goes on."""

    trial: str
    epochs: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Train a trial no further. Its model stays."""

    trial: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clone:
    """Add a trial with another configuration that starts with the newest saved model of ``parent``, where ``warm``.

    The trial that it ``replaces`` is stopped. While the parent has no saved model, nothing of this happens.
    """

    parent: str
    config: Config
    warm: bool = True
    replaces: str = ""
    #: Train until then; 0 stands for the search's ``max_epochs``.
    epochs: int = 0


Decision = Train | Stop | Clone


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be optimised: a metric, and others beside it where there are several objectives; and what must hold.

    ``limits`` bind metrics, ``rules`` bind configurations.
    """

    metric: str
    mode: str
    others: tuple[tuple[str, str], ...] = ()
    limits: tuple[Limit, ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def objectives(self) -> tuple[tuple[str, str], ...]:
        """All metrics with their modes, the first one first."""
        return ((self.metric, self.mode), *self.others)

    @property
    def metrics(self) -> list[str]:
        """All metrics that must be known after each epoch."""
        return list(dict.fromkeys([name for name, _ in self.objectives] + [limit.metric for limit in self.limits]))

    @property
    def counts_parameters(self) -> bool:
        """Whether the number of trainable parameters is among them."""
        return PARAMS in self.metrics

    def better(self, value: float, than: float) -> bool:
        """Whether ``value`` beats ``than``. NaN beats nothing, and is beaten by every number."""
        if value != value:
            return False
        if than != than:
            return True
        return value > than if self.mode == "max" else value < than

    def rank(self, metrics: Mapping[str, float]) -> tuple[bool, float]:
        """The smaller, the better: what keeps all limits comes first, then the metric counts."""
        value = metrics.get(self.metric, float("nan"))
        cost = float("inf") if value != value else -value if self.mode == "max" else value
        return not feasible(self.limits, metrics), cost

    def cost(self, metrics: Mapping[str, float]) -> float:
        """The metric as something to be made small; NaN, what is missing or breaks a limit, is the worst of all."""
        broken, cost = self.rank(metrics)
        return float("inf") if broken else cost

    def allows(self, config: Config) -> bool:
        """Whether a configuration may be tried."""
        for rule in self.rules:
            try:
                allowed = rule(config)
            except Exception as error:
                raise SpaceError(f"constraint {name_of(rule)}: raised {describe_error(error)} for {config}") from error
            if not allowed:
                return False
        return True


def name_of(function: Any) -> str:
    """What a function is called."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


@dataclass(frozen=True, slots=True)
class Earlier:
    """A trial of an earlier experiment: what was tried, and the metrics after its last epoch."""

    config: Config
    metrics: Mapping[str, float]


class Search(ABC):
    """A search procedure. ``max_epochs`` is the longest that any trial may train."""

    max_epochs: int
    #: Whether what it suggests depends on what it has seen; then trials are added as others end, not all at once.
    adaptive = False
    #: How many trials are under way at once: a number, "workers" for as many as workers, None for what suits it.
    live: int | str | None = None
    #: Whether it decides nothing before all its trials have begun.
    whole = False

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        """Check the space and start afresh. Raises SpaceError for a space that this search cannot walk."""
        spaces.check(space)
        self.seed, self.goal = seed, goal
        self._walk(space)

    def _walk(self, space: spaces.Space) -> None:
        self.space = space
        #: What ``grid_search`` asks for, to be taken in turn.
        self._turns = spaces.exhaustive_points(space)

    def learn(self, earlier: Sequence[Earlier]) -> int:
        """Hear of trials of earlier experiments, before the first suggestion. Says how many were of use."""
        return 0

    @abstractmethod
    def suggest(self, number: int) -> Suggestion | None:
        """Another trial, the one with this number (0, 1, 2, ...) among those suggested; None if there is none now.

        It may be asked again with the same number, if nothing came of its answer. If there is none and nothing is under
        way, all is done.
        """

    def sample(self, number: int) -> Config | None:
        """A configuration alone, by its number and whatever ``trials`` says: for searches that have a sampler."""
        return self.draw(number)

    def draw(self, number: int) -> Config:
        """The random configuration of that number: its first draw that the goal allows."""
        fixed = self._turns[number % len(self._turns)]

        def attempt(count: int) -> Config:
            name = f"{number}.{count}" if count else number
            return spaces.configure(self.space, seed=self.seed, number=name, fixed=fixed)

        return allowed(self.goal, attempt)

    def added(self, trial: Trial) -> None:  # noqa: B027 (most have nothing to do)
        """Hear of a trial that was added, suggested by this search or not."""

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        """Hear the metrics of a trial after an epoch."""
        return ()

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        """Hear that a trial has ended: it completed, was stopped, or failed. A paused one has not ended."""
        return ()

    def over(self, elapsed: float) -> str:
        """Why the whole experiment should end now, after so many seconds of running; nothing if it should not."""
        return ""

    def concurrency(self, workers: int) -> int:
        """How many trials should be under way with so many workers."""
        if isinstance(self.live, int):
            return self.live
        if self.live is not None:
            return workers
        return 2 * workers if self.streams else MAX_LIVE

    @property
    def streams(self) -> bool:
        """Whether trials are added as others end, since it learns from them or nobody knows how many there will be."""
        return self.adaptive or self.trials >= UNLIMITED

    def examples(self, count: int) -> list[Config]:
        """Up to ``count`` configurations like those that it will suggest, to be looked at before work starts."""
        return [self.draw(number) for number in range(count)]

    @property
    @abstractmethod
    def trials(self) -> int:
        """How many trials there will be at most; known after ``setup``."""

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        """Take in a person's wish for so many more trials, more epochs, and other dimensions.

        Raises UsageError, and changes nothing, if this search cannot.
        """
        raise UsageError(f"search {type(self).__name__}: cannot be extended; add configurations, or clone trials")

    def describe(self) -> dict[str, Any]:
        """The search as JSON, for the record and for comparing two definitions."""
        described = {"search": type(self).__name__, "trials": self.trials, "max_epochs": self.max_epochs}
        return described if self.live is None else {**described, "concurrency": self.live}


def check_concurrency(value: Any) -> int | str | None:
    """``value`` if it can be ``Search.live``, else UsageError."""
    if value is None or value == "workers":
        return value  # type: ignore[no-any-return]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(
            f"concurrency={value!r}: must be how many trials are under way at once, at least 1, or 'workers'; "
            "leave it out for twice as many as workers"
        )
    return value


def allowed(goal: Goal, attempt: Callable[[int], Config], what: str = "configuration") -> Config:
    """The first of many attempts that the goal allows."""
    for count in range(DRAWS):
        config = attempt(count)
        if goal.allows(config):
            return config
    raise SpaceError(
        f"no {what} satisfied {', '.join(map(name_of, goal.rules))} in {DRAWS} draws; make the constraints "
        "looser or the space narrower"
    )


def at_least_one(name: str, value: Any) -> int:
    """``value`` if it is a positive integer, else UsageError."""
    return at_least(1, name, value)


def at_least(least: int, name: str, value: Any) -> int:
    """``value`` if it is an integer of at least ``least``, else UsageError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}={value!r}: must be an integer of at least {least}")
    return value
