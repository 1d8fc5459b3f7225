"""Optuna's samplers as searches, which learn from past trials where to look next.

A suggestion depends on the trials so far, the seed, and the number of the suggestion: each suggestion gets its own
sampler with its own seed. Suggesting therefore leaves no state behind, and a resumed experiment continues with the
configurations that an uninterrupted one would have tried. A sampler that the user made is used as it is; with a seed it
behaves the same every time.

A trial counts with the metrics of its last epoch so far, as soon as it pauses or ends; until then it counts as running,
so its neighbourhood is not tried again. Trials that the search did not suggest count as well, if they fit the space.

Inside ASHA, Hyperband or successive halving, metrics of different epochs would be compared, and early ones mislead. So
only those of one rung count, the highest one that enough trials have reached, and trials that have not count as
running. Every second configuration is a random one: what the lower rungs taught may be wrong. Falkner et al., "BOHB",
2018, do both, with one random configuration in three.

A sampler knows nothing of constraints on configurations. A rejected choice is made again, soon with the rejected
choices shown as trials under way, and a random draw within the constraints stands in if all of that is in vain.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from hopfleet.domain import space as spaces
from hopfleet.domain.choices import Concurrency
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.objectives import feasible
from hopfleet.domain.seeds import derive
from hopfleet.domain.signatures import meant_by
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import MissingExtra, UsageError
from hopfleet.search.base import (
    UNLIMITED,
    Decision,
    Earlier,
    Goal,
    Search,
    Suggestion,
    at_least_one,
    check_concurrency,
    name_of,
)

if TYPE_CHECKING:
    from hopfleet.search.study import Chosen

CHOICES = 64
"""Choices of a sampler at most for one suggestion, before a random draw that satisfies the constraints stands in."""

POINTS = 16
"""Trials that must have reached a rung before it is learned from."""

UNTOLD = 16
"""Rejected choices after which the sampler is told of further ones, as trials under way, so that it looks elsewhere."""


class Optuna(Search):
    """A search with ``trials`` configurations from a sampler of Optuna (None: until a budget is spent).

    ``sampler`` is an instance of a class in ``optuna.samplers``; by default a ``TPESampler``.
    """

    adaptive = True
    #: The class in ``optuna.samplers`` that is instantiated for each suggestion.
    kind = "TPESampler"
    #: Default options of the sampler.
    defaults: ClassVar[Mapping[str, Any]] = {"constant_liar": True}
    #: Whether the sampler stores attributes with the trials that it suggests, and reads them later.
    stores_attributes = False
    #: Whether the sampler supports several objectives, and limits on metrics.
    many_objectives = True
    knows_limits = True

    _given: Any = None

    def __init__(
        self,
        sampler: Any = None,
        trials: int | None = 16,
        max_epochs: int = 10,
        concurrency: Concurrency = None,
    ) -> None:
        self._prepare(trials, max_epochs, concurrency, {})
        if sampler is not None and not (hasattr(sampler, "sample_relative") and not isinstance(sampler, type)):
            raise UsageError(
                f"sampler={sampler!r}: must be an instance of a sampler, e.g. optuna.samplers.TPESampler(seed=0)"
            )
        self.stores_attributes = sampler is not None
        self._given = sampler

    def _prepare(
        self, trials: int | None, max_epochs: int, concurrency: Concurrency, options: Mapping[str, Any]
    ) -> None:
        self.live = check_concurrency(concurrency)
        self._trials = UNLIMITED if trials is None else at_least_one("trials", trials)
        self.max_epochs = at_least_one("max_epochs", max_epochs)
        from hopfleet.search.study import sampler_arguments

        self._options = {**self.defaults, **options}
        if "seed" in options:
            raise UsageError("seed: is derived from Experiment(seed=...); leave it out")
        try:
            self._make(0)
        except TypeError as error:
            known = ["trials", "max_epochs", "concurrency", *sampler_arguments(self.kind)]
            unknown = next((name for name in options if name not in known), None)
            remedy = "" if unknown is None else f"; {meant_by(unknown, known)}"
            raise UsageError(f"{type(self).__name__}: {error}{remedy}") from error

    def _make(self, seed: int) -> Any:
        from hopfleet.search.study import new_sampler

        return new_sampler(self.kind, seed, self._options)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        if goal.others and not self.many_objectives:
            raise UsageError(
                f"metric={[name for name, _ in goal.objectives]}: {type(self).__name__} optimises one metric; "
                "use hop.NSGA2(...) or hop.TPE(...)"
            )
        from hopfleet.search.study import Study

        self._sampler = copy.deepcopy(self._given)
        self._study = Study([mode for _, mode in goal.objectives], self._sampler or self._make(0))
        #: The index of each trial in the study, and the newest metrics of trials under way.
        self._indices: dict[str, int] = {}
        self._newest: dict[str, Mapping[str, float]] = {}
        #: Trials that have paused or ended at least once.
        self._resting: set[str] = set()
        #: The metrics of trials at each rung, and the rung that is learned from.
        self._reached: dict[int, dict[str, Mapping[str, float]]] = {rung: {} for rung in self.rungs}
        self._rung = min(self.rungs, default=0)
        #: Trials that failed, and those of earlier experiments.
        self._failed: set[str] = set()
        self._earlier: set[str] = set()
        #: The last suggestion, and the number of suggestions that became trials.
        self._asked: tuple[Config, Chosen | None, Mapping[str, Any]] | None = None
        self._taken = 0
        #: Whether the user knows that random draws stand in for choices that constraints reject.
        self._warned = False

    @property
    def trials(self) -> int:
        return self._trials

    # ------------------------------------------------------------------------------------------------ suggesting

    def planned(self, trials: int) -> Expectation:
        return self._in_full(trials, "exactly")

    def suggest(self, number: int) -> Suggestion | None:
        if number >= self._trials or self._study.exhausted:
            return None
        return Suggestion(self.sample(number), self.max_epochs)

    def sample(self, number: int) -> Config:
        self._asked = self._ask(number)
        return self._asked[0]

    def _ask(self, number: int) -> tuple[Config, Chosen | None, Mapping[str, Any]]:
        """Return the first choice of the sampler that the goal allows; a random draw if it allows none of them."""
        if self.rungs and number % 2:
            config = self.draw(number)
            return config, self._find(config), {}
        told = 0
        try:
            for count in range(CHOICES):
                sampler = self._sampler or self._make(derive(self.seed, "optuna", number, count))
                answer = self._study.ask(sampler, self.space, self._turns[number % len(self._turns)])
                if self.goal.allows(answer[0]):
                    return answer
                if count >= UNTOLD:
                    self._study.add(answer[1], {})
                    told += 1
        finally:
            self._study.remove(told)
        config = self.draw(number)
        if not self._warned:
            self._warned = True
            names = ", ".join(map(name_of, self.goal.constraints))
            warnings.warn(
                f"{type(self).__name__}: chose {CHOICES} configurations in a row that {names} rejected, so it tries a "
                "random one that passes, now and whenever this happens again; a space that contains fewer rejected "
                "configurations is searched better",
                stacklevel=2,
            )
        return config, self._find(config), {}

    def examples(self, count: int) -> list[Config]:
        return super().examples(min(count, self._trials))

    # -------------------------------------------------------------------------------------------------- learning

    def added(self, trial: Trial) -> None:
        asked, self._asked = self._asked, None
        if asked is None and (self.stores_attributes or callable(self.space)):
            # The suggestion was made before the experiment was resumed. Suggesting again recovers its attributes, and
            # the values that a space function turned into the configuration.
            asked = self._ask(self._taken)
        attributes: Mapping[str, Any] = {}
        if asked is not None and asked[0] == trial.config:
            self._taken += 1
            chosen, attributes = asked[1], asked[2] if self.stores_attributes else attributes
        else:
            chosen = self._find(trial.config)
        if chosen is not None:
            self._indices[trial.id] = self._study.add(chosen, attributes)

    def _find(self, config: Config) -> Chosen | None:
        """Return the dimensions and values of a configuration, without ``grid_search`` options."""
        found = spaces.find(self.space, config)
        if found is None:
            return None
        return {name: value for name, value in found.items() if name not in self._turns[0]}

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        if trial.id in self._indices and self.rungs:
            self._reach(trial.id, epoch, metrics)
        elif trial.id in self._indices:
            self._newest[trial.id] = metrics
            if epoch >= trial.epochs:
                self._resting.add(trial.id)
            if trial.id in self._resting:
                self._tell(trial.id, metrics)
        return ()

    def _reach(self, name: str, epoch: int, metrics: Mapping[str, float]) -> None:
        """Take note of a trial at a rung, and learn from the next rung as soon as enough trials are there."""
        if epoch not in self._reached:
            return
        self._reached[epoch][name] = metrics
        highest = max((rung for rung in self.rungs if len(self._reached[rung]) >= POINTS), default=self._rung)
        if highest > self._rung:
            self._rung = highest
            for each in self._indices:
                if each in self._failed or each in self._earlier:
                    continue
                if each in self._reached[highest]:
                    self._tell(each, self._reached[highest][each])
                else:
                    self._study.take_back(self._indices[each])
        elif epoch == self._rung:
            self._tell(name, metrics)

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        if trial.id in self._indices and self.rungs:
            if state is TrialState.FAILED:
                self._failed.add(trial.id)
                self._tell(trial.id, {})
        elif trial.id in self._indices:
            metrics = self._newest.pop(trial.id, {})
            self._resting.add(trial.id)
            self._tell(trial.id, {} if state is TrialState.FAILED else metrics)
        return ()

    def learn(self, earlier: Sequence[Earlier]) -> int:
        used = 0
        for number, one in enumerate(earlier):
            chosen = self._find(one.config)
            if chosen is not None and self._values(one.metrics) is not None:
                name = f"earlier {number}"
                self._indices[name] = self._study.add(chosen, {})
                self._tell(name, one.metrics)
                self._earlier.add(name)
                used += 1
        return used

    def _tell(self, name: str, metrics: Mapping[str, float]) -> None:
        values = self._values(metrics)
        excess = {} if values is None else {str(limit): limit.excess(metrics) for limit in self.goal.limits}
        self._study.tell(self._indices[name], values, excess if self.knows_limits else {})

    def _values(self, metrics: Mapping[str, float]) -> list[float] | None:
        """Return the values of all objectives; None if one is missing or NaN, as for a failed trial."""
        goal = self.goal
        values = [metrics.get(name, math.nan) for name in goal.metrics]
        if any(map(math.isnan, values)):
            return None
        if not self.knows_limits and not feasible(goal.limits, metrics):
            return [-math.inf if goal.mode == "max" else math.inf]
        return values[: len(goal.objectives)]

    # ------------------------------------------------------------------------------------------ further requests

    @classmethod
    def check_extension(cls, *, trials: int, epochs: int, space: spaces.Space) -> None:
        if space:
            raise UsageError(
                f"space={spaces.describe(space)}: {cls.__name__} has learned from the current dimensions; start a new "
                "experiment"
            )

    def extend(self, *, trials: int, epochs: int, space: spaces.Space) -> None:
        self.check_extension(trials=trials, epochs=epochs, space=space)
        self._trials += trials
        self.max_epochs += epochs

    def describe(self) -> dict[str, Any]:
        sampler = self.kind if self._given is None else type(self._given).__name__
        options = {name: _described(value) for name, value in self._options.items()} if self._given is None else {}
        return {**super().describe(), "sampler": sampler, "options": options}


class _Named(Optuna):
    """A sampler of Optuna under a short name; ``options`` are passed to its class in ``optuna.samplers``."""

    def __init__(
        self,
        trials: int | None = 16,
        max_epochs: int = 10,
        concurrency: Concurrency = None,
        **options: Any,
    ) -> None:
        self._prepare(trials, max_epochs, concurrency, options)


class TPE(_Named):
    """The tree-structured Parzen estimator: a good default, fast, and suitable for several objectives."""


class GP(_Named):
    """A Gaussian process: for few, expensive trials."""

    kind = "GPSampler"
    defaults: ClassVar[Mapping[str, Any]] = {"warn_independent_sampling": False}


class CMAES(_Named):
    """CMA-ES: for many trials in a numerical space, with one objective."""

    kind = "CmaEsSampler"
    defaults: ClassVar[Mapping[str, Any]] = {"warn_independent_sampling": False}
    stores_attributes = True
    many_objectives = False
    knows_limits = False

    def __init__(
        self,
        trials: int | None = 16,
        max_epochs: int = 10,
        concurrency: Concurrency = None,
        **options: Any,
    ) -> None:
        super().__init__(trials, max_epochs, concurrency, **options)
        if find_spec("cmaes") is None:
            raise MissingExtra("cmaes", "optuna")


class NSGA2(_Named):
    """The genetic algorithm NSGA-II: for several objectives and many trials."""

    kind = "NSGAIISampler"
    defaults: ClassVar[Mapping[str, Any]] = {}
    stores_attributes = True


def _described(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)
