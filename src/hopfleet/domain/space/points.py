"""Given configurations: locating them in a space, completing them, and changing a configuration or a space."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hopfleet.domain.seeds import derive
from hopfleet.domain.space.chooser import Space
from hopfleet.domain.space.configuration import Configuration, OutsideSpace, walk
from hopfleet.domain.space.dimension import Choice, Derived, Dimension, Float, Integer, Normal
from hopfleet.domain.space.json_values import alike, flatten, is_number, leaves, plain, put
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.phrases import did_you_mean, shown


def find(
    space: Space, config: Config, known: Mapping[str, Any] | None = None
) -> dict[str, tuple[Dimension, Any]] | None:
    """Return the dimensions and values that yield this configuration, or None if it is not a point of the space.

    ``known`` has values by name to try where the configuration has none.
    """
    flat = config if callable(space) else _at_leaves(space, config)
    if flat is None:
        return None

    def draw(name: str, dimension: Dimension) -> Any:
        for given in (flat, known or {}):
            if name in given and dimension.contains(given[name]):
                return given[name]
        raise OutsideSpace

    try:
        found, drawn = walk(space, draw, {})
    except (OutsideSpace, SpaceError):
        return None
    return drawn if found == plain(config) else None


def chosen(space: Space, config: Config, known: Mapping[str, Any] | None = None) -> Config:
    """Return the values that a function asked for to make a configuration, by name.

    They are empty if the space is no function, if the configuration says the same, or if they are not known. For a
    configuration that the function did not make itself, ``known`` has those of a similar configuration.
    """
    if not callable(space):
        return {}
    if isinstance(config, Configuration):
        found = config.chosen
    else:
        found = {name: value for name, (_, value) in (find(space, config, known) or {}).items()}
    return {} if found == config else found


def _at_leaves(space: Mapping[str, Any], config: Config) -> dict[str, Any] | None:
    """Return the values of a configuration at the leaves of the space, by dotted path; None if one is missing."""
    flat: dict[str, Any] = {}
    for path, _ in leaves(space):
        part: Any = config
        for key in path:
            if not isinstance(part, Mapping) or key not in part:
                return None
            part = part[key]
        flat[".".join(path)] = part
    return flat


def complete(space: Space, point: Mapping[str, Any], *, seed: int, number: int | str) -> dict[str, Any]:
    """Return the configuration of a point that a user gave, with drawn values for the names it leaves out."""
    if not isinstance(point, Mapping):
        raise SpaceError(f"point {point!r}: must be a dict of names to values")
    flat = dict(point) if callable(space) else _by_leaf(space, point)
    used: set[str] = set()

    def draw(name: str, dimension: Dimension) -> Any:
        if name not in flat:
            return dimension.sample(random.Random(derive(seed, "point", number, name)))
        used.add(name)
        if not dimension.contains(flat[name]):
            raise SpaceError(f"point {name}={flat[name]!r}: is not in {dimension}")
        return flat[name]

    config, drawn = walk(space, draw, {})
    if callable(space):
        _refuse_unknown([name for name in flat if name not in used], drawn)
    else:
        made = _at_leaves(space, config) or {}
        for name in flat.keys() - used:
            if not alike(made[name], flat[name]):
                raise SpaceError(f"point {name}={flat[name]!r}: the space sets it to {made[name]!r}; leave it out")
    return config


def _by_leaf(space: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a point gives for leaves of the space, whether nested or by dotted path."""
    names = dict.fromkeys(".".join(path) for path, _ in leaves(space))
    flat: dict[str, Any] = {}

    def collect(part: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for key, value in part.items():
            name = f"{prefix}{key}"
            if name in names:
                flat[name] = plain(value, [name])
            elif isinstance(value, Mapping) and any(leaf.startswith(f"{name}.") for leaf in names):
                yield from collect(value, f"{name}.")
            else:
                yield name

    _refuse_unknown(list(collect(point, "")), names)
    return flat


def _refuse_unknown(names: Sequence[str], known: Iterable[str]) -> None:
    if names:
        listed = list(known)
        near = did_you_mean(min(names), listed)
        raise SpaceError(f"point: the space has no {', '.join(sorted(names))}; {near}it has {', '.join(listed)}")


def changed(config: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with changed values at some of its dotted paths."""
    known = flatten(config)
    result: dict[str, Any] = json.loads(json.dumps(config))
    for name, value in changes.items():
        if name not in known:
            raise SpaceError(
                f"{name}={shown(value)}: the configuration has no {name!r}; {did_you_mean(name, known)}it has "
                f"{', '.join(known)}"
            )
        put(result, name.split(".") if name not in config else [name], plain(value, [name]))
    return result


def check_values(space: Space, values: Mapping[str, Any]) -> None:
    """Raise SpaceError for a value, given by dotted path, that cannot be meant: not finite, or unlike all of its
    dimension in kind or in sign.

    A value beyond the bounds of its dimension is allowed: users may look outside the space. NaN and infinities are
    allowed where they are options or constants of the space itself.
    """
    known = {} if callable(space) else {".".join(path): value for path, value in leaves(space)}
    for name, value in values.items():
        _check_like(name, value, known.get(name), value)


def check_dimensions(space: Space, others: Mapping[str, Any]) -> None:
    """Raise SpaceError for a dimension or a constant that yields values unlike those of the dimension it replaces."""
    known = {} if callable(space) else {".".join(path): value for path, value in leaves(space)}
    for name, replacement in flatten(others).items():
        for value in _examples(replacement):
            _check_like(name, replacement, known.get(name), value)


def _check_like(name: str, given: Any, dimension: Any, value: Any) -> None:
    if constraint := _unlike(dimension, value):
        suffix = f", as in {shown(dimension)}" if isinstance(dimension, Dimension) else ""
        raise SpaceError(f"{name}={shown(given)}: must be {constraint}{suffix}")


def _examples(dimension: Any) -> Sequence[Any]:
    """Return values that tell the kind and the sign of what a dimension yields."""
    match dimension:
        case Integer(high=high):
            return [high - 1]
        case Float(high=high):
            return [float(high)]
        case Normal():
            return [1.0]
        case Choice(options=options):
            return options
        case _:
            return [dimension]


def _unlike(dimension: Any, value: Any) -> str:
    """Return what a value should be; empty if it is that."""
    kind, examples, fits = "", list[Any](), True
    match dimension:
        case Choice() if dimension.contains(value):
            return ""
        case Integer(low=low):
            kind, examples, fits = "an integer", [low], type(value) is int
        case Float(low=low):
            kind, examples, fits = "a number", [low], is_number(value)
        case Normal():
            return "" if is_number(value) else "a number"
        case Choice(options=options) if options:
            kind, examples, fits = _kind(options, value)
        case Derived() | None:
            pass
        case _ if alike(dimension, value):
            return ""
        case _:
            kind, examples, fits = _kind([dimension], value)
    if isinstance(value, float) and not is_number(value):
        return "a finite number"
    if not fits:
        return kind
    least = min(examples) if examples and all(map(is_number, examples)) and is_number(value) else -1
    if least > 0 and value <= 0:
        return f"{kind} above 0"
    return f"{kind} of at least 0" if least == 0 and value < 0 else ""


def _kind(examples: Sequence[Any], value: Any) -> tuple[str, list[Any], bool]:
    """Return the kind that all examples have, the examples, and whether a value is of that kind."""
    if all(isinstance(example, bool) for example in examples):
        return "True or False", [], isinstance(value, bool)
    if all(isinstance(example, int | float) and not isinstance(example, bool) for example in examples):
        return "a number", [*filter(is_number, examples)], is_number(value)
    if all(isinstance(example, str) for example in examples):
        return "text", [], isinstance(value, str)
    return "", [], True


def widened(space: Space, others: Space) -> Space:
    """Return a space with other dimensions or constants at some of its paths, nested or dotted."""
    if not others:
        return space
    if callable(space) or callable(others):
        raise SpaceError("a space that is a function has no dimensions to change; add configurations instead")
    known = flatten(space)
    result: dict[str, Any] = _copied(space)
    for name, value in flatten(others).items():
        if name not in known:
            raise SpaceError(
                f"{name}={shown(value)}: the space has no {name!r}; {did_you_mean(name, known)}it has "
                f"{', '.join(known)}"
            )
        put(result, name.split(".") if name not in space else [name], value)
    return result


def _copied(space: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) if isinstance(value, Mapping) else value for name, value in space.items()}
