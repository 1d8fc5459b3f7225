"""Population based training: the worst of a population continue from the models of the best, with new configurations.

Jaderberg et al., "Population based training of neural networks", 2017. There is no barrier, as published: a trial that
ends an interval is compared with the latest reports of the others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.expectation import Expectation
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config, Trial, TrialState
from hopfleet.errors import SpaceError, UsageError
from hopfleet.search.base import Clone, Decision, Goal, Search, Suggestion, at_least
from hopfleet.search.sampled import Sampled

PERTURBATIONS = 100
"""Perturbed configurations at most, until one satisfies the constraints."""


@dataclass(slots=True)
class PopulationMember:
    """A member of the population, and the trial that currently represents it."""

    #: The number of its first trial.
    number: int
    trial: Trial
    #: The last reported cost, and its epoch; 0 before the first report.
    cost: float = math.inf
    epoch: int = 0
    #: How often a clone has replaced the member's trial.
    replaced: int = 0


class PBT(Sampled):
    """A search that trains a ``population`` of trials side by side until ``max_epochs``.

    After every ``interval`` epochs, a trial among the worst ``quantile`` of the population is replaced by a clone that
    starts from the newest saved model of a trial among the best ``quantile`` and from a perturbed copy of that trial's
    configuration. Each dimension is drawn again with probability ``resample``; otherwise a number is multiplied by one
    of ``perturb``, and a choice moves to a neighbouring option, within the bounds of the dimension. ``explore`` names
    the dimensions that may change (None: all). Name only dimensions that keep a saved model usable, such as a learning
    rate; the model would not fit other layers.

    Each member of the population is replaced at most ``max_epochs // interval`` times, so the search ends.
    """

    adaptive = True

    def __init__(
        self,
        population: int = 16,
        max_epochs: int = 20,
        interval: int = 1,
        quantile: float = 0.25,
        perturb: Sequence[float] = (0.8, 1.2),
        resample: float = 0.25,
        sampler: Search | None = None,
        explore: Sequence[str] | None = None,
    ) -> None:
        super().__init__(at_least(1, "max_epochs", max_epochs), sampler)
        self.population = at_least(2, "population", population)
        self.interval = at_least(1, "interval", interval)
        if interval > max_epochs:
            raise UsageError(
                f"interval={interval}: must be at most max_epochs={max_epochs}; lower interval or raise max_epochs"
            )
        if not (_is_number(quantile) and 0 < quantile <= 0.5):
            raise UsageError(f"quantile={quantile!r}: must be above 0 and at most 0.5; 0.25 replaces the worst quarter")
        if not (_is_number(resample) and 0 <= resample <= 1):
            raise UsageError(f"resample={resample!r}: must be a probability from 0 to 1; 0.25 is usual")
        factors = perturb if isinstance(perturb, Sequence) else ()
        if not factors or not all(_is_number(factor) and 0 < factor < math.inf for factor in factors):
            raise UsageError(f"perturb={perturb!r}: must be numbers above 0 to multiply by; (0.8, 1.2) is usual")
        self.quantile, self.resample, self.perturb = quantile, resample, tuple(factors)
        if isinstance(explore, str) or not isinstance(explore, Sequence | None):
            raise UsageError(f"explore={explore!r}: must be a list of dimensions of the space, e.g. ['lr']")
        self.explore = None if explore is None else list(explore)

    def setup(self, space: spaces.Space, *, seed: int, goal: Goal) -> None:
        super().setup(space, seed=seed, goal=goal)
        if callable(space):
            raise SpaceError("PBT cannot explore a space that is a function; write the space as a dict")
        known = spaces.dimensions(space)
        for name in self.explore or ():
            if name not in known:
                raise UsageError(f"explore={name!r}: must be a dimension of the space; it has {', '.join(known)}")
        if not known:
            raise SpaceError("PBT has nothing to explore: the space has constants alone; give at least one dimension")
        #: Members by their current trials; a member is removed when its trial fails or is stopped.
        self._members: dict[str, PopulationMember] = {}
        #: Requested clones by the trial to replace, with the cost and epoch of the parent. The controller may drop one.
        self._awaited: dict[str, tuple[Clone, float, int]] = {}

    @property
    def trials(self) -> int:
        return self.population * (1 + self.max_epochs // self.interval)

    @property
    def samples(self) -> int:
        return self.population

    def concurrency(self, workers: int) -> int:
        return self.population

    def suggest(self, number: int) -> Suggestion | None:
        config = self.sample(number) if number < self.population else None
        return None if config is None else Suggestion(config, self.max_epochs)

    def added(self, trial: Trial) -> None:
        super().added(trial)
        if trial.origin == "search":
            self._members[trial.id] = PopulationMember(trial.number, trial)
        for replaced, (clone, cost, epoch) in self._awaited.items():
            if trial.parent is not None and (trial.parent.trial, trial.config) == (clone.parent, clone.config):
                del self._awaited[replaced]
                before = self._members.pop(replaced)
                # The clone has the parent's model, so the parent's report applies to the clone.
                self._members[trial.id] = PopulationMember(before.number, trial, cost, epoch, before.replaced + 1)
                return

    def observe(self, trial: Trial, epoch: int, metrics: Mapping[str, float]) -> Sequence[Decision]:
        super().observe(trial, epoch, metrics)
        member = self._members.get(trial.id)
        if member is None:
            return ()
        self._awaited.pop(trial.id, None)  # the trial reported, so its clone was dropped
        member.cost, member.epoch = self.goal.cost(metrics), epoch
        if epoch % self.interval or epoch >= self.max_epochs or member.replaced >= self.max_epochs // self.interval:
            return ()
        rng = random.Random(derive(self.seed, "pbt", trial.number, epoch))
        better = self._better_ones(member)
        if not better:
            return ()
        parent = rng.choice(better)
        clone = Clone(parent.trial.id, self._explored(parent.trial.config, rng), replaces=trial.id)
        self._awaited[trial.id] = clone, parent.cost, parent.epoch
        return [clone]

    def ended(self, trial: Trial, state: TrialState) -> Sequence[Decision]:
        super().ended(trial, state)
        self._awaited.pop(trial.id, None)
        if state is not TrialState.COMPLETED:
            self._members.pop(trial.id, None)
        return ()

    def _better_ones(self, member: PopulationMember) -> list[PopulationMember]:
        """Return the best members whose models ``member`` may continue from, if it is one of the worst."""
        reported = [m for m in self._members.values() if m.epoch]
        ranked = sorted(reported, key=lambda m: (m.cost, m.number))
        # The quantile of a small population may be less than one member; use one once all have reported.
        count = max(math.floor(self.quantile * len(ranked) + 1e-9), len(ranked) == self.population)
        worst = ranked[len(ranked) - count :]
        return [m for m in ranked[:count] if member in worst and m.cost < member.cost and m.epoch < self.max_epochs]

    # ------------------------------------------------------------------------------------------------ exploring

    def _explored(self, config: Config, rng: random.Random) -> Config:
        """Return a perturbed configuration that the constraints allow; ``config`` itself if none is found."""
        perturbed = (self._perturbed(config, rng) for _ in range(PERTURBATIONS))
        return next(filter(self.goal.allows, perturbed), config)

    def _perturbed(self, config: Config, rng: random.Random) -> Config:
        fixed = spaces.values(self.space, config)
        dimensions = spaces.dimensions(self.space)
        for name in fixed if self.explore is None else [name for name in self.explore if name in fixed]:
            fixed[name] = self._moved(dimensions[name], fixed[name], rng)
        return spaces.configure(self.space, seed=self.seed, number=0, fixed=fixed)

    def _moved(self, dimension: spaces.Dimension, value: Any, rng: random.Random) -> Any:
        if rng.random() < self.resample:
            return dimension.sample(rng)
        factor = rng.choice(self.perturb)
        match dimension:
            case spaces.Choice(options=options):
                place = options.index(value) + rng.choice((-1, 1))
                return options[min(max(place, 0), len(options) - 1)]
            case spaces.Integer():
                return _nudged(dimension, value, factor, 1)
            case spaces.Float():
                return _nudged(dimension, value, factor, dimension.step or 0.0)
            case _:
                return value * factor

    def planned(self, trials: int) -> Expectation:
        """Expect a full training per member: a clone goes on where its parent stands."""
        return Expectation(min(trials, self.population) * self.max_epochs, "about")

    def describe(self) -> dict[str, Any]:
        names = ("population", "interval", "quantile", "resample", "explore")
        return {**super().describe(), **{name: getattr(self, name) for name in names}, "perturb": list(self.perturb)}


def _nudged(dimension: spaces.Float | spaces.Integer, value: float, factor: float, step: float) -> float:
    """Return ``value`` times ``factor``, or one step away if rounding would leave the value unchanged."""
    moved = dimension.nearest(value * factor)
    return moved if moved != value else dimension.nearest(value + math.copysign(step, factor - 1))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
