"""Checks of an experiment's arguments. Each function takes the value of one argument and returns it in the form that
the rest of the code uses, or raises UsageError with the value, the constraint and the remedy.
"""

from __future__ import annotations

import datetime
import math
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any, get_args

from hopfleet.backends import BACKENDS
from hopfleet.backends.base import Backend
from hopfleet.data import Dataset, open_dataset
from hopfleet.domain import space as spaces
from hopfleet.domain.bounds import MOST_WORKERS, ROWS, integer
from hopfleet.domain.choices import AllFailed, Auto, Fuse, Mode, Order
from hopfleet.domain.objectives import Limit
from hopfleet.domain.placement import AUTO, SINGLE, STRATEGY, Strategies, TeamShape
from hopfleet.domain.trial import Config
from hopfleet.errors import UsageError, describe
from hopfleet.forecast.fusion import FUSES
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.folds import KFold
from hopfleet.phrases import did_you_mean, listed, shown
from hopfleet.runs.results import Results
from hopfleet.scheduler.dispatch import Policy
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.policies.exact import Exact, require_solver
from hopfleet.scheduler.timeouts import Timeout
from hopfleet.search import SEARCHES
from hopfleet.search.base import Constraint, Goal, Search, allowed
from hopfleet.search.stopping import STOPPING_RULES, Stopping
from hopfleet.store.folder import check_name
from hopfleet.support import registry
from hopfleet.support.background import in_background

READERS = {
    ".json": "pandas.read_json({})",
    ".npy": "numpy.load({})",
    ".npz": "dict(numpy.load({}))",
    ".pt": "torch.load({})",
    ".pth": "torch.load({})",
    ".xlsx": "pandas.read_excel({})",
}
"""How to read the files with a suffix."""

# ------------------------------------------------------------------------------------------------------- task and data


def dataset(role: str, source: Any) -> Any:
    """Open a data set that exists; return any other source as is, to be partitioned when work starts."""
    if source is None:
        raise UsageError(f"{role}=None: pass a data set folder, or arrays")
    if isinstance(source, (str, os.PathLike)) and not str(source).endswith(".parquet"):
        if Path(source).is_file():
            raise UsageError(
                f"{role}={str(source)!r}: is a file, not the folder of a data set; read it first, as in "
                f"{role}={READERS.get(Path(source).suffix, 'pandas.read_csv({})').format(repr(str(source)))}"
            )
        return open_dataset(source)
    return source


def valid(source: Any, task: Task, teams: Sequence[TeamShape]) -> Any:
    """Return the validation data as ``dataset`` does, the folds that text like ``kfold(5)`` asks for, or None."""
    if isinstance(source, int | float):
        raise UsageError(
            f"valid={source!r}: must be data, not a number; divide the rows with data = hop.split(source, folder, "
            "{'train': 0.8, 'valid': 0.2}) and pass train=data['train'], valid=data['valid'], or use valid='kfold(5)'"
        )
    if (folds := KFold.parse(source) if isinstance(source, str) else None) is None:
        return None if source is None else dataset("valid", source)
    if blocker := task.framework.fusion_blocker:
        raise UsageError(f"valid={source!r}: the models of {type(task).__name__} cannot train together: {blocker}")
    if any(shape != SINGLE for shape in teams):
        raise UsageError(f"valid={source!r}: needs parallelism='single', since the folds of a trial share its device")
    return folds


def check_pair(train: Any, valid: Any) -> None:
    """Raise DataError if the same recipe has prepared both data sets with different statistics."""
    if isinstance(train, Dataset) and isinstance(valid, Dataset):
        from hopfleet.data.etl.recipe import check_statistics

        check_statistics(train, valid)


def name(given: str | None, task: Task) -> str:
    """Return the given name, or a new one from the task and the time."""
    if given == "":
        raise UsageError(
            "name='': is empty; give a name such as 'digits', or leave it out for one with the time of day"
        )
    return check_name(_new_name(task) if given is None else given)


def _new_name(task: Task) -> str:
    # Experiments that start in the same second, here or in another process, differ in the last part.
    return f"{type(task).__name__.lower()}-{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def seed(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise UsageError(f"seed={given!r}: must be an integer")
    return given


# ----------------------------------------------------------------------------------------------------- search and goal


def search(given: Search | str, stop: Any) -> Search:
    """Return the search, wrapped with its stopping rules if there are any."""
    found = registry.find("search", given, SEARCHES)() if isinstance(given, str) else given
    if not isinstance(found, Search):
        made = f"hop.{given.__name__}(...)" if isinstance(given, type) else "hop.Random(trials=16)"
        if hasattr(given, "sample_relative") and not isinstance(given, type):  # a sampler of Optuna
            made = "hop.Optuna(sampler, trials=16)"
        if hasattr(given, "sampler") and hasattr(given, "optimize"):  # a study of Optuna
            made = "hop.Optuna(study.sampler, trials=16)"
        raise UsageError(f"search={shown(given)}: must be a search, e.g. {made}, or its name")
    if stop is None or (isinstance(stop, Sized) and not len(stop)):
        return found
    if isinstance(stop, Mapping):
        raise UsageError(
            f"stop={shown(stop)}: must be stopping rules, not a dict; hop.Budget(target=...) ends the experiment at a "
            "value of the metric, hop.Patience(epochs=...) a trial that does not improve"
        )
    rules = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    return Stopping(
        found, [registry.find("stop", rule, STOPPING_RULES)() if isinstance(rule, str) else rule for rule in rules]
    )


def goal(metric: Any, mode: Any, constraints: Any, *, has_valid: bool) -> Goal:
    if metric is None:
        if mode is not None and mode != "min":
            raise UsageError(f"mode={mode!r}: needs metric=..., as in metric='accuracy', mode='max'")
        metric = "loss" if has_valid else "train_loss"
    if modes := _modes_of(metric):
        which, how = (list(modes), list(modes.values())) if len(modes) > 1 else next(iter(modes.items()))
        raise UsageError(f"metric={shown(metric)}: must name metrics alone; write metric={which!r}, mode={how!r}")
    several = not isinstance(metric, str)
    names = _listed("metric", metric, str) if several else [metric]
    if not names:
        raise UsageError("metric=[]: name at least one metric")
    if len(set(names)) < len(names):
        raise UsageError(f"metric={metric!r}: names a metric twice; list each metric once")
    chosen = _modes(names, mode, several)
    limits, rules = _constraints(constraints)
    return Goal(names[0], chosen[0], tuple(zip(names[1:], chosen[1:], strict=True)), limits, rules)


def _modes_of(metric: Any) -> dict[str, Any]:
    """Return the modes by metric, if a user has given both as ``metric``."""
    if isinstance(metric, Mapping):
        return dict(metric)
    pair = isinstance(metric, list | tuple) and len(metric) == 2 and metric[1] in ("min", "max")
    return {metric[0]: metric[1]} if pair else {}


def _modes(names: Sequence[str], mode: Any, several: bool) -> list[str]:
    if mode is None:
        unclear = [name for name in names if not name.endswith("loss")]
        if unclear:
            remedy = "mode=['max', 'min', ...], one for each metric" if several else "mode='max' or mode='min'"
            raise UsageError(f"metric={unclear[0]!r}: set {remedy}")
        return ["min"] * len(names)
    modes = [mode] if isinstance(mode, str) else _listed("mode", mode, str)
    if len(modes) != len(names):
        raise UsageError(f"mode={mode!r}: must have one mode for each of the {len(names)} metrics")
    for one in modes:
        if one not in get_args(Mode):
            raise UsageError(f"mode={one!r}: must be 'min' or 'max'")
    return modes


def _constraints(constraints: Any) -> tuple[tuple[Limit, ...], tuple[Constraint, ...]]:
    """Split constraints into limits on metrics, given as text, and rules for configurations, given as functions."""
    if isinstance(constraints, str) or callable(constraints):
        constraints = [constraints]
    listed = _listed("constraints", constraints, object)
    for one in listed:
        if not isinstance(one, str) and not callable(one):
            raise UsageError(
                f"constraint {one!r}: must be a function of the configuration, or text such as 'params <= 100000'"
            )
    limits = tuple(Limit.parse(one) for one in listed if isinstance(one, str))
    return limits, tuple(one for one in listed if not isinstance(one, str))


def initial_configs(given: Any, space: spaces.Space, goal: Goal, *, seed: int) -> list[Config]:
    """Return the configurations to try first; missing values are drawn at random."""

    def completed(number: int, point: Mapping[str, Any]) -> Config:
        def attempt(count: int) -> Config:
            which = f"{number}.{count}" if count else number
            return spaces.complete(space, point, seed=seed, number=which)

        return allowed(goal, attempt, f"completion of the point {dict(point)}")

    return [completed(number, point) for number, point in enumerate(_listed("initial_configs", given, Mapping))]


def warm_start(given: Any) -> list[Any]:
    """Return a list of earlier experiments, each a name or its results."""
    one = isinstance(given, str | os.PathLike | Results) or not isinstance(given, Iterable)
    sources = [given] if one else list(given)
    for source in sources:
        if not isinstance(source, str | os.PathLike | Results):
            raise UsageError(f"warm_start={source!r}: must be the name of an experiment, its results, or a list")
    return sources


# ----------------------------------------------------------------------------------------------------- run and workers


def workers(given: Any) -> int | Auto:
    if given == "auto":
        return "auto"
    return integer("workers", given, 1, MOST_WORKERS, ", or 'auto'")


def backend(given: Backend | type[Backend] | str) -> Backend | type[Backend]:
    """Return a backend, or the class of a backend."""
    if isinstance(given, str):
        return registry.find("backend", given, BACKENDS)
    if not hasattr(given, "receive"):
        names = ", ".join(map(repr, registry.names("backend", BACKENDS)))
        raise UsageError(f"backend={shown(given)}: must be a backend, e.g. hop.Local(), or one of {names}")
    return given


def policy(given: str) -> Callable[[], Policy]:
    """Return a function that makes the policy."""
    if not isinstance(given, str):
        raise UsageError(f"policy={given!r}: must be a name; register a policy of your own as an entry point")
    found = registry.find("policy", given, POLICIES)
    if given not in POLICIES:
        _check_maker(given, found)
    if found is not Exact:
        return found
    require_solver()
    return partial(Exact, in_background)


def _check_maker(name: str, maker: Callable[[], Any]) -> None:
    """Raise UsageError unless a registered object makes policies."""
    made: Any
    try:
        made = maker()
    except TypeError as error:
        made = error
    if not callable(made):
        raise UsageError(
            f"policy={name!r}: its entry point must name a class or a function without arguments that makes a policy; "
            f"{shown(maker)} is not one ({describe(made) if isinstance(made, TypeError) else f'it made {shown(made)}'})"
        )


def parallelism(given: Any, task: Task) -> tuple[TeamShape, ...]:
    """Return how workers train, in turn; ``"ddp:2"`` stands for teams of two devices."""
    if isinstance(given, str) and given == str(AUTO):
        return (AUTO,)
    texts = [given] if isinstance(given, str) else _listed("parallelism", given, str)
    if not texts:
        raise UsageError("parallelism=[]: name at least one strategy, e.g. 'single'")
    return tuple(_team_shape(text, task) for text in texts)


def strategies(given: Any, task: Task, space: spaces.Space) -> tuple[tuple[TeamShape, ...], Strategies]:
    """Return how workers train, in turn, and the strategies of trials by a value of their configurations.

    Strategies in a mapping, as in ``{"width": {512: "ddp:2"}}``, or in the space itself, also tell the devices of all
    workers, unless ``given`` does.
    """
    keys = space if isinstance(space, Mapping) else {}
    searched = keys.get(STRATEGY)
    options = searched.options if isinstance(searched, spaces.Choice) else [searched] if searched is not None else []
    if not isinstance(given, Mapping):
        shapes = parallelism(given, task)
        named = {str(option): _team_shape(str(option), task) for option in options}
        return (_largest(named) if shapes == (SINGLE,) and named else shapes), {}
    if len(given) != 1 or not all(isinstance(found, Mapping) and found for found in given.values()):
        raise UsageError(
            f"parallelism={shown(given)}: must be text, a list of text, or one key of the space with a strategy for "
            "each value, as in {'width': {512: 'ddp:2'}}"
        )
    ((key, by_value),) = given.items()
    dimension = keys.get(key)
    if key not in keys:
        near, known = did_you_mean(str(key), keys), listed(str(key), keys)
        raise UsageError(f"parallelism={{{key!r}: ...}}: the space has no such key; {near}it has {known}")
    for value in by_value:
        if isinstance(dimension, spaces.Dimension) and not dimension.contains(value):
            raise UsageError(f"parallelism={{{key!r}: {{{value!r}: ...}}}}: is not a value of {dimension!r}")
    named = {str(value): _team_shape(text, task) for value, text in by_value.items()}
    return _largest(named), {key: {value: shape.strategy for value, shape in named.items()}}


def _largest(named: Mapping[str, TeamShape]) -> tuple[TeamShape, ...]:
    """Return the shape of workers that can train with each of these strategies."""
    teams = {shape.devices: shape for shape in named.values() if shape.devices != 1}
    if len(teams) > 1:
        raise UsageError(
            f"parallelism: {' and '.join(map(str, teams.values()))} have different numbers of devices, and all teams "
            "of an experiment have the same; name one number"
        )
    return (next(iter(teams.values()), next(iter(named.values()))),)


def _team_shape(text: str, task: Task) -> TeamShape:
    strategy, colon, count = text.partition(":")
    if colon and not (count.isdecimal() and int(count)):
        raise UsageError(f"parallelism={text!r}: after the colon must come a number of devices, as in 'ddp:2'")
    if strategy == AUTO.strategy:
        raise UsageError(f"parallelism={text!r}: 'auto' chooses for all workers; use parallelism='auto' by itself")
    return task.framework.team_shape(strategy, int(count or 0))


def batch_size(given: Any) -> int:
    if isinstance(given, spaces.Dimension | list | tuple):
        several = given if isinstance(given, spaces.Dimension) else f"choice({list(given)!r})"
        raise UsageError(f"batch_size={given!r}: must be one integer; to try several, put {several} into the space")
    return integer("batch_size", given, 1, ROWS)


def order(given: Order) -> Order:
    if given not in get_args(Order):
        raise UsageError(f"order={given!r}: must be 'open' (the policy chooses) or 'fixed' (by the seed alone)")
    return given


def flags(**given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r}: must be True or False")


def fail_fast(given: Any) -> bool:
    if not isinstance(given, bool):
        raise UsageError(f"fail_fast={given!r}: must be True or False")
    return given


def all_failed(given: AllFailed) -> AllFailed:
    if given not in get_args(AllFailed):
        raise UsageError(f"all_failed={given!r}: must be 'raise' (AllTrialsFailed) or 'return' (the results)")
    return given


def unit_timeout(given: Any) -> Timeout:
    if given is None or given in ("auto", "none"):
        return "auto" if given == "auto" else None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise UsageError(
            f"unit_timeout={given!r}: must be 'auto' (judged by estimates), None, or seconds above 0; choose a number "
            "of seconds that no healthy unit takes"
        )
    return float(given)


def checkpoint_every(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        raise UsageError(
            f"checkpoint_every={given!r}: must be a number of seconds; 0 saves the model of every epoch at once"
        )
    return float(given)


def start_timeout(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise UsageError(
            f"start_timeout={given!r}: must be a number of seconds above 0; workers that make progress get longer"
        )
    return float(given)


def fuse(given: Fuse, task: Task | None = None) -> Fuse:
    if given not in FUSES:
        raise UsageError(f"fuse={given!r}: must be one of {', '.join(map(repr, FUSES))}")
    if task is not None and given == "fast" and (blocker := task.framework.fusion_blocker):
        raise UsageError(f"fuse='fast': trials of {type(task).__name__} cannot train together: {blocker}")
    return given


def fused(given: Fuse, valid: Any) -> Fuse:
    """Return how trials train together: those with folds do not, since the models of each already do."""
    if not isinstance(valid, KFold):
        return given
    if given == "fast":
        raise UsageError(f"fuse='fast': trials with valid='{valid}' do not train together; leave fuse out")
    return "off"


def transform_workers(given: Any) -> int | str:
    whole = isinstance(given, int) and not isinstance(given, bool) and given >= 0
    if given != "auto" and not whole:
        raise UsageError(
            f"transform_workers={given!r}: must be 'auto' (one process per spare core) "
            "or a number of processes, at least 0"
        )
    return given  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------- helpers


def _listed(name: str, values: Any, kind: type) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        one = "text, or a list of text" if kind is str else "a list"
        raise UsageError(f"{name}={shown(values)}: must be {one}")
    listed = list(values)
    wrong = [value for value in listed if not isinstance(value, kind)]
    if wrong:
        wanted = "text" if kind is str else "a dict of names to values"
        raise UsageError(f"{name}=[{wrong[0]!r}]: each must be {wanted}")
    return listed
