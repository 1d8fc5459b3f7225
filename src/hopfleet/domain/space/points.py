"""Given configurations: locating them in a space, completing them, and changing a configuration or a space."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hopfleet.domain.seeds import derive
from hopfleet.domain.space.chooser import Space
from hopfleet.domain.space.configuration import OutsideSpace, walk
from hopfleet.domain.space.dimension import Dimension
from hopfleet.domain.space.json_values import alike, flatten, leaves, plain, put
from hopfleet.domain.trial import Config
from hopfleet.errors import SpaceError
from hopfleet.phrases import did_you_mean


def find(space: Space, config: Config) -> dict[str, tuple[Dimension, Any]] | None:
    """Return the dimensions and values that yield this configuration, or None if it is not a point of the space."""
    flat = config if callable(space) else _at_leaves(space, config)
    if flat is None:
        return None

    def draw(name: str, dimension: Dimension) -> Any:
        if name not in flat or not dimension.contains(flat[name]):
            raise OutsideSpace
        return flat[name]

    try:
        found, drawn = walk(space, draw, {})
    except (OutsideSpace, SpaceError):
        return None
    return drawn if found == plain(config) else None


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
                f"{name}={value!r}: the configuration has no {name!r}; {did_you_mean(name, known)}it has "
                f"{', '.join(known)}"
            )
        put(result, name.split(".") if name not in config else [name], plain(value, [name]))
    return result


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
                f"{name}={value!r}: the space has no {name!r}; {did_you_mean(name, known)}it has {', '.join(known)}"
            )
        put(result, name.split(".") if name not in space else [name], value)
    return result


def _copied(space: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) if isinstance(value, Mapping) else value for name, value in space.items()}
