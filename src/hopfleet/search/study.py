"""An Optuna study whose trials can be removed and corrected, as required by searches that may be asked twice.

Optuna treats every suggested trial as running, and every reported value as final. Here a suggestion that did not become
a trial is removed, and a trial that continues after a pause gets another value. The study is kept in memory.

Dimensions are translated to what Optuna searches well: options are numbered, so they may be arbitrary values; a float
with steps becomes the number of steps; a normal dimension is searched by its quantile, so that the first draws are
normally distributed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from hopfleet.domain import space as spaces
from hopfleet.domain.space import Choice, Dimension, Float, Integer, Normal
from hopfleet.errors import MissingExtra

try:
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError as error:
    raise MissingExtra("Optuna", "optuna") from error

TAIL = 1e-6
"""Lowest quantile of a normal dimension that is searched, 4.75 standard deviations from the mean; also from the top."""

DIRECTIONS = {"min": optuna.study.StudyDirection.MINIMIZE, "max": optuna.study.StudyDirection.MAXIMIZE}

Chosen = Mapping[str, tuple[Dimension, Any]]
"""Dimensions by name, each with a value."""


def new_sampler(kind: str, seed: int, options: Mapping[str, Any]) -> BaseSampler:
    """Return a sampler by the name of its class in ``optuna.samplers``."""
    sampler: BaseSampler = getattr(optuna.samplers, kind)(seed=seed, **options)
    return sampler


def sampler_arguments(kind: str) -> list[str]:
    """Return the names of the arguments that a class in ``optuna.samplers`` takes."""
    return list(inspect.signature(getattr(optuna.samplers, kind)).parameters)


class Study:
    """Trials by index (0, 1, 2, ...), each running, completed or failed, as a sampler sees them."""

    def __init__(self, modes: Sequence[str], sampler: BaseSampler) -> None:
        self._storage = _Storage()
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # Optuna logs every new study
        self._storage.create_new_study([DIRECTIONS[mode] for mode in modes], "hopfleet")
        optuna.logging.set_verbosity(verbosity)
        self._study: Any = _Study("hopfleet", self._storage, sampler)
        #: The attributes that the sampler stored with each trial when it chose the values.
        self._attributes: list[Mapping[str, Any]] = []

    @property
    def exhausted(self) -> bool:
        """Whether the sampler has reported that nothing is left to try."""
        return bool(self._study.exhausted)

    def ask(
        self, sampler: Any, space: spaces.Space, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Chosen, Mapping[str, Any]]:
        """Return a configuration, the values that the sampler chose, and its attributes. Leave the study unchanged."""
        if not callable(space) and type(sampler) is type(self._study.sampler) and hasattr(sampler, "_search_space"):
            # The dimensions common to all trials; a new sampler would have to determine them again, trial by trial.
            sampler._search_space = self._study.sampler._search_space
        self._study.sampler = sampler
        before = self._storage.get_study_system_attrs(0)
        trial = self._study.ask()

        def draw(name: str, dimension: Dimension) -> Any:
            return decode(dimension, _suggested(trial, name, distribution(dimension)))

        try:
            config, chosen = spaces.walk(space, draw, given)
            return config, chosen, self._storage.trial(-1).system_attrs
        finally:
            self._storage.remove_newest(before)

    def add(self, chosen: Chosen, attributes: Mapping[str, Any]) -> int:
        """Add a running trial, and return its index."""
        kinds = {name: distribution(dimension) for name, (dimension, _) in chosen.items()}
        params = {name: encode(dimension, value) for name, (dimension, value) in chosen.items()}
        trial = create_trial(
            state=TrialState.RUNNING, params=params, distributions=kinds, system_attrs=dict(attributes)
        )
        self._study.add_trial(trial)
        self._attributes.append(attributes)
        return len(self._attributes) - 1

    def remove(self, count: int) -> None:
        """Remove the ``count`` trials that were added last."""
        for _ in range(count):
            self._storage.remove_newest(self._storage.get_study_system_attrs(0))
            self._attributes.pop()

    def tell(self, index: int, values: Sequence[float] | None, excess: Mapping[str, float]) -> None:
        """Set the values of a trial (None: it failed) and its excess over limits. May be called again for a trial."""
        known = self._storage.trial(index)
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        if not known.state.is_finished():
            self._study.sampler.after_trial(self._study, known, state, values)
        trial = create_trial(
            state=state,
            values=values,
            params=known.params,
            distributions=known.distributions,
            system_attrs=dict(self._attributes[index]),
            constraints=dict(excess),
        )
        self._storage.replace(index, trial)

    def take_back(self, index: int) -> None:
        """Let a trial count as running again."""
        known = self._storage.trial(index)
        attributes = dict(self._attributes[index])
        running = create_trial(
            state=TrialState.RUNNING, params=known.params, distributions=known.distributions, system_attrs=attributes
        )
        self._storage.replace(index, running)


class _Study(optuna.Study):
    """A study that records instead of executing the stop that an exhausted sampler requests."""

    exhausted = False

    def stop(self) -> None:
        self.exhausted = True


class _Storage(InMemoryStorage):
    """The trials of one study, in the order in which they were added."""

    @property
    def _trials(self) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = self._studies[0].trials
        return trials

    def trial(self, index: int) -> FrozenTrial:
        return self._trials[index]

    def replace(self, index: int, trial: FrozenTrial) -> None:
        trial.number, trial._trial_id = index, self._trials[index]._trial_id
        self._trials[index] = trial
        self._update_cache(trial._trial_id, 0)

    def remove_newest(self, study_attrs: dict[str, Any]) -> None:
        """Remove the newest trial, and restore the study's attributes from before it was added."""
        del self._trial_id_to_study_id_and_number[self._trials.pop()._trial_id]
        self._studies[0].system_attrs = study_attrs


# ------------------------------------------------------------------------------------- dimensions in Optuna's terms


def distribution(dimension: Dimension) -> BaseDistribution:
    """Return the Optuna distribution for a dimension."""
    match dimension:
        case Choice(options=options):
            return CategoricalDistribution(range(len(options)))
        case Float(log=False, step=float()):
            return IntDistribution(dimension.steps(dimension.low), dimension.steps(dimension.high))
        case Float(low=low, high=high, log=log):
            return FloatDistribution(low, high, log=log)
        case Integer(low=low, high=high, log=log, step=step):
            return IntDistribution(low, range(low, high, step)[-1], log=log, step=step)
        case Normal():
            return FloatDistribution(TAIL, 1 - TAIL)
        case _:
            raise AssertionError(f"nothing to search for: {dimension}")


def decode(dimension: Dimension, found: Any) -> Any:
    """Return the value of a dimension for a value that Optuna suggested."""
    match dimension:
        case Choice(options=options):
            return options[found]
        case Float(log=False, step=float()):
            return dimension.at(found)
        case Float():
            return dimension.nearest(found)
        case Normal(mean=mean, sd=sd):
            return NormalDist(mean, sd).inv_cdf(found)
        case _:
            return found


def encode(dimension: Dimension, value: Any) -> Any:
    """Return the value that Optuna would have suggested for a value of the dimension."""
    match dimension:
        case Choice():
            return dimension.place(value)
        case Float(log=False, step=float()):
            return dimension.steps(value)
        case Normal(mean=mean, sd=sd):
            return min(max(NormalDist(mean, sd).cdf(value), TAIL), 1 - TAIL)
        case _:
            return value


def _suggested(trial: optuna.Trial, name: str, kind: BaseDistribution) -> Any:
    match kind:
        case FloatDistribution():
            return trial.suggest_float(name, kind.low, kind.high, log=kind.log)
        case IntDistribution():
            return trial.suggest_int(name, kind.low, kind.high, step=kind.step, log=kind.log)
        case _:
            assert isinstance(kind, CategoricalDistribution)
            return trial.suggest_categorical(name, kind.choices)
