"""The contract of every search procedure.

The controller owns one search. It calls ``setup`` once, ``suggest`` whenever there is room for another trial, ``added``
when a trial was added, ``observe`` after every epoch of every trial, and ``ended`` when a trial has ended. A search
answers with decisions. A search keeps its own state and touches nothing else: no clock, no files, and no random numbers
except those derived from its seed. The same calls therefore lead to the same state, which is how an experiment is
resumed: ``setup``, ``added``, ``observe`` and ``ended`` are called again according to the journal, and the decisions
that they return are ignored.

A search also hears of trials that it did not suggest: points to try first, trials that users add, and clones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import MOST, integer
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.expectation import Bound, Expectation
from hopfleet.domain.objectives import PARAMS, Limit, feasible
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import SpaceError, UsageError
from hopfleet.errors import describe as describe_error
from hopfleet.phrases import shown

MAX_LIVE = 256
"""Trials under way at once; enough to keep every schedule dense, few enough to bound disk and memory use."""

UNLIMITED = 1 << 62
"""A number of trials that is never reached: a budget ends the experiment, not the search."""

DRAWS = 1000
"""Draws at most to find a configuration that satisfies the constraints."""

Constraint = Callable[[Config], Any]
"""Whether a configuration may be tried."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A configuration, and the epoch until which to train it. The trial then pauses, or completes at ``max_epochs``."""

    config: Config
    epochs: int


@dataclass(frozen=True, slots=True)
class Train:
    """The decision to train a trial until ``epochs``; a paused trial resumes."""

    trial: str
    epochs: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The decision to stop a trial. Its model is kept."""

    trial: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clone:
    """The decision to add a trial with another configuration that, if ``warm``, starts from the parent's model.

    The model is the newest saved version of ``parent``. The trial that the clone ``replaces`` is stopped. While the
    parent has no saved model, the decision has no effect.
    """

    parent: str
    config: Config
    warm: bool = True
    replaces: str = ""
    #: The epoch until which to train; 0 stands for the search's ``max_epochs``.
    epochs: int = 0


Decision = Train | Stop | Clone


@dataclass(frozen=True, slots=True)
class Goal:
    """The objectives of a search: a metric, further metrics if there are several objectives, and constraints.

    ``limits`` constrain metrics, ``constraints`` constrain configurations.
    """

    metric: str
    mode: str
    others: tuple[tuple[str, str], ...] = ()
    limits: tuple[Limit, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @property
    def objectives(self) -> tuple[tuple[str, str], ...]:
        """Return all metrics to optimise with their modes, the main metric first."""
        return ((self.metric, self.mode), *self.others)

    @property
    def metrics(self) -> list[str]:
        """Return all metrics that must be known after each epoch."""
        return list(dict.fromkeys([name for name, _ in self.objectives] + [limit.metric for limit in self.limits]))

    @property
    def counts_parameters(self) -> bool:
        """Whether the number of trainable parameters is among the metrics."""
        return PARAMS in self.metrics

    def better(self, value: float, than: float) -> bool:
        """Whether ``value`` is better than ``than``; every number is better than NaN."""
        if value != value:
            return False
        if than != than:
            return True
        return value > than if self.mode == "max" else value < than

    def rank(self, metrics: Mapping[str, float]) -> tuple[bool, float]:
        """Return a sort key: results within all limits come first, then better values of the metric."""
        value = metrics.get(self.metric, float("nan"))
        cost = float("inf") if value != value else -value if self.mode == "max" else value
        return not feasible(self.limits, metrics), cost

    def cost(self, metrics: Mapping[str, float]) -> float:
        """Return the metric as a cost to minimise; infinity if it is NaN or missing, or if a limit is broken."""
        broken, cost = self.rank(metrics)
        return float("inf") if broken else cost

    def allows(self, config: Config) -> bool:
        """Whether a configuration may be tried."""
        for constraint in self.constraints:
            try:
                allowed = constraint(config)
            except Exception as error:
                problem = f"raised {describe_error(error)} for {config}"
                raise SpaceError(f"constraint {name_of(constraint)}: {problem}") from error
            if allowed is None:
                raise SpaceError(f"constraint {name_of(constraint)}: returned None; it must return True or False")
            if not allowed:
                return False
        return True


def name_of(function: Any) -> str:
    """Return the name of a function for messages."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


@dataclass(frozen=True, slots=True)
class Earlier:
    """A trial of an earlier experiment: its configuration, and its metrics after the last epoch."""

    config: Config
    metrics: Mapping[str, float]


class Search(ABC):
    """A search procedure. ``max_epochs`` is the largest number of epochs of any trial."""

    def __init_subclass__(cls) -> None:
        explained(cls)

    max_epochs: int
    space: spaces.Space = MappingProxyType({})
    #: Whether suggestions depend on earlier results; trials are then added as others end, not all at once.
    adaptive = False
    #: Whether results affect what the search suggests or decides.
    listens = True
    #: Trials under way at once: a number, "workers" for one per worker, or None for the search's own default.
    live: Concurrency = None
    #: The epochs at which the search that has this one as its sampler compares trials; none if this one decides.
    rungs: Sequence[int] = ()
    #: Whether the search decides nothing before all its trials have started.
    whole = False
    #: Epochs that all trials together may train; None for no limit. No epoch begins that would exceed it.
    epoch_limit: int | None = None

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        """Check the space and reset the state. Raise SpaceError for a space that the search does not support."""
        spaces.check(space)
        self.seed, self.goal = seed, goal
        self._walk(space)

    def _walk(self, space: spaces.Space) -> None:
        self.space = space
        #: The combinations of ``grid_search`` options, which draws cycle through.
        self._turns = spaces.exhaustive_points(space)

    def learn(self, earlier: Sequence[Earlier]) -> int:
        """Learn from trials of earlier experiments, before the first suggestion; return how many were usable."""
        return 0

    @abstractmethod
    def suggest(self, number: int) -> Suggestion | None:
        """Return the suggestion with this number (0, 1, 2, ...); None if there is none for now.

        The same number may be requested again if the suggestion did not become a trial. The search is done when there
        is no suggestion and no trial is under way.
        """

    def sample(self, number: int) -> Config | None:
        """Return a configuration by number, regardless of ``trials``, for a search that has this one as its sampler."""
        return self.draw(number)

    def draw(self, number: int) -> Config:
        """Return the random configuration with this number: its first draw that the goal allows."""
        fixed = self._turns[number % len(self._turns)]

        def attempt(count: int) -> Config:
            name = f"{number}.{count}" if count else number
            return spaces.configure(self.space, seed=self.seed, number=name, fixed=fixed)

        return allowed(self.goal, attempt)

    def added(self, trial: Trial) -> None:  # noqa: B027 (most have nothing to do)
        """Take note of a trial that was added, whether or not this search suggested it."""

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        """Take note of a trial's metrics after an epoch, and decide."""
        return ()

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        """Take note that a trial completed, was stopped or failed, and decide. A paused trial has not ended."""
        return ()

    def conclude(self) -> Sequence[Decision]:
        """Decide what is left to do now that no trial is under way and none will start.

        The search is done if nothing follows. The call leaves the state as it is.
        """
        return ()

    def onward(self, trial: Trial) -> int:
        """Return how many epochs will follow a trial's last one, of the trial or of one that waits for it."""
        return 0

    def over(self, elapsed: float) -> str:
        """Return why the experiment should end after ``elapsed`` seconds; empty if it should continue."""
        return ""

    def concurrency(self, workers: int) -> int:
        """Return the number of trials that should be under way with ``workers`` workers."""
        if isinstance(self.live, int):
            return self.live
        if self.live is not None:
            return workers
        return 2 * workers if self.streams else MAX_LIVE

    @property
    def streams(self) -> bool:
        """Whether trials are added as others end: the search learns from them, or their number is unknown."""
        return self.adaptive or self.trials >= UNLIMITED

    def examples(self, count: int) -> list[Config]:
        """Return up to ``count`` configurations typical of later suggestions, for checks before work starts."""
        return [self.draw(number) for number in range(count)]

    @property
    @abstractmethod
    def trials(self) -> int:
        """Return the largest possible number of trials; known after ``setup``."""

    @property
    def samples(self) -> int:
        """Return the largest possible number of suggestions; clones are not among them."""
        return self.trials

    def expected(self, points: int = 0) -> Expectation:
        """Return the expected work of the whole experiment, which starts with ``points`` configurations to try."""
        return self.planned(self.trials).plus(points * self.max_epochs)

    def planned(self, trials: int) -> Expectation:
        """Return the expected work of ``trials`` suggestions, by default at most ``max_epochs`` each."""
        return self._in_full(trials, "at most")

    def _in_full(self, trials: int, bound: Bound) -> Expectation:
        return Expectation(None if trials >= UNLIMITED else trials * self.max_epochs, bound)

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        """Add trials and epochs, and change dimensions of the space, at a user's request.

        Raise UsageError, and change nothing, if the search does not support the request.
        """
        self.check_extension(trials=trials, epochs=epochs, space=space)

    @classmethod
    def check_extension(cls, *, trials: int, epochs: int, space: spaces.Space) -> None:
        """Raise UsageError for a request that no search of this class supports, whatever its state."""
        if cls.extend is Search.extend:
            raise UsageError(f"search {cls.__name__}: cannot be extended; add configurations or clone trials instead")

    def describe(self) -> dict[str, Any]:
        """Return the search as JSON, for the record and for comparing two definitions."""
        described = {"search": type(self).__name__, "trials": self.trials, "max_epochs": self.max_epochs}
        return described if self.live is None else {**described, "concurrency": self.live}


def check_concurrency(value: Any) -> Concurrency:
    """Return ``value`` if it is valid for ``Search.live``, else raise UsageError."""
    if value is None or value == "workers":
        return value  # type: ignore[no-any-return]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise UsageError(
            f"concurrency={shown(value)}: must be a number of trials under way at once, 1 to {MOST:,}, or 'workers'; "
            "leave it out for twice the number of workers"
        )
    return value


def allowed(goal: Goal, attempt: Callable[[int], Config], what: str = "configuration") -> Config:
    """Return the first of at most ``DRAWS`` attempts that the goal allows."""
    for count in range(DRAWS):
        config = attempt(count)
        if goal.allows(config):
            return config
    names = ", ".join(map(name_of, goal.constraints))
    raise SpaceError(
        f"no {what} satisfied {names} in {DRAWS} draws{_shares(goal, attempt)}; make the constraints looser or the "
        "space narrower"
    )


def _shares(goal: Goal, attempt: Callable[[int], Config]) -> str:
    """Return which share of the draws satisfied each of several constraints by itself."""
    if len(goal.constraints) < 2:
        return ""
    configs = [attempt(count) for count in range(DRAWS)]
    alone = [replace(goal, constraints=(constraint,)) for constraint in goal.constraints]
    shares = [sum(map(one.allows, configs)) / DRAWS for one in alone]
    each = (f"{name_of(one)} allows {share:.1%}" for one, share in zip(goal.constraints, shares, strict=True))
    return f" ({', '.join(each)})"


def at_least_one(name: str, value: Any) -> int:
    """Return ``value`` if it is a positive integer, else raise UsageError."""
    return at_least(1, name, value)


def at_least(least: int, name: str, value: Any) -> int:
    """Return ``value`` if it is an integer from ``least`` to ``MOST``, else raise UsageError."""
    return integer(name, value, least)
