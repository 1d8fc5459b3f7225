"""From a space to configurations: checking a space, listing its grid, and drawing the values of a trial."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopfleet.domain.bounds import MOST, excess
from hopfleet.domain.seeds import derive
from hopfleet.domain.space.chooser import Chooser, Draw, Space, function_name
from hopfleet.domain.space.dimension import Choice, Derived, Dimension
from hopfleet.domain.space.foreign import ray_grid, replacement
from hopfleet.domain.space.json_values import leaves, plain, put
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.errors import describe as describe_error
from hopfleet.phrases import shown


class Configuration(dict[str, Any]):
    """A configuration that a function made, with the values that the function asked for, by name.

    The values travel with the configuration, so searches and samplers need not know of them.
    """

    def __init__(self, config: Config, chosen: Config) -> None:
        super().__init__(config)
        self.chosen = chosen


class OutsideSpace(Exception):
    """Raised by a draw when a given configuration is not a point of the space."""


def check(space: Space) -> None:
    """Raise SpaceError unless every part of ``space`` can become part of a configuration."""
    if callable(space):
        return
    if not isinstance(space, Mapping):
        raise SpaceError(
            f"space={shown(space)}: must be a dict of names to values or dimensions, or a function of a trial"
        )
    if not space:
        raise SpaceError(
            "space={}: is empty; name at least one hyper-parameter, e.g. {'lr': hop.loguniform(1e-4, 1e-1)}"
        )
    if wrong := excess(space, "space"):
        raise SpaceError(wrong)
    names: set[str] = set()
    _check_grids(space)
    for path, value in leaves(space):
        name = ".".join(path)
        if name in names:
            raise SpaceError(f"space key {name!r}: occurs twice, nested and with a dot; rename one of the two")
        names.add(name)
        if not isinstance(value, Dimension):
            _check_constant(name, value)
            plain(value, path)


def _check_grids(space: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse the grids of Ray, which are dicts."""
    for key, value in space.items():
        if isinstance(value, Mapping):
            if meant := ray_grid(value):
                raise SpaceError(f"{prefix}{key}={shown(value)}: is a grid of Ray; write {meant}")
            _check_grids(value, f"{prefix}{key}.")


def _check_constant(name: str, value: Any) -> None:
    """Refuse lists, and dimensions of other libraries: they are no constants, and Hopfleet has its own."""
    if not (meant := replacement(value)):
        return
    remedy = f"; for one constant list, write a tuple, {shown(tuple(value))}" if isinstance(value, list) else ""
    raise SpaceError(f"{name}={shown(value)}: is not a dimension of Hopfleet; write {meant} to try its values{remedy}")


def dimensions(space: Space) -> dict[str, Dimension]:
    """Return the dimensions of a space by dotted path; none for a function, whose dimensions are unknown beforehand."""
    if callable(space):
        return {}
    return {".".join(path): value for path, value in leaves(space) if isinstance(value, Dimension)}


def values(space: Space, config: Config) -> dict[str, Any]:
    """Return the values that a configuration has for the dimensions of a space, by dotted path, without derived values.

    ``configure`` turns these values into the same configuration again.
    """
    found: dict[str, Any] = {}
    for path, value in () if callable(space) else leaves(space):
        if isinstance(value, Dimension) and not isinstance(value, Derived):
            part: Any = config
            for key in path:
                part = part[key]
            found[".".join(path)] = part
    return found


def grid(space: Space) -> list[dict[str, Any]]:
    """Return every combination of the options of all choices, as {path: option}; the last path varies fastest."""
    choices = {path: value.options for path, value in dimensions(space).items() if isinstance(value, Choice)}
    _check_points(choices)
    return [dict(zip(choices, combination, strict=True)) for combination in itertools.product(*choices.values())]


def _check_points(choices: Mapping[str, Sequence[Any]]) -> None:
    """Raise SpaceError for a grid with too many points to list."""
    points = math.prod(map(len, choices.values()))
    if points > MOST:
        names = ", ".join(f"{path} ({len(options):,})" for path, options in choices.items())
        raise SpaceError(
            f"a grid of {points:,} points, {shown(names)[1:-1]}: must have at most {MOST:,}; give fewer options, or "
            "search with hop.Random(trials=...) and hop.choice"
        )


def configure(space: Space, *, seed: int, number: int | str, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the configuration of trial ``number``; ``fixed`` presets the values of some paths."""

    def draw(name: str, dimension: Dimension) -> Any:
        return dimension.sample(random.Random(derive(seed, "space", number, name)))

    return walk(space, draw, fixed or {})[0]


def walk(space: Space, draw: Draw, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Dimension, Any]]]:
    """Return a configuration, and what ``draw`` yielded for it. ``given`` presets the values of some paths."""
    if callable(space):
        return _call(space, lambda name, dimension: given[name] if name in given else draw(name, dimension))
    config: dict[str, Any] = {}
    drawn: dict[str, tuple[Dimension, Any]] = {}
    derived: list[tuple[tuple[str, ...], Derived]] = []
    for path, value in leaves(space):
        name = ".".join(path)
        if name in given:
            value = given[name]
        elif isinstance(value, Derived):
            derived.append((path, value))
            value = None
        elif isinstance(value, Dimension):
            dimension, value = value, draw(name, value)
            drawn[name] = dimension, value
        put(config, path, plain(value, path))
    for path, function in derived:
        try:
            value = function.function(config)
        except Exception as error:
            raise SpaceError(f"{'.'.join(path)}: sample_from raised {describe_error(error)} for {config}") from error
        put(config, path, plain(value, path))
    return config, drawn


def _call(function: Callable[[Chooser], Any], draw: Draw) -> tuple[dict[str, Any], dict[str, tuple[Dimension, Any]]]:
    chooser, name = Chooser(draw), function_name(function).rpartition(".")[2]
    try:
        config = function(chooser)
    except (SpaceError, OutsideSpace):
        raise
    except Exception as error:
        raise SpaceError(f"space={name}: raised {describe_error(error)} after choosing {chooser.params}") from error
    given, config = config, chooser.params if config is None else config
    if not isinstance(config, Mapping) or not config:
        raise SpaceError(f"space={name}: returned {shown(given)}; must return a dict of names to values")
    chosen = {str(name): plain(value, [str(name)]) for name, value in chooser.params.items()}
    config = {str(key): plain(value, [str(key)]) for key, value in config.items()}
    return Configuration(config, chosen), chooser.chosen


def exhaustive_points(space: Space) -> list[dict[str, Any]]:
    """Return every combination of the options of ``grid_search`` dimensions alone."""
    return grid(
        {path: value for path, value in dimensions(space).items() if isinstance(value, Choice) and value.exhaustive}
    )
