"""An Optuna study whose trials can be taken back and corrected, as a search needs that may be asked twice.

Optuna takes every trial that it is asked for as one that runs, and every value that it is told as final. Here a trial
that came to nothing is forgotten, and one that trains on after a pause gets another value. All of it is in memory.

Dimensions become what Optuna can search well: options are numbered, so they may be anything; a float with steps is
the number of steps; a normal one is searched by its quantile, so that the first draws follow its bell.
"""

from __future__ import annotations

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
"""A normal dimension is searched between these quantiles, 4.75 standard deviations from its mean."""

DIRECTIONS = {"min": optuna.study.StudyDirection.MINIMIZE, "max": optuna.study.StudyDirection.MAXIMIZE}

Chosen = Mapping[str, tuple[Dimension, Any]]
"""Dimensions by their names, each with a value."""


def new_sampler(kind: str, seed: int, options: Mapping[str, Any]) -> BaseSampler:
    """A sampler by the name of its class in ``optuna.samplers``."""
    sampler: BaseSampler = getattr(optuna.samplers, kind)(seed=seed, **options)
    return sampler


class Study:
    """Trials by their places (0, 1, 2, ...), each running, done or failed; and a sampler's view of them."""

    def __init__(self, modes: Sequence[str], sampler: BaseSampler) -> None:
        self._storage = _Storage()
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces every study
        self._storage.create_new_study([DIRECTIONS[mode] for mode in modes], "hopfleet")
        optuna.logging.set_verbosity(verbosity)
        self._study: Any = _Study("hopfleet", self._storage, sampler)
        #: What the sampler wrote down about each trial when it chose its values.
        self._notes: list[Mapping[str, Any]] = []

    @property
    def exhausted(self) -> bool:
        """Whether the sampler has said that there is nothing left to try."""
        return bool(self._study.exhausted)

    def ask(
        self, sampler: Any, space: spaces.Space, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Chosen, Mapping[str, Any]]:
        """A configuration, the values that the sampler chose for it, and its notes. Leaves nothing behind."""
        if not callable(space) and type(sampler) is type(self._study.sampler) and hasattr(sampler, "_search_space"):
            # What all trials have in common, which it would have to find out again, trial by trial.
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
            self._storage.take_back(before)

    def add(self, chosen: Chosen, notes: Mapping[str, Any]) -> int:
        """Take in a trial that runs; return its place."""
        kinds = {name: distribution(dimension) for name, (dimension, _) in chosen.items()}
        params = {name: encode(dimension, value) for name, (dimension, value) in chosen.items()}
        trial = create_trial(state=TrialState.RUNNING, params=params, distributions=kinds, system_attrs=dict(notes))
        self._study.add_trial(trial)
        self._notes.append(notes)
        return len(self._notes) - 1

    def tell(self, place: int, values: Sequence[float] | None, excess: Mapping[str, float]) -> None:
        """Say what a trial has brought, and how far beyond limits it is; no values: it failed. May be told again."""
        known = self._storage.trial(place)
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        if not known.state.is_finished():
            self._study.sampler.after_trial(self._study, known, state, values)
        trial = create_trial(
            state=state,
            values=values,
            params=known.params,
            distributions=known.distributions,
            system_attrs=dict(self._notes[place]),
            constraints=dict(excess),
        )
        self._storage.replace(place, trial)


class _Study(optuna.Study):
    """Samplers that come to an end stop their study; here that is only remembered."""

    exhausted = False

    def stop(self) -> None:
        self.exhausted = True


class _Storage(InMemoryStorage):
    """One study's trials, in the order that they were added."""

    @property
    def _trials(self) -> list[FrozenTrial]:
        trials: list[FrozenTrial] = self._studies[0].trials
        return trials

    def trial(self, place: int) -> FrozenTrial:
        return self._trials[place]

    def replace(self, place: int, trial: FrozenTrial) -> None:
        trial.number, trial._trial_id = place, self._trials[place]._trial_id
        self._trials[place] = trial
        self._update_cache(trial._trial_id, 0)

    def take_back(self, study_attrs: dict[str, Any]) -> None:
        """Forget the newest trial, and what was noted about the study since it came."""
        del self._trial_id_to_study_id_and_number[self._trials.pop()._trial_id]
        self._max_trial_id -= 1
        self._studies[0].system_attrs = study_attrs


# ------------------------------------------------------------------------------------- dimensions as Optuna has them


def distribution(dimension: Dimension) -> BaseDistribution:
    """Where Optuna searches for a dimension."""
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
    """The value of a dimension from what Optuna suggested."""
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
    """What Optuna would have suggested for a value that the dimension contains."""
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
